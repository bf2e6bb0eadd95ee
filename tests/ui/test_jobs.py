"""Processes are stopped if they are the run's own, and what was started ends with the server unless it is kept."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from folders import write_run
from processes import started
from undrift.ui.access import Keys
from undrift.ui.app import Live, make_app
from undrift.ui.catalogue import Catalogue, FollowedRun
from undrift.ui.form import Wanted
from undrift.ui.jobs import Job, Jobs, RefusedError
from undrift.ui.serve import _bound

# Holds a run's lock until it is told to stop.
TRAINS = """
import signal, sys
from pathlib import Path
from filelock import FileLock
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
with FileLock(Path(sys.argv[-1]) / ".lock"):
    print("trains", flush=True)
    signal.sigwait({signal.SIGTERM})
    print("saved", flush=True)
    sys.stdin.read()
"""


def followed(root: Path) -> FollowedRun:
    catalogue = Catalogue(root)
    catalogue.refresh()
    (run,) = catalogue.runs.values()
    return run


def holding(home: Path, *words: str) -> list[str]:
    return [sys.executable, "-c", TRAINS, *words, str(home)]


def test_a_command_in_another_terminal_is_stopped_once(tmp_path: Path) -> None:
    home = write_run(tmp_path / "run", [0.5])
    jobs = Jobs(tmp_path)
    with subprocess.Popen(
        holding(home, "undrift"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "trains\n"
            run = followed(tmp_path)
            assert run.status() == ("running", "")
            assert run.holder is not None
            assert (run.holder.pid, run.holder.refusal) == (process.pid, "")
            jobs.stop(run)
            assert process.stdout.readline() == "saved\n"
            assert jobs.is_stopping(run.holder)
            with pytest.raises(RefusedError, match="has been told to stop"):
                jobs.stop(run)
        finally:
            process.communicate("")
    assert process.returncode == 0
    with pytest.raises(RefusedError, match="no process on this machine"):
        jobs.stop(run)


def test_another_program_is_not(tmp_path: Path) -> None:
    home = write_run(tmp_path / "run", [0.5])
    with started(holding(home, "notebook")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "trains\n"
        with pytest.raises(RefusedError, match=f"process {process.pid}"):
            Jobs(tmp_path).stop(followed(tmp_path))
        assert process.poll() is None


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Jobs, Job]]:
    """Something that a page has started."""
    popen = subprocess.Popen

    def waiting(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        code = "import sys; print(sys.argv[-1], flush=True); sys.stdin.read()"
        return popen([sys.executable, "-c", code, command[-1]], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    monkeypatch.setattr("undrift.ui.jobs.subprocess.Popen", waiting)
    jobs = Jobs(tmp_path)
    made = jobs.start(Wanted(["run", "--algorithm=fedavg"], "fedavg-digits"))
    yield jobs, made
    made.process.kill()
    made.process.wait()


def test_folders_are_never_shared(job: tuple[Jobs, Job], tmp_path: Path) -> None:
    jobs, first = job
    assert first.home == tmp_path / "fedavg-digits-1"
    second = jobs.start(Wanted(["run"], "fedavg-digits"))
    assert second.home == tmp_path / "fedavg-digits-2"
    assert jobs.close() == []
    assert [each["over"] for each in jobs.listed()] == [True, True]
    assert [each["error"] for each in jobs.listed()] == ["", ""]
    assert list(tmp_path.iterdir()) == []  # nothing was written to them
    assert first.process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("keep", [False, True])
def test_the_end_of_the_server(job: tuple[Jobs, Job], tmp_path: Path, keep: bool) -> None:
    testclient = pytest.importorskip("starlette.testclient")
    live = Live(tmp_path, Keys(1), keep)
    live.jobs = job[0]
    with testclient.TestClient(make_app(live, loopback=True)):
        assert len(live.jobs.running()) == 1
    assert len(live.jobs.running()) == keep


def test_a_port_that_is_taken() -> None:
    with _bound("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with _bound("127.0.0.1", port) as second:
            assert second.getsockname()[1] != port
    with pytest.raises(ValueError, match="no address"):
        _bound("no such host.invalid", 0)
    with pytest.raises(ValueError, match=r"--host 192\.0\.2\.1"):
        _bound("192.0.2.1", 0)  # of a network for documentation
