"""A trial of users' own corrections before the first round, so that a wrong hook is named at once."""

from __future__ import annotations

import torch

from undrift.engines import Sequential, Workload
from undrift.engines.dry_run import dry_round
from undrift.methods.hook_checks import HookError, checked


def try_hooks(workload: Workload) -> None:
    """Raises a `HookError` if a hook of a correction that is not undrift's fails or returns the wrong thing."""
    method = checked(workload.method)
    if method is None:
        return
    try:
        with torch.no_grad():
            dry_round(Sequential(), workload._replace(method=method), hear=True)
    except HookError:
        raise
    except Exception:  # whatever else goes wrong is said where it is looked for
        return
