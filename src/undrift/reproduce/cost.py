"""What an experiment costs: local steps of clients, and how long they take on this machine."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import Any, NamedTuple

from undrift.data import FederatedData, is_local, load
from undrift.data.batches import Schedule
from undrift.models import build
from undrift.reproduce.plan import Plan
from undrift.simulation.progress import hidden
from undrift.simulation.simulate import simulate

_SMALL = 1_000_000  # parameters up to which a step is timed with ten clients at once, as it is trained


class Cost(NamedTuple):
    client_steps: float  # local steps of all clients, in all rounds of all runs, tuning included
    seconds: float  # with FedAvg's steps; algorithms with more to compute take longer


def cost(plan: Plan) -> Cost | None:
    """None where the data are not here."""
    found = [_of_case(plan, case) for case in plan.cases]
    known = [each for each in found if each is not None]
    return Cost(*map(sum, zip(*known, strict=True))) if len(known) == len(found) else None


def _of_case(plan: Plan, case: str) -> Cost | None:
    settings = plan.settings(case)
    if not is_local(settings["data.name"]):
        return None
    data = _federation(json.dumps(plan.data(case)))
    batch = int(settings["local.batch_size"])
    epochs, steps = settings.get("local.epochs", 1), settings.get("local.steps")
    each = Schedule(batch, None if steps else epochs, steps).step_counts(data.sizes).mean()
    cohort = settings["run.cohort"]
    clients = len(data) if cohort == "all" else round(cohort * len(data)) if isinstance(cohort, float) else cohort
    total = _runs(plan, case) * plan.rounds(case) * clients * float(each)
    return Cost(total, total * _seconds_of_step(settings["model.name"], data, batch))


def _runs(plan: Plan, case: str) -> float:
    """Of as many rounds as the final ones have."""
    final = len(plan.algorithms) * plan.seeds
    if (tuning := plan.tuning) is None:
        return final
    share = 1.0 if tuning.rounds is None else min(1.0, tuning.rounds / plan.rounds(case))
    return final + len(plan.algorithms) * plan.budget * tuning.seeds * share


@cache
def _federation(arguments: str) -> FederatedData:
    return load(**json.loads(arguments))


_timed: dict[tuple[Any, ...], float] = {}


def _seconds_of_step(model: str, data: FederatedData, batch: int) -> float:
    """Of one client; the second round is timed, as the first one chooses and allocates."""
    key = model, data.name, data.features, batch
    if key not in _timed:
        built = build(model, tuple(data.x.shape[1:]), data.classes)
        clients = 10 if sum(p.numel() for p in built.parameters()) <= _SMALL else 2
        ends: list[float] = []
        schedule: dict[str, Any] = {"rounds": 2, "cohort": None, "steps": 2, "batch_size": batch, "lr": 0.01}
        with hidden():
            simulate(
                "fedavg",
                built,
                [(data.x[:batch], data.y[:batch])] * clients,
                callbacks=[lambda row, run: ends.append(time.perf_counter())],
                **schedule,
            )
        _timed[key] = (ends[1] - ends[0]) / (2 * clients)
    return _timed[key]
