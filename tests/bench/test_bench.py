"""`undrift bench`: equal work in the plain loop, summaries, table, chart, files, and what is said of failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from torch import Tensor
from typer.testing import CliRunner

import undrift as ud
from processes import LIMIT, is_running, started, wait_until
from undrift import models
from undrift.bench import environments, prepare, session, systems, workloads
from undrift.bench.chart import draw
from undrift.bench.environments import MissingError
from undrift.bench.measure import FailedError, measure
from undrift.bench.peers import plain_loop, torch_side
from undrift.bench.peers.job import Job
from undrift.bench.process_tree import ProcessTree
from undrift.bench.results import Measurement, Results, machine
from undrift.bench.session import Session
from undrift.bench.systems import System
from undrift.bench.table import figures, notes, seconds, table
from undrift.bench.workloads import WORKLOADS, Workload
from undrift.cli import app
from undrift.cli import bench as bench_cli

TINY = Workload(
    name="W3",
    title="tiny",
    data="mnist",
    shape=(1, 4, 4),
    net="softmax",
    clients=6,
    samples=5,
    cohort=2,
    batch_size=2,
    lr=0.1,
    warm_up=1,
    rounds=2,
    seconds=0.01,
)
Undrift = Callable[..., Result]


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def undrift() -> Undrift:
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args], prog_name="undrift")


# equal work


def clients(alike: bool) -> tuple[Tensor, Tensor]:
    """Five clients of seven samples; `alike` ones hold the same sample seven times, so that no order matters."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 1 if alike else 7, 1, 4, 4, generator=generator).expand(5, 7, 1, 4, 4).contiguous()
    y = torch.randint(10, (5, 1 if alike else 7), generator=generator).expand(5, 7).contiguous()
    return x, y


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
@pytest.mark.parametrize(("alike", "batch_size"), [(False, 7), (True, 3)], ids=["full batches", "short last batch"])
def test_the_plain_loop_does_what_undrift_does(algorithm: str, alike: bool, batch_size: int) -> None:
    x, y = clients(alike)
    cohorts = [[0, 3], [3, 1], [4, 0], [1, 3]]  # clients come back, so that their states matter
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 10))
    run = ud.simulate(
        algorithm, model, list(zip(x, y, strict=True)), rounds=4, cohort=cohorts, batch_size=batch_size, lr=0.3
    )
    loop: plain_loop.FedAvg | plain_loop.Scaffold
    if algorithm == "scaffold":
        loop = plain_loop.Scaffold(model, 0.3, batch_size, 5)
    else:
        loop = plain_loop.FedAvg(model, 0.3, batch_size)
    for cohort in cohorts:
        loop.round(cohort, x, y)
    for name, value in loop.model.named_parameters():
        torch.testing.assert_close(value.detach(), run.parameters[name], rtol=1e-5, atol=1e-5)


def test_the_plain_loop_sees_every_sample_once() -> None:
    x, y = clients(alike=False)
    seen: list[Tensor] = []
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 10))
    loop = plain_loop.FedAvg(model, 0.3, 3)
    loop.local.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    loop.round([2], x, y)
    assert [len(batch) for batch in seen] == [3, 3, 1]
    given, used = (torch.cat(list(batches)).flatten(1) for batches in ((x[2],), seen))
    assert sorted(map(tuple, given.tolist())) == sorted(map(tuple, used.tolist()))


@pytest.mark.parametrize("name", ["W1", "W2", "W3"])
def test_the_nets_are_the_named_models(name: str) -> None:
    work = WORKLOADS[name]
    named, net = models.build(work.net, work.shape, 10), torch_side.build(work.net, work.shape)
    net.load_state_dict(named.state_dict())
    x = torch.rand(2, *work.shape)
    assert torch.equal(net(x), named(x))


def test_workloads_fit_their_data() -> None:
    for work in WORKLOADS.values():
        assert work.clients * work.samples <= {"mnist": 60_000, "cifar10": 50_000}[work.data]
        assert torch_side.build(work.net, work.shape)(torch.rand(1, *work.shape)).shape == (1, 10)


# a run from end to end, with a driver in a process of its own


def driver(tmp_path: Path, code: str) -> System:
    """A system whose driver is this code; it finds job.py as the real ones do."""
    script = tmp_path / "driver.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(systems.DRIVERS)!r})\n{code}")
    return System("driver", "a driver", str(script), 1)


def tiny_job(data: str = "", answer: str = "") -> Job:
    return Job(
        net="softmax",
        algorithm="fedavg",
        batch_size=2,
        lr=0.1,
        cohorts=[[0]],
        data=data,
        answer=answer,
        threads=1,
        processes=1,
        device="cpu",
        precision=None,
    )


ANSWERING = """
from job import Clock, Job, answer
job = Job.read(sys.argv[1])
assert job.samples()[0].shape == (6, 5, 1, 4, 4) and job.test() is None
clock = Clock()
for cohort in job.cohorts:
    assert len(cohort) == 2
    clock.lap()
answer(job, clock, None, ["numpy"])
"""


class Quiet:
    def __init__(self) -> None:
        self.said: list[str] = []

    def doing(self, text: str) -> None:
        self.said.append(text)

    def did(self, text: str, seconds: float) -> None:
        self.said.append(text)

    def note(self, text: str) -> None:
        self.said.append(text)


def take_turns(monkeypatch: pytest.MonkeyPatch, *taking_part: System, repeats: int = 2) -> tuple[Results, Quiet]:
    monkeypatch.setattr(session, "select_systems", lambda *_: list(taking_part))
    asked = Session([TINY], None, None, repeats, device="cpu", precision=None)
    results, display = asked.open_results(None), Quiet()
    asked.run(results, None, display)
    return results, display


def test_systems_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = driver(tmp_path, ANSWERING)
    second = System("second", "the second", first.driver, 1)
    results, display = take_turns(monkeypatch, first, second)
    assert [m.system for m in results.measurements] == ["driver", "second", "driver", "second"]
    assert len({m.turn for m in results.measurements}) == 2
    one = results.measurements[0]
    assert len(one.seconds) == TINY.rounds, "warm-up rounds are not counted"
    assert one.accuracy is None, "on random samples accuracy means nothing"
    assert one.startup > 0
    assert any("mnist is not here" in line for line in display.said)


def test_a_driver_that_fails_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, display = take_turns(monkeypatch, driver(tmp_path, "raise RuntimeError('out of luck')"))
    assert not results.measurements
    (absent,) = results.absent
    assert "out of luck" in absent.why
    log = Path(absent.why.rpartition("log: ")[2])
    assert "Traceback" in log.read_text()
    assert sum("out of luck" in line for line in display.said) == 1
    assert [row.why for row in results.rows()] == [absent.why]
    assert any("out of luck" in note for note in notes(results))


def test_a_driver_that_hangs_is_ended_with_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"
    mark = tmp_path / "child"
    code = f"import subprocess, time\nopen({str(mark)!r}, 'w').write(str({child}.pid))\ntime.sleep(600)"
    job = tiny_job(answer=str(tmp_path / "answer.json"))
    monkeypatch.setattr(time, "time", lambda: 4.0 if has_text(mark) else 0.0)  # late as soon as all have started
    with pytest.raises(FailedError, match="timed out after 3 s"):
        measure(driver(tmp_path, code), job, python=Path(sys.executable), warm_up=0, log=tmp_path / "log", limit=3)
    assert not is_running(int(mark.read_text()))


def has_text(file: Path) -> bool:
    return file.exists() and bool(file.read_text())


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from /proc")
def test_memory_counts_children_and_theirs() -> None:
    code = "import time; held = bytearray(60_000_000); print('grown', flush=True); time.sleep(600)"
    for _ in range(2):
        code = f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {code!r}]); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    tree = ProcessTree(process)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        tree.sample_memory()
    finally:
        tree.kill()
    assert tree.peak is not None
    assert tree.peak > 60_000_000
    assert process.poll() is not None


def test_real_samples_are_split_among_clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Clients have different samples, labels stay with their images, and pixels are normalised."""
    x = np.arange(40, dtype=np.uint8).repeat(16).reshape(40, 1, 4, 4)
    arrays = {"train_x": x, "train_y": np.arange(40), "test_x": x[:3], "test_y": np.arange(3)}
    monkeypatch.setattr("undrift.data.cache.manifest", lambda name: {})
    monkeypatch.setattr("undrift.data.cache.arrays", lambda name: arrays)
    prepare.export(TINY, tmp_path / "data.npz")
    job = tiny_job(data=str(tmp_path / "data.npz"))
    samples, labels = job.samples()
    assert labels.shape == (6, 5)
    assert len(np.unique(labels)) == 30
    assert np.allclose(255 * (job.arrays["std"][0, 0] * samples[:, :, 0, 0, 0] + job.arrays["mean"][0, 0]), labels)
    test = job.test()
    assert test is not None
    assert test[1].tolist() == [0, 1, 2]
    assert [p.shape for p in job.parameters()] == [(10, 16), (10,)]


def test_cohorts_do_not_depend_on_how_many_rounds_follow() -> None:
    assert prepare.cohorts(TINY, 9)[:4] == prepare.cohorts(TINY, 4)


# summaries


FACTS: dict[str, Any] = {
    "startup": 3.0,
    "peak_bytes": 500_000_000,
    "device_bytes": None,
    "accuracy": 0.875,
    "versions": {"torch": "2.13.0"},
}


def measured(system: str, turn: str, seconds: float, **others: Any) -> Measurement:
    return Measurement("W3", system, system, "2 threads", turn, [seconds] * 3, **FACTS | others)


@pytest.fixture
def results() -> Results:
    """A machine that is half as fast in its second turn."""
    how = {"rounds": 3, "warm_up": 1, "data": "mnist"}
    found = Results(machine("cpu"), None, {"W3": how})
    for turn, slow in (("1", 1), ("2", 2)):
        found.measurements += [measured("undrift", turn, 0.02 * slow), measured("plain", turn, 0.1 * slow)]
    return found


def test_ratios_are_taken_within_a_turn(results: Results) -> None:
    results.measurements.append(measured("late", "2", 0.1))
    rows = {row.system: row for row in results.rows()}
    assert rows["undrift"].ratio == pytest.approx(5)
    assert rows["plain"].ratio == pytest.approx(1)
    assert rows["late"].ratio == pytest.approx(2), "it saw the slow turn only"
    undrift = rows["undrift"]
    assert (undrift.fastest, undrift.seconds, undrift.slowest) == pytest.approx((0.02, 0.03, 0.04))


def test_table_and_notes(results: Results) -> None:
    from rich.console import Console

    def line(width: int) -> str:
        console = Console(width=width)
        with console.capture() as captured:
            console.print(table(results, width))
        return next(line for line in captured.get().splitlines() if "undrift" in line)

    for text in ("W3", "2 threads", "0.0300", "0.0200 – 0.0400", "5.00×", "3.0 s", "500 MB", "87.5 %"):
        assert text in line(108)
    for text in ("W3", "2 threads", "0.0300", "5.00×", "3.0 s", "87.5 %"):
        assert text in line(80), "a narrow terminal shows what matters"
    assert any("1000 clients × 60" in note and "3 rounds after 1" in note for note in notes(results))
    assert any("torch 2.13.0" in note for note in notes(results))


@pytest.mark.parametrize(
    ("value", "shown"), [(0.00746, "0.00746"), (0.0211, "0.0211"), (0.787, "0.787"), (5.4, "5.40"), (123.4, "123")]
)
def test_seconds_have_three_digits(value: float, shown: str) -> None:
    assert seconds(value) == shown


def test_what_is_not_known_is_a_dash(results: Results) -> None:
    results.measurements = [measured("alone", "1", 2.0, accuracy=None, peak_bytes=None)]
    (row,) = results.rows()
    shown = figures(row)
    assert (shown["s/round"], shown["Start-up"]) == ("2.00", "3.0 s")
    assert {shown[heading] for heading in ("Faster", "Memory", "Accuracy", "On GPU")} == {"–"}


def test_memory_of_a_gpu_is_shown_where_there_is_one(results: Results) -> None:
    assert "On GPU" not in [column.header for column in table(results, 200).columns]
    results.measurements = [measured("undrift", "1", 0.004, device_bytes=2_000_000_000)]
    assert "On GPU" in [column.header for column in table(results, 200).columns]
    assert figures(results.rows()[0])["On GPU"] == "2.0 GB"


def test_chart(results: Results, tmp_path: Path) -> None:
    picture = draw(results, tmp_path / "deep" / "chart.svg").read_text()
    assert picture.startswith("<?xml")
    assert picture == draw(results, tmp_path / "again.svg").read_text(), "the same results give the same file"
    more = measured("third", "1", 0.3)
    results.measurements.append(more)
    assert picture != draw(results, tmp_path / "chart.svg").read_text()


def test_an_empty_chart_is_refused(results: Results, tmp_path: Path) -> None:
    results.measurements = []
    with pytest.raises(ValueError, match="nothing to draw"):
        draw(results, tmp_path / "chart.svg")


# files


def begin(file: Path, **others: Any) -> Results:
    asked: dict[str, Any] = {
        "workloads": [WORKLOADS["W3"]],
        "peers": None,
        "rounds": 3,
        "repeats": 1,
        "device": "cpu",
        "precision": None,
    }
    return Session(**asked | others).open_results(file)


def test_results_are_added_to_a_file(results: Results, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "results.json"
    results.works["W3"] = begin(tmp_path / "none").works["W3"]
    results.write(file)
    assert Results.read(file) == results
    joined = begin(file, workloads=[WORKLOADS["W3"], WORKLOADS["W1"]])
    assert joined.measurements == results.measurements
    assert set(joined.works) == {"W3", "W1"}


def test_what_cannot_be_compared_is_not_mixed(results: Results, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    results.works["W3"] = begin(tmp_path / "none").works["W3"]
    results.write(file)
    with pytest.raises(ValueError, match=r"holds W3 with .*'rounds': 3.*not .*'rounds': 4"):
        begin(file, rounds=4)
    with pytest.raises(ValueError, match="another precision"):
        begin(file, precision="bf16")
    results.machine |= {"processor": "an abacus"}
    results.write(file)
    with pytest.raises(ValueError, match=r"another machine.*an abacus"):
        begin(file)


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"format": 1}', '{"format": 9, "measurements": []}', "no json"])
def test_another_kind_of_file_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="does not hold results of undrift bench"):
        begin(file)
    assert file.read_text() == text


# peers


def test_peers_by_name() -> None:
    def names(peers: str | None, device: str = "cpu", compiled: bool = False) -> list[str]:
        return [system.environment or system.name for system in systems.select(peers, device, 10, compiled)]

    assert names(None) == ["undrift", "plain"]
    assert set(names("all")) == {"undrift", "plain", "fluke", "flower", "pfl", "fedjax"}
    assert names("fluke, Flower,fluke") == ["undrift", "plain", "fluke", "flower"]
    assert names("all", "cuda", compiled=True) == ["undrift", "plain", "jax"]
    assert names(None, compiled=True) == ["undrift", "undrift-compiled", "plain"]


def test_every_system_has_its_driver_and_versions() -> None:
    for device in systems.PEERS:
        for system in systems.select("all", device, 10, compiled=True):
            assert (systems.DRIVERS / system.driver).is_file()
            if system.environment is not None:
                pins = (systems.DRIVERS / f"{system.environment}.txt").read_text().split()
                assert pins
                assert all("==" in pin for pin in pins)


def test_a_peer_that_cannot_be_installed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pip fails at once; nothing is fetched."""
    calls: list[list[str]] = []

    def fail(command: list[str], stdout: Any, **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        stdout.write("ERROR: No matching distribution found for fluke-fl\nnote: try again\n")
        stdout.flush()
        return subprocess.CompletedProcess(command, int("pip" in command))

    monkeypatch.setattr(subprocess, "run", fail)
    (fluke,) = systems.select("fluke", "cpu", 10, compiled=False)[2:]
    results, display = take_turns(monkeypatch, fluke)
    (absent,) = results.absent
    assert "fluke cannot be installed: ERROR: No matching distribution found for fluke-fl" in absent.why
    assert Path(absent.why.rpartition("log: ")[2]).is_file()
    assert absent.why in display.said
    assert not results.measurements
    assert [part for part in calls[1] if part.startswith("torch")] == ["torch==2.13.0"], "PyTorch comes alone"


def test_an_environment_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def succeed(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", succeed)
    (fedjax,) = systems.select("fedjax", "cpu", 10, compiled=False)[2:]
    first = environments.python(fedjax, lambda what: None)
    count = len(calls)
    assert environments.python(fedjax, lambda what: None) == first
    assert len(calls) == count


def test_a_module_that_is_not_here_is_reported() -> None:
    with pytest.raises(MissingError, match="needs no_such_module, which is not installed"):
        environments.python(System("x", "X", "run_jax.py", 1, module="no_such_module"), lambda what: None)


def test_scaffold_is_measured_only_where_it_is_implemented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "python", lambda system, say: Path(system.name))
    asked = Session([WORKLOADS["W5"]], "all", None, 1, device="cpu", precision=None)
    results = asked.open_results(None)
    ready = asked._installed(WORKLOADS["W5"], results, Quiet())
    assert {system.name for system in ready} == {"undrift", "plain", "fluke", "pfl-1"}
    assert {absent.label for absent in results.absent} >= {"Flower (Ray)", "FedJAX"}


# the command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--work", "W9"], "--work must be one of 'W1', 'W2', 'W3', 'W4', 'W5', got 'W9'"),
        (["--work", ","], "--work must name at least one"),
        (["--peers", "flwr", "--device", "cpu"], "--peers on a CPU must be one of 'fluke', 'flower', 'pfl', 'fedjax'"),
        (["--rounds", "0"], "0 is not in the range x>=1"),
        (["--repeats", "none"], "not a valid int"),
        (["--precision", "fp8"], "--precision must be one of 'tf32', 'fp32', 'bf16', got 'fp8'"),
        (["--precision", "tf32", "--device", "cpu"], "is for a GPU"),
        (["--device", "tpu"], "device must be 'cpu', 'cuda' or 'mps'"),
        (["--chart", "bars.gif"], "must be one of '.svg', '.png', '.pdf', got '.gif'"),
    ],
)
def test_mistakes_are_refused(arguments: list[str], message: str, undrift: Undrift) -> None:
    result = undrift("bench", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("undrift: error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


@pytest.mark.parametrize(
    ("arguments", "peers"),
    [
        ([], None),
        (["--peers"], "all"),
        (["--peers", "--rounds", "2"], "all"),
        (["--rounds", "2", "--peers", "fluke,pfl"], "fluke,pfl"),
        (["--peers=fluke"], "fluke"),
    ],
)
def test_peers_alone_means_all(
    arguments: list[str], peers: str | None, undrift: Undrift, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str | None] = set()

    def nobody(peers: str | None, *_: Any, **__: Any) -> list[System]:
        asked.add(peers)
        return []

    monkeypatch.setitem(workloads.WORKLOADS, "W3", TINY)
    monkeypatch.setattr(session, "select_systems", nobody)
    assert undrift("bench", "--work", "w3", "--device", "cpu", *arguments).exit_code == 0
    assert asked == {peers}


@pytest.mark.long
def test_bench(undrift: Undrift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """undrift and the plain loop for real, on a workload that takes no time."""
    monkeypatch.setitem(workloads.WORKLOADS, "W3", TINY)
    file, chart = tmp_path / "bench.json", tmp_path / "bench.svg"
    result = undrift("bench", "--work", "w3", "--repeats", 1, "--device", "cpu", "--json", file, "--chart", chart)
    assert result.exit_code == 0, result.stderr
    assert "plain PyTorch loop" in result.stdout
    assert f"results: {file}\nchart: {chart}\n" in result.stdout
    assert "mnist is not here" in result.stderr
    assert [m["system"] for m in json.loads(file.read_text())["measurements"]] == ["undrift", "plain"]
    assert chart.is_file()


def test_ctrl_c_leaves_the_results_so_far(undrift: Undrift, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, times = tmp_path / "bench.json", iter([0.02, 0.1, 0.04, 0.2])

    def interrupted(*_: Any, **__: Any) -> dict[str, Any]:
        if (time := next(times, None)) is None:
            raise KeyboardInterrupt
        return FACTS | {"seconds": [time] * 3}

    monkeypatch.setitem(workloads.WORKLOADS, "W3", TINY)
    monkeypatch.setattr(
        session, "select_systems", lambda *_: [System(name, name, "", 1) for name in ("undrift", "plain")]
    )
    monkeypatch.setattr(session, "measure", interrupted)
    result = undrift("bench", "--work", "W3", "--repeats", 3, "--device", "cpu", "--json", file)
    assert result.exit_code == 130
    assert f"undrift: interrupted; results so far are in {file}" in result.stderr
    assert "5.00×" in result.stdout
    assert len(Results.read(file).measurements) == 4


@pytest.mark.skipif(os.name == "nt", reason="needs signals")
def test_sigterm_ends_the_driver_too(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from undrift.bench import session, systems
from undrift.cli import main
session.select_systems = lambda *_: [systems.System("slow", "slow", {str(tmp_path / "driver.py")!r}, 1)]
sys.argv = ["undrift", "bench", "--work", "W3", "--device", "cpu"]
main()
"""
    mark = tmp_path / "driver"
    (tmp_path / "driver.py").write_text(
        f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    )
    with started([sys.executable, "-c", code], env=os.environ | {"UNDRIFT_CACHE": str(tmp_path / "cache")}) as bench:
        wait_until(lambda: has_text(mark), bench)
        bench.terminate()
        bench.communicate(timeout=LIMIT)
        assert bench.returncode == 143
    assert not is_running(int(mark.read_text()))


def test_the_bar_shows_what_is_going_on() -> None:
    import io

    from rich.console import Console
    from rich.progress import Progress

    out = io.StringIO()
    with Progress(console=Console(file=out, force_terminal=True, width=120)) as progress:
        bar = bench_cli._Bar(progress, 10)
        bar.doing("W3 [fluke], 1 of 2")
        bar.did("W3 fluke: 0.1 s per round", 5)
        bar.note("a [warning]")
        assert progress.tasks[0].percentage == 50
        assert progress.tasks[0].description == r"W3 \[fluke], 1 of 2"
    assert "W3 fluke: 0.1 s per round" in out.getvalue()
    assert "a [warning]" in out.getvalue()
