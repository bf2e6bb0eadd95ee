"""The page of an algorithm: what its docstring says, its options, and what it keeps and sends, measured."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from undrift import algorithms
from undrift.client.learner import cross_entropy
from undrift.core import tree
from undrift.data import FederatedData
from undrift.methods.algorithm import Algorithm
from undrift.simulation.prepare import Options, prepare
from undrift.simulation.round import play
from undrift.storage.arena import Space
from undrift.storage.states import ClientStates

SECTIONS = ("Paper", "Idea", "Equations", "Use", "Pitfalls", "Elsewhere")
_SAMPLES = 4  # of a client on which costs are measured, all of them in every batch
_WIDTH = 20  # of the layers of the model on which costs are measured
_ROUNDS = 6  # after which traffic is steady: some algorithms begin with a simpler form


@dataclass(frozen=True)
class Cost:
    """What is kept between rounds and what a client's part in a round sends, in model sizes."""

    client: float
    server: float  # besides the model
    server_per_client: float  # for every client that has taken part
    down: float
    up: float
    exchanges: int  # times that server and clients wait for each other in a round
    gradients: float  # that a local step takes
    passes: float  # over all of a client's samples in a round, besides the steps
    stateless: bool  # clients keep nothing


@dataclass(frozen=True)
class Page:
    name: str  # what users type
    label: str
    title: str
    sections: dict[str, str]
    options: dict[str, Any]  # with their defaults
    weighting: str
    cost: Cost

    @property
    def year(self) -> int | None:
        """When the paper was published, if its entry says so."""
        years = re.findall(r"\b(?:19|20)\d\d\b", self.sections.get("Paper", ""))
        return int(years[-1]) if years else None

    @property
    def weighted(self) -> str:
        how = "by their numbers of samples" if self.weighting == "samples" else "alike"
        return f"Clients count {how}, unless `weighting` says otherwise."

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


def page(name: str) -> Page:
    kind = algorithms.find(name)
    title, sections = parse(inspect.getdoc(kind) or "")
    algorithm = kind()
    return Page(
        kind.name(), kind.__name__, title, sections, algorithm.options(), algorithm.weighting, measure(algorithm)
    )


def parse(docstring: str) -> tuple[str, dict[str, str]]:
    """The title line, and the text of every section, which is its heading, a colon and indented lines."""
    title, *rest = docstring.strip().splitlines() or [""]
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in rest:
        heading = line.removesuffix(":")
        if heading in SECTIONS and line.endswith(":"):
            lines = sections.setdefault(heading, [])
        else:
            lines.append(line)
    return title, {k: inspect.cleandoc("\n" + "\n".join(v)) for k, v in sections.items()}


def flowing(text: str) -> str:
    """Prose without the line breaks of its source; paragraphs stay apart."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))


def measure(algorithm: Algorithm) -> Cost:
    """Let one of the four clients of a tiny federation train in every round, and weigh what is kept and sent.

    Looks at samples are counted with one local step and with two: the difference is what a step takes.
    """
    cost, one = _trial(algorithm, steps=1)
    _, two = _trial(algorithm, steps=2)
    return replace(cost, gradients=two - one, passes=2 * one - two)


def _trial(algorithm: Algorithm, steps: int) -> tuple[Cost, float]:
    """What is kept and sent, and how often a client looked at its samples in the last round."""
    noise = torch.Generator().manual_seed(0)
    clients = [(torch.randn(_SAMPLES, _WIDTH, generator=noise), torch.arange(_SAMPLES)) for _ in range(4)]
    options = Options(rounds=_ROUNDS, cohort=1, steps=steps, engine="sequential", device="cpu")
    looks = 0

    def counted(output: Tensor, target: Tensor) -> Tensor:
        nonlocal looks
        looks += len(output)
        return cross_entropy(output, target)

    experiment = prepare(algorithm, _four_layers(), FederatedData.from_clients(clients), None, counted, None, options)
    method, learner = experiment.method, experiment.learner
    server = method.server(learner.parameters, learner.buffers)
    space = Space(learner.device)
    states = ClientStates(method.client(learner.parameters, learner.buffers), len(experiment.data), space)
    ledger = ClientStates(method.ledger(learner.parameters), len(experiment.data), space)
    for number in range(1, _ROUNDS + 1):
        looks = 0
        played = play(experiment, server, states, ledger, number)
        server = played.server
        states.scatter(played.ids, played.clients)
        ledger.scatter(played.ids, played.ledger)

    model = tree.nbytes(learner.parameters)
    count = len(played.ids)
    cost = Cost(
        client=tree.nbytes(states.initial) / model,
        server=tree.nbytes(server) / model - 1,
        server_per_client=tree.nbytes(ledger.initial) / model,
        down=played.bytes_down / count / model,
        up=played.bytes_up / count / model,
        exchanges=len(method.phases),
        gradients=0,
        passes=0,
        stateless=not states.initial,
    )
    return cost, looks / count / _SAMPLES


def _four_layers() -> nn.Module:
    """Equal layers, a head of two of which is half a model, and a normalisation, for FedBN to keep."""
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


def sizes(value: float) -> str:
    """Model sizes, to two digits; a few numbers beside them do not count."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _models(value: float) -> str:
    text = sizes(value)
    if text == "0":
        return "a few numbers" if value else "nothing"
    return f"{text} model" if text == "1" else f"{text} models"


def markdown(page: Page) -> str:
    """The page as Markdown, for the documentation."""
    options = [f"| `{name}` | `{default!r}` |" for name, default in page.options.items()]
    parts = [f"# {page.label}", page.title, f"`ud.algorithms.{page.label}()` · `undrift run -a {page.name}`"]
    for heading, text in page.sections.items():
        parts += [f"## {heading}", f"```text\n{text}\n```" if heading == "Equations" else flowing(text)]
        if heading == "Equations":
            parts += ["## Options", "\n".join(["| option | default |", "|---|---|", *options]) if options else "None."]
            parts += [page.weighted]
            costs = [f"| {what} | {how} |" for what, how in page.costs.items()]
            parts += ["## Cost", "\n".join(["| | |", "|---|---|", *costs])]
            parts += ["Measured with the defaults, in sizes of a model of four equal layers."]
    return "\n\n".join(parts) + "\n"
