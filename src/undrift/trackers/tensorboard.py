"""TensorBoard: curves from files of events, drawn by ``tensorboard --logdir DIR``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from undrift.core import check
from undrift.core.extras import needs
from undrift.simulation.run import Run
from undrift.trackers.tracker import Log, Tracker, flat

_LAST = "participants"  # a figure that every round has; written after the others, it says that a round is complete


class TensorBoard(Tracker):
    """Events of every run in a folder of its own: ``dir/LABEL-seed-S``, or ``tensorboard`` in the run directory.

    Needs ``pip install "undrift[tensorboard]"``.
    """

    def __init__(self, dir: str | Path | None = None) -> None:
        super().__init__()
        self.dir = None if dir is None else check.path("dir", dir)
        with needs("tensorboard"):
            import tensorboard  # noqa: F401

    def open(self, run: Run, identity: Mapping[str, str]) -> Log:
        home = self.dir or run.out
        if home is None:
            raise ValueError("TensorBoard needs a folder: give it one, TensorBoard('logs'), or the run one, out=")
        known = identity.get("folder", "")
        if known and not re.fullmatch(r"[\w.-]*\w[\w.-]*", known):
            raise ValueError(f"the folder of TensorBoard's events must be a plain name, got {check.shown(known)}")
        folder = home / known if known else _free(home, "tensorboard" if self.dir is None else _plain(run))
        return _Events(folder, run.config, fresh=not folder.exists())


class _Events(Log):
    def __init__(self, folder: Path, config: dict[str, Any], *, fresh: bool) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.identity = {"folder": folder.name}
        self.rounds = 0 if fresh else _last_round(folder)
        self._config = config
        # What a run that was killed wrote of later rounds is dropped by whoever reads.
        self._writer = SummaryWriter(str(folder), purge_step=None if fresh else self.rounds + 1, flush_secs=5)
        if fresh:
            text = json.dumps(config, indent=2, ensure_ascii=False)
            self._writer.add_text("configuration", "\n".join(f"    {line}" for line in text.splitlines()))
            self._writer.flush()

    def write(self, row: dict[str, float], round: int) -> None:
        for name in sorted(row, key=lambda name: name == _LAST):
            self._writer.add_scalar(name, row[name], round)

    def finish(self, figures: dict[str, float], *, complete: bool) -> None:
        settings = {
            name: value if _is_plain(value) else json.dumps(value) for name, value in flat(self._config).items()
        }
        results = {f"final/{name}": value for name, value in figures.items()}
        # In the table of runs, and as points at the last round; "." is this folder.
        self._writer.add_hparams(settings, results, run_name=".", global_step=self.rounds)
        self._writer.close()


def _last_round(folder: Path) -> int:
    """The last complete round among the events of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 1})
    events.Reload()
    if _LAST not in events.Tags()["scalars"]:
        return 0
    return int(events.Scalars(_LAST)[-1].step)


def _free(home: Path, name: str) -> Path:
    """A folder that is not there yet."""
    names = (name if number == 1 else f"{name}-{number}" for number in range(1, check.MOST))
    return next(home / each for each in names if not (home / each).exists())


def _plain(run: Run) -> str:
    letters = re.sub(r"[^\w.]+", "-", run.label.lower(), flags=re.ASCII).strip("-.")
    return f"{letters[:80] or 'run'}-seed-{run.options.seed}"


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)
