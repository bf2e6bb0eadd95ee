"""Pages of algorithms: complete, with the right costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pytest

import undrift as ud
from undrift import explain, overview
from undrift.core.tree import Tree
from undrift.methods.correction import At, Correction, Heard
from undrift.methods.setting import Setting
from undrift.protocol import Message, State

every_algorithm = pytest.mark.parametrize("name", ud.algorithms.available())


@every_algorithm
def test_pages_are_complete(name: str) -> None:
    page = explain.page(name)
    assert tuple(page.sections) == explain.SECTIONS
    assert all(text.strip() for text in page.sections.values())
    assert page.title
    assert len(page.title) < 120
    assert page.title.endswith(".")
    assert page.year is None or 2010 < page.year < 2030
    assert page.options == ud.algorithms.find(name)().options()
    assert list(page.meanings) == list(page.options), "every option is explained, in its order"


@every_algorithm
def test_shipped_costs_are_those_measured(name: str) -> None:
    shipped, measured = overview.algorithms()[name].cost, explain.measure(ud.algorithms.find(name)())
    assert asdict(shipped) == pytest.approx(asdict(measured), abs=1e-6), "run `make docs`"


# What the papers say is kept and sent, in models. Of the model measured, two layers are V and the normalisation is B.
LAYER, NORMALISATION = 20 * 20 + 20, 2 * 20
V = 2 * LAYER / (4 * LAYER + NORMALISATION)
B = NORMALISATION / (4 * LAYER + NORMALISATION)


@pytest.mark.parametrize(
    ("name", "client", "server", "down", "up", "exchanges"),
    [
        ("fedavg", 0, 0, 1, 1, 1),
        ("fedbn", B, 0, 1 - B, 1 - B, 1),
        ("fedadam", 0, 2, 1, 1, 1),
        ("scaffold", 1, 1, 2, 2, 1),
        ("fedpvr", V, V, 1 + V, 1 + V, 1),
        ("fedcm", 0, 1, 2, 1, 1),
        ("mimemom", 0, 2, 4, 2, 2),
        ("ghb", 0, 10, 2, 1, 1),
        ("fedhbm", 1, 0, 1, 1, 1),
        ("fedpmvr", V, 0, 1, 1, 1),
    ],
)
def test_costs(name: str, client: float, server: float, down: float, up: float, exchanges: int) -> None:
    cost = explain.page(name).cost
    scalars = 0.01
    assert cost.client == pytest.approx(client, abs=scalars)
    assert cost.server == pytest.approx(server, abs=scalars)
    assert cost.down == pytest.approx(down, abs=scalars)
    assert cost.up == pytest.approx(up, abs=scalars)
    assert cost.exchanges == exchanges
    assert cost.stateless == (client == 0)


def test_traffic_is_measured_once_it_is_constant() -> None:
    cost = explain.page("mafsvrg").cost  # G models from the fifth round on: 2 G + 1 down, 2 G + 1 up
    assert (overview.sizes(cost.down), overview.sizes(cost.up)) == ("9", "9")


def test_ledgers_are_counted_per_client() -> None:
    page = explain.page("fedvarp")
    assert page.cost.server_per_client == 1
    assert page.cost.stateless
    assert page.costs["The server keeps besides the model"] == "1 model and 1 model per client"


@dataclass(frozen=True)
class Hoarding(Correction):
    """Keeps three models on a client and two on the server, sends one more down and two more up."""

    def server(self, model: Tree) -> State:
        return {"a": model, "b": model}

    def client(self, model: Tree) -> State:
        return {"a": model, "b": model, "c": model}

    def broadcast(self, server: State, model: Tree) -> Message:
        return {"a": server["a"]}

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, client, {"a": update, "b": update}

    def advance(self, update: Tree, server: State, heard: Heard) -> tuple[Tree, State]:
        return update, server


@dataclass(frozen=True)
class Hoarder(ud.Algorithm):
    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (Hoarding(),)


def test_measuring() -> None:
    cost = explain.measure(Hoarder())
    assert (cost.client, cost.server, cost.server_per_client) == (3, 2, 0)
    assert (cost.down, cost.up, cost.exchanges, cost.stateless) == (2, 3, 1, False)


def test_parsing() -> None:
    title, sections = explain.parse(
        "What it does.\n\nPaper:\n    Somebody.\n    ICML 2020.\nEquations:\n    a = b\n      c = d\nUse:\n    x"
    )
    assert title == "What it does."
    assert sections == {"Paper": "Somebody.\nICML 2020.", "Equations": "a = b\n  c = d", "Use": "x"}
    assert explain.unwrapped("one\ntwo\n\nthree") == "one two\n\nthree"
    assert explain.parse("") == ("", {})


def test_years() -> None:
    assert explain.page("scaffold").year == 2020
    assert explain.page("fedadam").year == 2021, "numbers in links are no years"
    assert explain.page("fedpmvr").year is None


def test_words() -> None:
    costs = explain.page("fedhbm").costs
    assert costs["A client keeps"] == "1 model"
    assert costs["The server keeps besides the model"] == "nothing"
    assert [overview.sizes(value) for value in (0, 1, 1.5, 0.488, 10.001)] == ["0", "1", "1.5", "0.49", "10"]


def test_markdown() -> None:
    text = explain.markdown(explain.page("fedprox"))
    assert text.startswith("# FedProx\n")
    for heading in (*explain.SECTIONS, "Options", "Cost"):
        assert f"\n## {heading}\n" in text
    assert "```text\ny ← y − η (g_i(y) + μ (y − x))\n" in text
    assert "| `mu` | `0.01` |" in text
    assert "| A client sends in a round | 1 model |" in text
    assert "None." in explain.markdown(explain.page("fedavg"))
