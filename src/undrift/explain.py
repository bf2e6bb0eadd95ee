"""The page of an algorithm: its docstring, its options, and measurements of what it keeps, sends and computes."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from undrift import algorithms, overview
from undrift.client.learner import cross_entropy
from undrift.core import tree
from undrift.data import FederatedData
from undrift.methods.algorithm import Algorithm
from undrift.overview import Cost, sizes
from undrift.simulation.arguments import Arguments
from undrift.simulation.callbacks import Callback
from undrift.simulation.defaults import resolve_defaults
from undrift.simulation.loop import train
from undrift.simulation.prepare import prepare, with_engine
from undrift.simulation.progress import hidden
from undrift.simulation.run import Run
from undrift.simulation.setup import Setup
from undrift.simulation.simulate import start

SECTIONS = ("Paper", "Idea", "Equations", "Use", "Pitfalls", "Elsewhere")
_OPTIONS = "Options"  # a section of lines `name: meaning`, shown with the defaults
_LINK = re.compile(r"https?://\S+")
# Costs are measured on a federation of four clients.
_SAMPLES = 4  # of a client, all of them in every batch
_WIDTH = 20  # of a layer
_ROUNDS = 6  # after which traffic is constant: some algorithms start with a simpler form


@dataclass(frozen=True)
class Page:
    """An algorithm, explained."""

    name: str  # what users type
    label: str
    title: str
    sections: dict[str, str]
    options: dict[str, Any]  # with their defaults
    meanings: dict[str, str]  # of options
    weighting: str
    cost: Cost

    @property
    def year(self) -> int | None:
        """When the paper was published, if its entry says so."""
        years = re.findall(r"\b(?:19|20)\d\d\b", _LINK.sub("", self.sections.get("Paper", "")))
        return int(years[-1]) if years else None

    @property
    def weights(self) -> str:
        """How clients are weighted by default."""
        if self.weighting == "samples":
            return "Clients are weighted by their number of samples, unless `weighting` says otherwise."
        return (
            "Its paper weights all clients equally, and so does a run, unless `weighting` says otherwise. A comparison "
            "weights them by their number of samples, as for all other algorithms; `weighting='paper'` undoes that."
        )

    @property
    def costs(self) -> dict[str, str]:
        """The costs in words."""
        each = self.cost.server_per_client
        kept = [_models(self.cost.server)] if self.cost.server or not each else []
        kept += [f"{_models(each)} per client"] if each else []
        return {
            "A client keeps": _models(self.cost.client),
            "The server keeps besides the model": " and ".join(kept),
            "A client receives in a round": _models(self.cost.down),
            "A client sends in a round": _models(self.cost.up),
            "Exchanges in a round": str(self.cost.exchanges),
            "Gradients in a local step": sizes(self.cost.gradients),
            "Further passes over a client's samples in a round": sizes(self.cost.passes),
        }


def page(name: str, *, measured: bool = False) -> Page:
    """The page of the algorithm that users call `name`; costs are those that were shipped, unless `measured` anew."""
    kind = algorithms.find(name)
    title, sections = parse(inspect.getdoc(kind) or "")
    meanings = _meanings(sections.pop(_OPTIONS, ""))
    algorithm = kind()
    shipped = overview.algorithms().get(kind.name())
    return Page(
        name=kind.name(),
        label=kind.__name__,
        title=title,
        sections=sections,
        options=algorithm.options(),
        meanings=meanings,
        weighting=algorithm.weighting,
        cost=measure(algorithm) if measured or shipped is None else shipped.cost,
    )


def parse(docstring: str) -> tuple[str, dict[str, str]]:
    """The title line and the sections of a docstring; a section is a heading, a colon and indented lines."""
    title, *rest = docstring.strip().splitlines() or [""]
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in rest:
        heading = line.removesuffix(":")
        if heading in (*SECTIONS, _OPTIONS) and line.endswith(":"):
            lines = sections.setdefault(heading, [])
        else:
            lines.append(line)
    return title, {k: inspect.cleandoc("\n" + "\n".join(v)) for k, v in sections.items()}


def _meanings(text: str) -> dict[str, str]:
    """Options and what they mean; a line that is indented goes on with the one before."""
    entries = re.findall(r"^(\w+): (.*(?:\n +.*)*)", text, flags=re.MULTILINE)
    return {name: unwrapped(meaning) for name, meaning in entries}


def unwrapped(text: str) -> str:
    """Prose without the line breaks of its source; paragraphs stay apart."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))


def measure(algorithm: Algorithm) -> Cost:
    """Train one of four clients in every round, and measure what is kept and sent.

    How often samples are evaluated is counted with one local step and with two: the difference is what a step takes.
    """
    cost, one = _trial(algorithm, steps=1)
    _, two = _trial(algorithm, steps=2)
    return replace(cost, gradients=two - one, passes=2 * one - two)


class _Counter(Callback):
    """Counts the samples whose loss is computed in a round."""

    def __init__(self) -> None:
        self._count = 0
        self.last_round = 0

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        self._count += len(output)
        return cross_entropy(output, target)

    def round(self, row: dict[str, Any], run: Run) -> None:
        self.last_round, self._count = self._count, 0


def _trial(algorithm: Algorithm, steps: int) -> tuple[Cost, float]:
    """What is kept and sent, and how often a client evaluated its samples in the last round."""
    problem, counter = _problem()
    objects, options = replace(problem.objects, algorithm=algorithm), replace(problem.options, steps=steps)
    with hidden(), start(with_engine(prepare(objects, options, problem)), None) as run:
        train([run], [counter], "raise")
    model, memory, last = tree.nbytes(problem.learner.parameters), run.memory, run.history.iloc[-1]
    cost = Cost(
        client=tree.nbytes(memory.states.initial) / model,
        server=tree.nbytes(memory.server) / model - 1,
        server_per_client=tree.nbytes(memory.ledger.initial) / model,
        down=float(last["bytes_down"]) / model,
        up=float(last["bytes_up"]) / model,
        exchanges=len(run.experiment.method.phases),
        gradients=0,
        passes=0,
        stateless=not memory.states.initial,
    )
    return cost, counter.last_round / _SAMPLES


@cache
def _problem() -> tuple[Setup, _Counter]:
    """Data and model of all trials, whose checks are done once."""
    noise, counter = torch.Generator().manual_seed(0), _Counter()
    clients = [(torch.randn(_SAMPLES, _WIDTH, generator=noise), torch.arange(_SAMPLES)) for _ in range(4)]
    data = FederatedData.from_clients(clients)
    given = Arguments(
        "fedavg",
        _four_layers(),
        data,
        loss=counter.loss,
        rounds=_ROUNDS,
        cohort=1,
        engine="sequential",
        device="cpu",
    )
    resolved = resolve_defaults(given.objects, given.options, data)
    return prepare(resolved.objects, resolved.options), counter


def _four_layers() -> nn.Module:
    """Four equal layers, so that a head of two is half a model, and a normalisation for FedBN to keep."""
    return nn.Sequential(
        nn.Linear(_WIDTH, _WIDTH),
        nn.BatchNorm1d(_WIDTH, track_running_stats=False),
        nn.ReLU(),
        nn.Linear(_WIDTH, _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, _WIDTH),
    )


def _models(value: float) -> str:
    text = sizes(value)
    if text == "0":
        return "a few numbers" if value else "nothing"
    return f"{text} model" if text == "1" else f"{text} models"


def markdown(page: Page) -> str:
    """The page as Markdown, for the documentation."""
    parts = [f"# {page.label}", page.title, f"`ud.algorithms.{page.label}()` · `undrift run -a {page.name}`"]
    for heading, text in page.sections.items():
        prose = _LINK.sub(r"<\g<0>>", unwrapped(text))
        parts += [f"## {heading}", f"```text\n{text}\n```" if heading == "Equations" else prose]
        if heading == "Equations":
            parts += ["## Options", _options(page) or "None.", page.weights]
            costs = [f"| {what} | {how} |" for what, how in page.costs.items()]
            parts += ["## Cost", "\n".join(["| | |", "|---|---|", *costs])]
            parts += ["Measured with the defaults, in sizes of a model of four equal layers."]
    return "\n\n".join(parts) + "\n"


def _options(page: Page) -> str:
    """A table of options, empty if there are none."""
    meanings = {name: page.meanings.get(name, "").removesuffix(".") for name in page.options}
    rows = [f"| `{name}` | `{default!r}` | {meanings[name]} |" for name, default in page.options.items()]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows]) if rows else ""
