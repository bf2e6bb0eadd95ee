"""Diagnostics of a round while it is computed; there is none where no diagnostic is switched on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from undrift.core import tree
from undrift.core.parts import Part, mark
from undrift.core.tree import Nest
from undrift.diagnostics.observer import KEY
from undrift.diagnostics.probe import Probe
from undrift.protocol import Cohort, State
from undrift.simulation.channel import Channel
from undrift.simulation.setup import Experiment
from undrift.transport import Answers


class Watch:
    """Sees a round of all runs that train together; tensor operations only."""

    def __init__(self, runs: Sequence[Experiment], servers: Sequence[State], cohorts: Sequence[Cohort]) -> None:
        self._runs, self._before, self._cohorts = runs, servers, cohorts
        self._reports: list[Nest] = [{} for _ in runs]
        self._gradients: list[Nest] = [{} for _ in runs]
        self.probed: list[Answers] = []  # what clients answered before the round's own phases, where they were asked

    @property
    def phases(self) -> tuple[Probe, ...]:
        """What clients are asked besides the phases of their algorithm."""
        probe = self._runs[0].observer.probe
        return () if probe is None else (probe,)

    def begin(self, channel: Channel) -> list[State]:
        """Ask for further gradients; returns the servers' states as their algorithms know them."""
        servers = [{k: v for k, v in server.items() if k != KEY} for server in self._before]
        for number, probe in enumerate(self.phases, start=len(self._runs[0].method.phases)):
            with mark(Part.DIAGNOSTICS):
                mails = [probe.ask(*given) for given in zip(servers, self._cohorts, strict=True)]
                self.probed = channel.exchange(number, mails, self._cohorts)
                self._gradients = [answers.replies for answers in self.probed]
        return servers

    def leave(self, present: Tensor | slice, cohort: Cohort) -> None:
        """Of a run that trains alone, go on with the clients at these positions, which are the cohort now."""
        self._cohorts = [cohort]
        self._reports, self._gradients = (
            [tree.row(nest, present) for nest in seen] for seen in (self._reports, self._gradients)
        )

    def keep_reports(self, found: Sequence[Answers]) -> list[Answers]:
        """What clients observed of a phase is kept for the end of the round, and here only."""
        rest = []
        for reports, answers in zip(self._reports, found, strict=True):
            observed = self._runs[0].observer.observe & answers.reports.keys()
            reports |= {name: answers.reports[name] for name in observed}
            rest.append(answers._replace(reports={k: v for k, v in answers.reports.items() if k not in observed}))
        return rest

    def end(self, servers: Sequence[State]) -> tuple[Tensor, list[State]]:
        """The figures of every run [runs, columns], and the servers' states with what diagnostics remember."""
        figures, after = [], []
        with mark(Part.DIAGNOSTICS):
            for number, (run, server, cohort) in enumerate(zip(self._runs, servers, self._cohorts, strict=True)):
                found, kept = run.observer.measure(
                    self._before[number],
                    server,
                    cohort.weights,
                    reports=self._reports[number],
                    gradients=self._gradients[number],
                )
                figures.append(found)
                after.append(kept)
            return torch.stack(figures), after
