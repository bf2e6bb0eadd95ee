"""Weights & Biases: runs on its servers, or kept here until ``wandb sync`` (``mode="offline"``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from undrift.core import check
from undrift.core.extras import needs
from undrift.simulation.run import Run
from undrift.trackers.tracker import Log, Tracker, title

Mode = Literal["online", "offline", "shared", "disabled"]


class WandB(Tracker):
    """Every run becomes a run of a project.

    `project` is by default that of ``WANDB_PROJECT``, or "undrift"; `mode` what ``WANDB_MODE`` says, or "online";
    `dir`, where files are kept, what ``WANDB_DIR`` says, or the working directory. Each offline part of a run that was
    resumed has all rounds so far, so that syncing the last one is enough.

    Needs ``pip install "undrift[wandb]"``.
    """

    def __init__(self, project: str | None = None, mode: Mode | None = None, dir: str | Path | None = None) -> None:
        super().__init__()
        if project is not None and (not isinstance(project, str) or not project):
            raise TypeError(f"project must be a text, got {check.shown(project)}")
        if mode is not None:
            check.choice("mode", mode, get_args(Mode))
        with needs("wandb"):
            import wandb  # noqa: F401
        self.project = project or os.environ.get("WANDB_PROJECT") or "undrift"
        self.mode, self.dir = mode, None if dir is None else check.path("dir", dir)

    def open(self, run: Run, identity: Mapping[str, str]) -> Log:
        import wandb

        try:
            return _Part(
                wandb.init(
                    project=self.project,
                    mode=self.mode,
                    dir=self.dir,
                    name=title(run),
                    config=run.config,
                    id=identity.get("run"),
                    resume="allow" if identity else None,
                    reinit="create_new",  # several are open at once
                    settings=wandb.Settings(console="off"),  # which would stand between progress bar and terminal
                )
            )
        except wandb.Error as error:
            remedy = "; WANDB_MODE=offline needs no account"
            raise ValueError(f"Weights & Biases: {str(error).partition(chr(10))[0]}{remedy}") from error


class _Part(Log):
    def __init__(self, opened: Any) -> None:
        self.identity = {"run": str(opened.id)}
        self.rounds = max(opened.step - 1, 0) if opened.resumed else 0
        self._opened = opened

    def write(self, row: dict[str, float], round: int) -> None:
        self._opened.log(row, step=round)

    def finish(self, figures: dict[str, float], *, complete: bool) -> None:
        self._opened.summary.update({f"final/{name}": value for name, value in figures.items()})
        self._opened.finish(exit_code=0 if complete and not figures["diverged"] else 1)
