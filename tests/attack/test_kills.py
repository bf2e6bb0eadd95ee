"""Runs that are killed at any of their file operations, and writers that want the same directory.

A killed run or comparison that is repeated gives the bits of one that was not. Of several writers one works, and the
others are refused in one line and change nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import undrift as ud
from undrift.cli.results import output_directory
from undrift.reporting.record import TIMES
from undrift.storage.directory import RunDirectory
from undrift.storage.lock import LOCK

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

TOUCHING = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.scandir", "os.listdir"}
ALGORITHMS = ("fedavg", "scaffold", "fedvarp", "fedhbm", "mimemom", "moon", "feddpc")


def split(seed: int) -> ud.FederatedData:
    """The same samples, dealt out differently by every seed, to unequal clients."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(60, 5)).astype("float32"), generator.integers(0, 3, 60)
    dealt = np.random.default_rng(seed).permutation(60)
    return ud.FederatedData(x, y, np.split(dealt, [4, 11, 30, 33, 45]), (x[:20], y[:20]), classes=3)


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3))


def squared(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target[:, None]).square().sum(1)


def forked(action: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> int:
    """Starts a process that does something and ends; returns its number."""
    child = os.fork()
    if not child:
        code = 1
        try:
            prepare()
            action()
            code = 0
        except BaseException:  # whatever it is, this process must not go on with the parent's test
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dies_at(home: Path, count: int, rng: Random) -> Callable[[], None]:
    """For a new process: kill it right before so many operations on files below a directory have been done."""
    left = count

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        if event not in TOUCHING or not args or not isinstance(args[0], str | os.PathLike):
            return
        if not str(args[0]).startswith(str(home)):
            return
        left -= 1
        if left > 0:
            return
        if event == "open" and str(args[0]).endswith("rounds.jsonl") and args[1] == "ab" and rng.random() < 0.8:
            line = b'{"round": 7, "loss": 0.5, "accuracy": 0.25, "tr'
            handle = os.open(args[0], os.O_WRONLY | os.O_APPEND | os.O_CREAT)  # comes here again, with less left
            os.write(handle, line[: rng.randrange(len(line))])
        os.kill(os.getpid(), signal.SIGKILL)

    return lambda: sys.addaudithook(hook)


def killed_until_done(action: Callable[[], object], home: Path, rng: Random) -> None:
    """Repeat until it is not killed, or has been often enough."""
    kills, enough = 0, rng.randint(1, 6)
    while True:
        if rng.random() < 0.8:
            code = exit_code(forked(action, dies_at(home, rng.randint(1, 150), rng)))
        else:
            child = forked(action)
            time.sleep(rng.uniform(0, 0.3))  # any moment will do
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            code = exit_code(child)
        assert code in (0, -signal.SIGKILL)
        if code == 0:
            return
        kills += 1
        if kills == enough:
            action()
            return


def saving(rng: Random) -> Callable[[dict[str, Any], ud.Run], None]:
    share = rng.choice((0.0, 0.3, 0.8))

    def save(row: dict[str, Any], run: ud.Run) -> None:
        if rng.random() < share:
            run.save()

    return save


def options(rng: Random) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "rounds": rng.randint(3, 8),
        "cohort": rng.choice((2, 3, None)),
        "batch_size": rng.choice((4, 7, None)),
        "engine": rng.choice(("batched", "batched:6", "batched:12", "sequential", "auto")),
        "eval_every": rng.choice((1, 2)),
    }
    if rng.random() < 0.3:
        chosen["target"] = rng.choice((0.3, 0.4, 0.5))
    if rng.random() < 0.3:
        chosen["patience"] = rng.choice((1, 2))
    return chosen


@pytest.mark.attack(short=2, long=60)
def test_a_killed_run(rng: Random, tmp_path: Path) -> None:
    algorithm, settings, out = (
        rng.choice(ALGORITHMS),
        options(rng) | {"lr": 0.1, "seed": rng.randrange(9)},
        tmp_path / "x",
    )
    data = split(settings["seed"])

    def run() -> ud.Run:
        callbacks = [saving(rng)]
        if (out / "config.json").exists():
            return ud.resume(out, model=module(), data=data, callbacks=callbacks)
        return ud.simulate(algorithm, module(), data, out=out, callbacks=callbacks, **settings)

    whole = ud.simulate(algorithm, module(), data, **settings)
    killed_until_done(run, out, rng)
    found = ud.resume(out, model=module(), data=data)
    assert_close(found.parameters, whole.parameters, rtol=0, atol=0)
    pd.testing.assert_frame_equal(without_time(found.history), without_time(whole.history), check_exact=True)
    pd.testing.assert_frame_equal(found.clients, whole.clients, check_exact=True)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a disk that is full: files cannot grow beyond so many bytes."""
    resource = pytest.importorskip("resource", reason="Windows has no such limits")
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


@pytest.mark.attack(short=3, long=60)
def test_a_full_disk(rng: Random, tmp_path: Path) -> None:
    algorithm, settings, out = rng.choice(ALGORITHMS), options(rng) | {"lr": 0.1}, tmp_path / "x"

    def run() -> ud.Run:
        if (out / "config.json").exists():
            return ud.resume(out, model=module(), data=split(0), callbacks=[saving(rng)])
        return ud.simulate(algorithm, module(), split(0), out=out, callbacks=[saving(rng)], **settings)

    whole = ud.simulate(algorithm, module(), split(0), **settings)
    for _ in range(rng.randint(1, 4)):
        with files_of_at_most(rng.choice((0, 50, 300, 900, 1500, 3000, 6000))):
            told = ""
            try:
                run()
            except OSError as error:
                told = str(error)
            assert not told or str(out) in told
            assert "\n" not in told
    found = run()
    assert_close(found.parameters, whole.parameters, rtol=0, atol=0)
    pd.testing.assert_frame_equal(without_time(found.history), without_time(whole.history), check_exact=True)
    pd.testing.assert_frame_equal(found.clients, whole.clients, check_exact=True)


@pytest.mark.attack(short=1, long=60)
def test_a_killed_comparison(rng: Random, tmp_path: Path) -> None:
    settings: dict[str, Any] = options(rng) | {
        "algorithms": rng.sample(ALGORITHMS, rng.choice((1, 2))),
        "seeds": rng.choice((2, 3, [3, 0])),
        "lr": rng.choice((0.1, [0.1, 0.02])),
    }
    if rng.random() < 0.25:  # the larger rate diverges
        settings |= {"algorithms": ["fedavg", "scaffold"], "loss": squared, "lr": [0.01, 1e18]}

    def run(out: Path, callbacks: Any = ()) -> ud.Comparison:
        return ud.compare(model=module(), data=split, out=out, callbacks=callbacks, **settings)

    whole = run(tmp_path / "whole")
    killed_until_done(lambda: run(tmp_path / "killed", [saving(rng)]), tmp_path / "killed", rng)
    before = content(tmp_path / "killed")
    again = run(tmp_path / "killed")
    diverged = whole.curves()["diverged"].any()  # a round that diverges is tried again
    assert diverged or content(tmp_path / "killed") == before, "nothing was left to be done"
    pd.testing.assert_frame_equal(without_time(again.curves()), without_time(whole.curves()), check_exact=True)
    assert states(tmp_path / "killed") == states(tmp_path / "whole")


def without_time(history: pd.DataFrame) -> pd.DataFrame:
    """JSON has no infinity: a loss that overflowed is NaN when it is read back."""
    return history.drop(columns=TIMES).replace(np.inf, np.nan)


def content(home: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file() and path.name != LOCK}


def states(home: Path) -> dict[str, Any]:
    """Checksums of the last states of all runs; a run that diverged in its first round has none."""
    found = {str(path.parent.relative_to(home)): RunDirectory(path.parent).find() for path in home.rglob("config.json")}
    return {name: each.checkpoint and (each.checkpoint.round, each.checkpoint.states) for name, each in found.items()}


# Two writers


@contextmanager
def a_process_that_trains(action: Callable[[Any], object]) -> Iterator[int]:
    """A process that is in the middle of a round, until it is killed."""
    reader, writer = os.pipe()

    def pause(row: dict[str, Any], run: ud.Run) -> None:
        if row["round"] == 2:
            os.write(writer, b"x")
            time.sleep(600)

    child = forked(lambda: action([pause]))
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"x", "it ended too early"
        yield child
    finally:
        os.close(reader)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            exit_code(child)


@pytest.mark.attack(short=2, long=30)
def test_a_second_writer(rng: Random, tmp_path: Path) -> None:
    home = tmp_path / "out"
    settings: dict[str, Any] = {"rounds": 4, "cohort": 2, "lr": 0.1, "weighting": "samples"}
    run = home / "scaffold/seed-0"
    writers: dict[str, Callable[[Any], object]] = {
        "simulate": lambda callbacks: ud.simulate(
            "scaffold", module(), split(0), out=run, callbacks=callbacks, **settings
        ),
        "compare": lambda callbacks: ud.compare(
            ["scaffold"], module(), split, seeds=2, out=home, callbacks=callbacks, **settings
        ),
        "resume": lambda callbacks: ud.resume(run, 9, model=module(), data=split(0), callbacks=callbacks),
    }
    whole = ud.simulate("scaffold", module(), split(0), **settings | {"rounds": 9})
    first = rng.choice(("simulate", "compare"))
    with a_process_that_trains(writers[first]) as child:
        before = content(home)
        for name in rng.choices(sorted(writers), k=3):
            with pytest.raises(ValueError, match=r"in use|holds a run already") as caught:
                writers[name](())
            assert "\n" not in str(caught.value)
            assert "seed-" in str(caught.value)
            assert content(home) == before
        assert len(ud.Comparison.from_directories([home]).records[0].history) == 2, "reading needs no lock"
        os.kill(child, signal.SIGKILL)
        exit_code(child)
        found = ud.resume(run, 9, model=module(), data=split(0))
    assert (found.parameters.keys(), found.rounds) == (whole.parameters.keys(), 9)
    # Alone it continues to rounding what was begun together with another.
    exact: dict[str, Any] = {"rtol": 0, "atol": 0} if first == "simulate" else {}
    assert_close(found.parameters, whole.parameters, **exact)


@pytest.mark.attack(short=1, long=20)
def test_many_begin_at_once(rng: Random, tmp_path: Path) -> None:
    """Threads and processes that begin the same run: one of them trains, the others are refused."""
    out, trained = tmp_path / "x", tmp_path / "trained"
    trained.mkdir()
    reader, writer = os.pipe()
    models = [module() for _ in range(5)]  # made here, as threads share PyTorch's generator

    def begin(number: int) -> None:
        with suppress(ValueError):
            ud.simulate("scaffold", models[number], split(0), out=out, rounds=3, cohort=2)
            (trained / str(number)).touch()

    def process(number: int) -> None:
        os.close(writer)
        os.read(reader, 1)  # until all are there
        begin(number)

    children = [forked(lambda number=number: process(number)) for number in range(3)]  # type: ignore[misc]
    os.close(reader)
    os.close(writer)
    threads = [threading.Thread(target=begin, args=(number,)) for number in (3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [exit_code(child) for child in children] == [0, 0, 0]
    assert len(list(trained.iterdir())) == 1
    whole = ud.simulate("scaffold", module(), split(0), rounds=3, cohort=2)
    found = ud.resume(out, model=module(), data=split(0))
    assert_close(found.parameters, whole.parameters, rtol=0, atol=0)


@pytest.mark.attack(short=1, long=10)
def test_no_two_processes_share_a_folder(rng: Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them write to theirs, the others leave nothing behind."""
    monkeypatch.chdir(tmp_path)

    def use(number: int, writes: bool) -> None:
        for _ in range(30):
            with output_directory(None, "fedavg-digits") as home:
                (home / "mine").touch(exist_ok=False)
                if not writes:
                    (home / "mine").unlink()

    wishes = [True, False, *(rng.random() < 0.5 for _ in range(4))]
    children = [forked(lambda n=n, w=w: use(n, w)) for n, w in enumerate(wishes)]  # type: ignore[misc]
    assert [exit_code(child) for child in children] == [0] * len(wishes)
    assert all((home / "mine").exists() for home in (tmp_path / "runs").iterdir())
    assert len(list((tmp_path / "runs").iterdir())) == 30 * sum(wishes)
