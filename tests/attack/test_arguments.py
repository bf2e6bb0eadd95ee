"""Random wrong values for every argument, taken from the declarations: it works, or one line says what is wrong.

Never another kind of error, never a folder before the checks, never a huge allocation or a run that does not end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from inspect import signature
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import undrift as ud
from laws import classified, mlp
from undrift import plugins
from undrift.algorithms import available
from undrift.cli import app
from undrift.cli.settings import SETTINGS
from undrift.client import layout
from undrift.core import check
from undrift.methods.plugin import Plugin
from undrift.simulation import loop, prepare, simulate, together
from undrift.simulation.arguments import Arguments
from undrift.simulation.callbacks import Callback
from undrift.simulation.run import Run

MANY = 6  # values of a case
DATA = classified((4, 3, 5, 2))


class Hostile:
    """An object whose own code fails, whatever it is asked."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __len__(self) -> int:
        raise RuntimeError("no length")


def numbers(rng: Random) -> Any:
    size = rng.choice([0, 0, 1, 1, 2, 3, 27, 30, 31, 32, 33, 52, 62, 63, 64, 70, 400, 20000])
    real = rng.choice([0.0, -0.0, 0.1, 0.5, 1.0, 2.5, math.nan, math.inf, -math.inf, 1e-320, 1e-45, 1e-38, 1e39, 1e300])
    sign = rng.choice([1, 1, -1])
    return rng.choice(
        [
            lambda: sign * 2**size + rng.choice([-1, 0, 1]),
            lambda: sign * 10 ** (size if size > 4 else 12),
            lambda: sign * real,
            lambda: np.float64(real),
            lambda: np.float32(real),
            lambda: np.float16(real),
            lambda: np.longdouble(real),  # type: ignore[no-untyped-call]
            lambda: np.int8(size % 100),
            lambda: np.uint64(2**63),
            lambda: np.array(real),
            lambda: torch.tensor(real),
            lambda: torch.tensor(size, dtype=torch.int8 if size < 100 else torch.int64),
            lambda: Decimal(repr(real)),
            lambda: Fraction(sign, 2 ** min(size, 2000)),
            lambda: complex(real, 1),
            lambda: rng.choice([True, False]),
            lambda: np.bool_(rng.choice([True, False])),
        ]
    )()


def texts(rng: Random) -> str:
    letters = "ab0 .,:()[]{}=/\\'\"<&>\n\t\0\x1b\u202e\udcff٣²１…é"
    return rng.choice(
        [
            "",
            " ",
            "auto",
            "none",
            "None",
            "0.1",
            "1e39",
            "batched:999999999999999999",
            "batched:-1",
            "batched:²",
            "batched:" + "9" * 5000,
            "cuda:99",
            "cuda:99999999999999999999",
            "cpu:-1",
            "fedprox(mu=1e300)",
            "fedprox(mu=0.1",
            "fedprox(mu=__import__('os'))",
            "fedprox(mu=" + "(" * 5000,
            "fedprox(mu=" + "-" * 9000 + "1)",
            "a" + " " * 9000 + "!",
            "(" * 100_000,
            "x" * 1_000_000,
            "\x1b[2J\x1b]0;title\x07",
            "[bold]red[/]",
            "<script>alert(1)</script>",
            "../..",
            "".join(rng.choice(letters) for _ in range(rng.randrange(1, 30))),
        ]
    )


def things(rng: Random) -> Any:
    nested: Any = rng.choice([0, "a", [0]])
    for _ in range(rng.choice([1, 2, 3, 500])):
        nested = [nested]
    cycle: list[Any] = []
    cycle.append(cycle)
    return rng.choice(
        [
            None,
            ...,
            NotImplemented,
            b"bytes",
            bytearray(b"a"),
            object(),
            Hostile(),
            type,
            print,
            lambda: 0,
            lambda *given: None,
            lambda a, b: a,
            {},
            {"a": 1},
            {1: 2},
            {"name": 5},
            {"": []},
            set(),
            {1, 2},
            frozenset("ab"),
            (),
            (1,),
            (i for i in range(3)),
            iter([1]),
            range(3),
            range(10**12),
            np.zeros(3),
            np.zeros((2, 2)),
            np.array([], dtype=object),
            np.array(["a"]),
            np.array("2020-01-01", dtype="datetime64[D]"),
            np.dtype("float32"),
            torch.zeros(3),
            torch.zeros((2, 2)).to_sparse(),
            torch.zeros((), device="meta"),
            torch.float16,
            torch.device("meta"),
            nn.Linear(2, 2),
            Path("a\0b"),
            [],
            [[]],
            [[0, 0]],
            [[10**9]],
            [["a"]],
            [b"\0\1"],
            nested,
            cycle,
            ["fedavg", 5],
            [1, 1],
            [0.1, [0.2]],
            [Hostile()],
            ValueError("an error"),
        ]
    )


def anything(rng: Random) -> Any:
    return rng.choice([numbers, numbers, texts, things])(rng)


@pytest.fixture(autouse=True)
def _one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is accepted trains for one round only, on a machine with little memory."""

    def train(runs: Sequence[Run], callbacks: Sequence[Callback], on_divergence: str) -> None:
        next(loop.rounds(runs, callbacks, on_divergence), None)

    for module in (simulate, together):
        monkeypatch.setattr(module, "train", train)
    monkeypatch.setattr(prepare, "host_left", lambda: 1 << 28)


# Words for what the messages may call it otherwise.
ALSO = {
    "data": ("client", "federation", "x and y", "samples", "target", "label", "argument"),
    "test": ("x and y", "samples", "target", "label"),
    "loss": ("output",),
    "metrics": ("metric",),
    "plugins": ("plug-in", "option"),
    "compress": ("codec",),
    "aggregate": ("aggregation rule",),
    "faults": ("fault",),
    "algorithm": ("option", *(f.name for kind in available().values() for f in fields(kind))),
    "algorithms": ("algorithm", "option", "label"),
    "epochs": ("steps",),
    "optimizer": ("momentum",),
    "out": ("run directory", "started with"),
    "models": ("threshold",),
}


def attempted(what: str, home: Path, call: Callable[..., Any], given: dict[str, Any]) -> Any:
    """What is returned; if it does not work, one line says so, and no folder is left."""
    try:
        return call(**given)
    except ud.DivergenceError:
        return None
    except (ValueError, TypeError) as error:
        kind, message = type(error), str(error)
    assert kind in (ValueError, TypeError), message
    assert "\n" not in message
    assert len(message) < 1200
    assert any(word in message for word in (what, *ALSO.get(what, ()))), f"{what}: {message}"
    assert not home.exists()
    return None


def settings(home: Path) -> dict[str, Any]:
    return {"algorithm": "fedavg", "model": mlp(), "data": DATA, "test": DATA[0], "rounds": 1, "out": home}


def homes(tmp_path: Path) -> Iterator[Path]:
    yield from (tmp_path / str(number) for number in range(MANY))


@pytest.mark.attack(short=8, long=400)
def test_arguments_of_simulate(rng: Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for home in homes(tmp_path):
        name = rng.choice([f.name for f in fields(Arguments)])
        value = anything(rng)
        attempted(name, home, ud.simulate, settings(home) | {name: value})


@pytest.mark.attack(short=3, long=150)
def test_arguments_of_compare(rng: Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [n for n in signature(ud.compare).parameters if n != "options"]
    for home in homes(tmp_path):
        given = {"algorithms": ["fedavg"], **settings(home)}
        del given["algorithm"]
        name, value = rng.choice(names), anything(rng)
        attempted(name, home, ud.compare, given | {name: value})


@pytest.mark.attack(short=2, long=60)
def test_arguments_of_resume(rng: Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ud.simulate(**settings(tmp_path / "run"))
    for _ in range(MANY):
        name, value = rng.choice(list(signature(ud.resume).parameters)), anything(rng)
        given = {"out": tmp_path / "run", "model": mlp(), "data": DATA, "test": DATA[0]} | {name: value}
        attempted(name, tmp_path / "none", ud.resume, given)


@pytest.mark.attack(short=12, long=800)
def test_options_of_algorithms(rng: Random, tmp_path: Path) -> None:
    for home in homes(tmp_path):
        kind: Any = rng.choice([*available().values(), *plugins.available().values()])
        if not fields(kind):
            continue
        name, value = rng.choice(fields(kind)).name, anything(rng)
        made = attempted(name, home, kind, {name: value})
        if made is not None:
            extra = {"plugins": [made]} if issubclass(kind, Plugin) else {"algorithm": made}
            attempted(name, home, ud.simulate, settings(home) | extra)


@pytest.mark.attack(short=4, long=200)
def test_algorithms_as_text(rng: Random, tmp_path: Path) -> None:
    for home in homes(tmp_path):
        name, kind = rng.choice(list(available().items()))
        option = rng.choice([f.name for f in fields(kind)])
        value = rng.choice([check.shown(numbers(rng)), texts(rng), "{'name': 5}", "pgvc(layers=1)", "pgvc(name=5)"])
        text = f"{name}({option}={value})"
        if rng.random() < 0.3:
            place = rng.randrange(len(text))
            text = text[:place] + rng.choice("()=,[]{}'\"\\*\0é\udc80 ") + text[place + rng.randrange(2) :]
        attempted("algorithm", home, ud.simulate, settings(home) | {"algorithm": text})


@pytest.mark.attack(short=4, long=150)
def test_settings_of_the_command_line(rng: Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [f"{section}.{key}" for section, keys in SETTINGS.items() for key in keys]
    paths += [f"algorithm.{option.name}" for option in fields(available()["fedprox"])]
    for home in homes(tmp_path):
        value = rng.choice([check.shown(numbers(rng)), texts(rng), "[" * 3000, "{a=1}", "'full'", "2020-01-01"])
        given = ["--set", f"{rng.choice(paths)}={value}"]
        if rng.random() < 0.2:
            Path("given.toml").write_text("[run]\nrounds = " + value, encoding="utf-8", errors="replace")
            given = ["given.toml"]
        arguments = ["run", *given, "-a", "fedprox", "-m", "softmax", "--clients", "10", "--out", str(home)]
        result = CliRunner().invoke(app, arguments, prog_name="undrift")
        assert isinstance(result.exception, SystemExit | None), repr(result.exception)
        assert result.exit_code in (0, 1, 2)
        if result.exit_code == 2:
            assert result.stderr.startswith("undrift: error: ")
            assert result.stderr.count("\n") == 1
            assert not home.exists()


def test_values_that_hold_one_number(tmp_path: Path) -> None:
    """Numbers of NumPy, torch and the standard library are numbers, in labels and in run directories as well."""
    for number in (np.float32(0.5), np.array(0.5), torch.tensor(0.5), Fraction(1, 2), Decimal("0.5")):
        home = tmp_path / type(number).__module__ / type(number).__name__
        algorithm = ud.algorithms.FedProx(mu=number)  # type: ignore[arg-type]
        run = ud.simulate(algorithm, mlp(), DATA, rounds=np.int64(1), lr=number, out=home)
        assert (run.label, run.config["options"]["lr"], run.config["options"]["rounds"]) == ("FedProx(mu=0.5)", 0.5, 1)
        assert ud.resume(home, model=mlp(), data=DATA).rounds == 1
    assert isinstance(ud.algorithms.FedPVR().layers, layout.AtMost)
