"""Streams that are closed, odd encodings, labels that a terminal would obey, packages that do not load: no harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

import undrift as ud
from laws import classified, mlp
from undrift import algorithms, overview
from undrift.cli import app
from undrift.core.log import printable
from undrift.simulation.progress import progress_bar

DATA = classified((4, 3, 5))
PARTS: tuple[str, ...] = (
    "FedAvg",
    "a",
    "A",
    " ",
    "\x1b[31m",
    "\x1b]0;t\x07",
    "\n",
    "\r",
    "\t",
    "[bold]",
    "[/]",
    "<script>",
    "</td>",
)
PARTS += (
    "&amp;",
    "\u202e",
    "\u200f",
    "\u2028",
    "\udcff",
    "é",
    "方法",
    "/",
    "\\",
    "..",
    ".",
    "-",
    "'",
    '"',
    "{x}",
    "x" * 300,
)
HARMFUL = "\x1b\x07\r\u202e\u200f\u2028"


@pytest.mark.attack(short=4, long=150)
def test_labels(rng: Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own folder inside `out`, and whatever shows it shows no control characters."""
    monkeypatch.chdir(tmp_path)
    labels = {"".join(rng.choice(PARTS) for _ in range(rng.randrange(1, 6))) for _ in range(4)}
    chosen = {label: f"fedprox(mu={i + 1})" for i, label in enumerate(sorted(labels)) if label.strip()}
    if not chosen:
        return
    if any("\udcff" in label for label in chosen):  # a byte of the command line that is no UTF-8
        with pytest.raises(ValueError, match="the label of an algorithm must be a text in UTF-8"):
            ud.compare(chosen, mlp(), DATA, DATA[0], rounds=1, out="out")
        assert not list(tmp_path.iterdir())
        return
    comparison = ud.compare(chosen, mlp(), DATA, DATA[0], rounds=1, out="out")
    assert {r.label: r.config["algorithm"]["options"]["mu"] for r in comparison.records} == {
        label: float(text.removeprefix("fedprox(mu=").removesuffix(")")) for label, text in chosen.items()
    }
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    homes = list(Path("out").glob("*/seed-0/config.json"))
    assert {json.loads(home.read_text())["label"] for home in homes} == set(chosen)
    again = ud.compare(chosen, mlp(), DATA, DATA[0], rounds=1, out="out")
    assert [r.label for r in again.records] == [r.label for r in comparison.records]
    result = CliRunner().invoke(app, ["report", "out"], prog_name="undrift")
    assert result.exit_code == 0, result.output
    assert not set(HARMFUL) & set(result.output)
    page = Path("out/report.html").read_text(encoding="utf-8")
    assert "<script>a" not in page
    with progress_bar(next(iter(chosen)), 1) as tick:
        tick(1, None)


@pytest.mark.attack(short=20, long=2000)
def test_printable(rng: Random) -> None:
    text = "".join(chr(rng.choice([rng.randrange(0x110000), rng.randrange(0x300)])) for _ in range(30))
    shown = printable(text)
    assert not any(c in shown for c in HARMFUL)
    shown.encode("utf-8")
    assert printable(shown) == shown


MODULES: dict[str, str] = {
    "fails to import": "import a_package_that_is_not_there",
    "has no syntax": "def f(:",
    "exits": "import sys; sys.exit(3)",
    "divides by zero": "1 / 0",
    "raises many lines": "raise RuntimeError('one\\x1b[31m\\ntwo')",
    "is no class": "Found = 5",
    "is another class": "Found = int",
    "is an instance": "from undrift.algorithms import FedAvg; Found = FedAvg()",
    "has nothing": "",
    "takes a name": "import undrift as ud\nclass FedAvg(ud.Algorithm): pass\nFound = FedAvg",
    "has no name": "import undrift as ud\nclass Found(ud.Algorithm):\n    name = None",
}
GOOD = "import undrift as ud\nclass {name}(ud.Algorithm):\n    '''A title.'''\nFound = {name}"


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], None]]:
    """Registers modules with this text as entry points of other packages."""

    def register(texts: dict[str, str]) -> None:
        entries = []
        for number, (name, text) in enumerate(texts.items()):
            module = f"{tmp_path.name.replace('-', '_')}_{number}"
            (tmp_path / f"{module}.py").write_text(text)
            entries.append(EntryPoint(name, f"{module}:Found", "undrift.algorithms"))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(algorithms, "entry_points", lambda group: entries)
        algorithms._of_other_packages.cache_clear()

    yield register
    monkeypatch.undo()
    algorithms._of_other_packages.cache_clear()


@pytest.mark.attack(short=4, long=60)
def test_entry_points(
    rng: Random,
    registered: Callable[[dict[str, str]], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = rng.sample(list(MODULES), rng.randrange(1, 5))
    texts = [(name, MODULES[name]) for name in broken]
    texts += [("good", GOOD.format(name="Good")), ("again", GOOD.format(name="Good"))]
    rng.shuffle(texts)
    registered(dict(texts))
    for _ in range(2):
        run = ud.simulate("good", mlp(), DATA, rounds=1)
        assert run.label == "Good"
        ud.simulate("fedavg", mlp(), DATA, rounds=1)
        with pytest.raises(ValueError, match="unknown algorithm 'goood'; did you mean 'good'"):
            ud.simulate("goood", mlp(), DATA, rounds=1)
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    message = warnings[0].getMessage()
    assert all(repr(name) in message for name in broken)
    assert "\n" not in message
    assert available_built_in() == 37


def available_built_in() -> int:
    return sum(kind.__module__.startswith("undrift.") for kind in algorithms.available().values())


def test_commands_work_beside_a_broken_entry_point(registered: Callable[[dict[str, str]], None]) -> None:
    unusable = GOOD.format(name="Bad").replace("'''A title.'''", "def corrections(self, setting): raise KeyError(5)")
    registered(MODULES | {"bad": unusable})
    for arguments in (["list", "algorithms"], ["explain", "fedavg"], ["run", "--help"]):
        result = CliRunner().invoke(app, arguments, prog_name="undrift")
        assert result.exit_code == 0, result.output
    rows = json.loads(CliRunner().invoke(app, ["list", "algorithms", "--json"], prog_name="undrift").stdout)
    assert [row["name"] for row in rows] == list(overview.algorithms())


# In processes of their own

RUN = "run -a fedavg -m softmax --clients 10 --rounds 2 --out run"
STREAMS: dict[str, tuple[str, int]] = {  # what a shell does with the command, and its exit code
    "a reader that leaves": ("set -o pipefail; {} | true", 0),
    "closed output": ("{} >&-", 0),
    "all closed": ("{} >&- 2>&- <&-", 0),
    "closed errors": ("{} 2>&-", 0),
    "no space": ("{} > /dev/full", 2),
    "ascii": ("LC_ALL=C PYTHONIOENCODING=ascii PYTHONUTF8=0 {}", 0),
    "a dumb terminal": ("env -u HOME TERM=dumb COLUMNS=1 {}", 0),
    "odd name": ("{}$'\\xff\\x1b[31m'", 0),
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="not this system")
@pytest.mark.attack(short=1, long=24)
def test_streams(rng: Random, tmp_path: Path) -> None:
    """Training ends with its checkpoint and the right exit code, and nobody sees a traceback."""
    name = rng.choice(list(STREAMS))
    command, code = STREAMS[name]
    script = command.format(f"{sys.executable} -m undrift {RUN}")
    found: Any = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, check=False)
    (home,) = tmp_path.iterdir()
    assert found.returncode == code, (name, found.stderr)
    assert (home / "checkpoints" / "000002").is_dir()
    assert len((home / "rounds.jsonl").read_text().splitlines()) == 2
    for words in (b"Traceback", b"Exception ignored", b"Broken", b"\x1b"):
        assert words not in found.stderr + found.stdout, name


def test_a_page_for_nobody(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    arguments = [sys.executable, "-m", "undrift", "list", "datasets"]
    found = subprocess.run(arguments, stdout=writing, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    os.close(writing)
    assert (found.returncode, found.stderr) == (0, b"")
