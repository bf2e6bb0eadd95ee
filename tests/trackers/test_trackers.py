"""Trackers: every round once, also of runs that are resumed or trained together; the real packages, read back."""

from __future__ import annotations

import json
import math
import shutil
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from torch import nn
from typer.testing import CliRunner

import undrift as ud
from laws import classified, linear
from undrift.cli import app
from undrift.core.extras import MissingExtraError
from undrift.storage import tracked
from undrift.storage.files import write_json
from undrift.trackers.tracker import Log, Tracker, figures, final_figures, flat

pytestmark = pytest.mark.usefixtures("networks_are_tried_once")
TEST = classified((20,))[0]
SETTING: dict[str, Any] = {"rounds": 4, "cohort": 2, "batch_size": 8, "lr": 0.1, "eval_every": 2, "engine": "batched"}
COLUMNS = {"loss", "accuracy", "train_loss", "bytes_down", "bytes_up", "participants", "seconds"}


def begin(out: Path | None, *callbacks: Any, **options: Any) -> ud.Run:
    return ud.simulate("scaffold", linear(), classified(), TEST, out=out, callbacks=callbacks, **SETTING | options)


def resume(out: Path, *callbacks: Any, rounds: int = 4) -> ud.Run:
    return ud.resume(out, rounds, model=linear(), data=classified(), test=TEST, callbacks=callbacks)


def stop(row: dict[str, Any], run: ud.Run) -> bool:
    return run.rounds == 2


# What all have in common, with a tool that keeps everything in memory


@dataclass
class Tool:
    """Runs by their names: the configuration, rounds as they come, final figures."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    broken: bool = False

    def rounds(self, name: str = "1") -> list[int]:
        return [round for round, _ in self.runs[name]["rounds"]]


class Notes(Log):
    def __init__(self, tool: Tool, name: str) -> None:
        self.tool, self.identity = tool, {"run": name}
        self.rounds = max(tool.rounds(name), default=0)

    def write(self, row: dict[str, float], round: int) -> None:
        if self.tool.broken:
            raise OSError("the server is away\nand more")
        self.tool.runs[self.identity["run"]]["rounds"].append((round, row))

    def finish(self, figures: dict[str, float], *, complete: bool) -> None:
        self.tool.runs[self.identity["run"]] |= {"final": figures, "complete": complete}


class Notebook(Tracker):
    def __init__(self, tool: Tool) -> None:
        super().__init__()
        self.tool = tool

    def open(self, run: ud.Run, identity: Mapping[str, str]) -> Log:
        name = identity.get("run") or str(len(self.tool.runs) + 1)
        self.tool.runs.setdefault(name, {"config": run.config, "rounds": []})
        return Notes(self.tool, name)


def test_configuration_rounds_and_final_figures() -> None:
    tool = Tool()
    run = begin(None, Notebook(tool))
    (kept,) = tool.runs.values()
    assert kept["config"]["algorithm"]["name"] == "scaffold"
    assert tool.rounds() == [1, 2, 3, 4]
    for (_, row), expected in zip(kept["rounds"], run.rows, strict=True):
        assert row.keys() >= COLUMNS - ({"loss", "accuracy"} if expected["round"] % 2 else set())
        assert "diverged" not in row
        assert all(row[name] == expected[name] for name in row)
    assert kept["complete"]
    assert kept["final"]["rounds"] == 4
    assert kept["final"]["accuracy"] == run.history.accuracy.iloc[-1]
    assert kept["final"]["best_accuracy"] == run.history.accuracy.max()
    assert kept["final"]["bytes_up"] == run.history.bytes_up.sum()


def test_a_resumed_run_continues_without_doubling(tmp_path: Path) -> None:
    tool = Tool()
    begin(tmp_path / "run", Notebook(tool), stop)
    assert tool.rounds() == [1, 2]
    resume(tmp_path / "run", Notebook(tool))
    assert list(tool.runs) == ["1"]
    assert tool.rounds() == [1, 2, 3, 4]
    resume(tmp_path / "run", Notebook(tool))  # nothing is left to do
    assert tool.rounds() == [1, 2, 3, 4]


def test_rounds_that_it_lacks_are_added(tmp_path: Path) -> None:
    tool = Tool()
    begin(tmp_path / "run", stop)
    resume(tmp_path / "run", Notebook(tool), rounds=3)
    resume(tmp_path / "run")
    resume(tmp_path / "run", Notebook(tool), rounds=5)
    assert tool.rounds() == [1, 2, 3, 4, 5]


def killed_after(round: int, out: Path, *callbacks: Any) -> None:
    """A run whose last checkpoint is of this round, though all four were trained."""

    def copy(row: dict[str, Any], run: ud.Run) -> None:
        if run.rounds == round:
            run.save()
            shutil.copytree(out, out.with_name("copy"), ignore=shutil.ignore_patterns(".lock", "tensorboard*"))

    begin(out, *callbacks, copy)
    for path in out.with_name("copy").iterdir():
        if path.name != tracked.FILE:
            shutil.rmtree(out / path.name) if path.is_dir() else (out / path.name).unlink()
            shutil.move(path, out / path.name)


def test_rounds_that_are_computed_again_are_not_logged_again(tmp_path: Path) -> None:
    tool = Tool()
    killed_after(2, tmp_path / "run", Notebook(tool))
    resume(tmp_path / "run", Notebook(tool), rounds=5)
    assert tool.rounds() == [1, 2, 3, 4, 5]


def test_runs_that_train_together_are_kept_apart(tmp_path: Path) -> None:
    tool = Tool()
    data = ud.FederatedData.from_clients(classified(), TEST)
    comparison = ud.compare(
        ["fedavg"], linear(), data, seeds=2, out=tmp_path, callbacks=[Notebook(tool)], **SETTING | {"rounds": 2}
    )
    assert len(tool.runs) == 2
    for kept, record in zip(tool.runs.values(), comparison.records, strict=True):
        assert [row["train_loss"] for _, row in kept["rounds"]] == list(record.history.train_loss)
        assert kept["config"]["options"]["seed"] == record.seed


def test_a_tool_that_fails_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tool = Tool()

    def fail(row: dict[str, Any], run: ud.Run) -> None:
        tool.broken = run.rounds in (1, 2)

    assert begin(None, Notebook(tool), fail).rounds == 4
    assert caplog.text.count("notebook failed, and the run goes on: the server is away") == 1
    assert "and more" not in caplog.text
    assert tool.rounds() == [1, 2, 3, 4], "added at the end"
    tool.broken = True
    begin(None, Notebook(tool))
    assert "rounds from 1 on are missing there: the server is away" in caplog.text


def test_a_run_that_ends_early(tmp_path: Path) -> None:
    tool = Tool()

    def interrupt(row: dict[str, Any], run: ud.Run) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        begin(None, Notebook(tool), interrupt)
    assert not tool.runs["1"]["complete"]
    torch.manual_seed(0)
    diverging: dict[str, Any] = {"rounds": 20, "lr": 1e18, "loss": lambda out, y: out.square().sum(1)}
    clients = [(x, y.double()) for x, y in classified()]
    run = ud.simulate(
        "fedavg",
        nn.Linear(6, 1).double(),
        clients,
        callbacks=[Notebook(tool)],
        on_divergence="stop",
        **SETTING | diverging,
    )
    assert run.rows[-1]["diverged"]
    assert tool.rounds("2") == list(range(1, run.rounds + 1))
    assert tool.runs["2"]["final"]["diverged"] == 1


def test_another_run_in_the_directory_is_another_one_for_trackers(tmp_path: Path) -> None:
    tool = Tool()
    begin(tmp_path / "run", Notebook(tool), rounds=1)
    begin(tmp_path / "run", Notebook(tool), rounds=2, overwrite=True)
    assert tool.rounds("2") == [1, 2]


@pytest.mark.parametrize("content", [{}, {"trackers": 3}, {"trackers": {"notebook": {"run": 7}}}])
def test_a_damaged_file_of_identities_is_refused(content: dict[str, Any], tmp_path: Path) -> None:
    begin(tmp_path / "run", Notebook(Tool()), rounds=1)
    write_json(tmp_path / "run" / tracked.FILE, content)
    with pytest.raises(ValueError, match=r"trackers\.json is damaged"):
        resume(tmp_path / "run", Notebook(Tool()))


def test_figures_are_finite_numbers() -> None:
    row = {"round": 3, "loss": math.nan, "train_loss": 0.5, "participants": 4, "diverged": False, "word": "x"}
    assert figures(row) == {"train_loss": 0.5, "participants": 4}
    assert final_figures([])["rounds"] == 0
    assert flat({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {"a.b": 1, "a.c.d": [2], "e": None}


def test_every_round_is_a_json_line_as_it_trains(tmp_path: Path) -> None:
    """Whatever the trackers."""
    seen: list[list[dict[str, Any]]] = []

    def look(row: dict[str, Any], run: ud.Run) -> None:
        seen.append([json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text("utf-8").splitlines()])

    begin(tmp_path / "run", look)
    assert [[row["round"] for row in rows] for rows in seen] == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]


# TensorBoard


def events(folder: Path) -> Iterator[tuple[str, int, float]]:
    """All scalars of a folder's files, purged or not."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    for file in sorted(folder.glob("events.*")):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.tensor.float_val and not value.tag.startswith("_hparams_"):
                    yield value.tag, event.step, float(make_ndarray(value.tensor).item())


def test_tensorboard(tmp_path: Path) -> None:
    killed_after(2, tmp_path / "run", ud.trackers.TensorBoard())
    run = resume(tmp_path / "run", ud.trackers.TensorBoard(), rounds=5)
    folder = tmp_path / "run" / "tensorboard"
    assert sorted(path.name for path in (tmp_path / "run").glob("tensorboard*")) == ["tensorboard"]
    found = list(events(folder))
    for name in ("train_loss", "accuracy", "bytes_up", "seconds"):
        expected = [2, 4, 5] if name == "accuracy" else [1, 2, 3, 4, 5]
        assert [step for tag, step, _ in found if tag == name] == expected
    losses = [value for tag, _, value in found if tag == "train_loss"]
    assert losses == pytest.approx(list(run.history.train_loss))
    final = {(tag, step): value for tag, step, value in found if tag.startswith("final/")}
    assert final["final/rounds", 5] == 5
    assert final["final/accuracy", 5] == pytest.approx(run.history.accuracy.iloc[-1])

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulated = EventAccumulator(str(folder))
    accumulated.Reload()
    (text,) = accumulated.Tensors("configuration/text_summary")
    assert '"name": "scaffold"' in text.tensor_proto.string_val[0].decode()


def test_tensorboards_folders(tmp_path: Path) -> None:
    data = ud.FederatedData.from_clients(classified(), TEST)
    tracker = ud.trackers.TensorBoard(tmp_path / "logs")
    short = SETTING | {"rounds": 1}
    ud.compare({"Fed/Avg": "fedavg"}, linear(), data, seeds=2, callbacks=[tracker], **short)
    begin(None, tracker, rounds=1)
    begin(None, tracker, rounds=1)
    names = ["fed-avg-seed-0", "fed-avg-seed-1", "scaffold-seed-0", "scaffold-seed-0-2"]
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == names
    with pytest.raises(ValueError, match="TensorBoard needs a folder"):
        begin(None, ud.trackers.TensorBoard())
    begin(tmp_path / "run", tracker, rounds=1)
    tracked.write(tmp_path / "run", {"tensorboard": {"folder": "../../elsewhere"}})
    with pytest.raises(ValueError, match="must be a plain name"):
        resume(tmp_path / "run", tracker)


# MLflow


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # which is there at once, unlike a database

    def tracker() -> ud.trackers.MLflow:
        return ud.trackers.MLflow("drift", f"file://{tmp_path}/mlruns")

    killed_after(2, tmp_path / "run", tracker())
    run = resume(tmp_path / "run", tracker(), rounds=5)
    client = MlflowClient(f"file://{tmp_path}/mlruns")
    experiment = client.get_experiment_by_name("drift")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == "SCAFFOLD, seed 0"
    assert found.info.status == "FINISHED"
    assert found.data.params["options.lr"] == "0.1"
    history = client.get_metric_history(found.info.run_id, "train_loss")
    assert [(m.step, m.value) for m in history] == list(enumerate(run.history.train_loss, 1))
    assert [m.step for m in client.get_metric_history(found.info.run_id, "accuracy")] == [2, 4, 5]
    assert found.data.metrics["final/rounds"] == 5
    tracked.write(tmp_path / "run", {"mlflow": {"run": "0" * 32}})
    with pytest.raises(ValueError, match=r"MLflow: .*0000"):
        resume(tmp_path / "run", tracker(), rounds=6)


# Weights & Biases


@pytest.fixture
def wandb() -> Iterator[Any]:
    import wandb

    yield wandb
    wandb.teardown()  # its process


def records(file: Path) -> Iterator[bytes]:
    """Those of a log as LevelDB has it, after seven bytes of W&B: blocks of parts with checksum, length and kind."""
    content, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield parts
            parts = b""


def logged(folder: Path) -> list[dict[str, Any]]:
    """The rounds in the file of an offline run."""
    protocol: Any = import_module("wandb.proto.wandb_internal_pb2")
    (file,) = folder.glob("*.wandb")
    rounds = []
    for content in records(file):
        record = protocol.Record()
        record.ParseFromString(content)
        if record.HasField("history"):
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            rounds.append(items | {"_step": record.history.step.num})
    return rounds


def test_wandb_offline(tmp_path: Path, wandb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")

    def tracker() -> ud.trackers.WandB:
        return ud.trackers.WandB("drift", "offline", tmp_path)

    data = ud.FederatedData.from_clients(classified(), TEST)
    comparison = ud.compare(
        ["fedavg"], linear(), data, seeds=2, out=tmp_path / "runs", callbacks=[tracker()], **SETTING | {"rounds": 2}
    )
    homes = {tracked.read(path.parent)["wandb"]["run"]: path.parent for path in tmp_path.rglob(tracked.FILE)}
    assert len(homes) == 2
    name, home = next(iter(homes.items()))
    run = ud.resume(home, 3, model=linear(), data=data, callbacks=[tracker()])
    wandb.teardown()  # its process may still write
    for record in comparison.records:
        each = next(name for name, home in homes.items() if home.name == f"seed-{record.seed}")
        first, *_ = sorted(tmp_path.glob(f"wandb/offline-run-*-{each}"))
        assert [(row["_step"], row["train_loss"]) for row in logged(first)] == list(
            enumerate(record.history.train_loss, 1)
        )
    _, last = sorted(tmp_path.glob(f"wandb/offline-run-*-{name}"))
    assert [(row["_step"], row["train_loss"]) for row in logged(last)] == list(enumerate(run.history.train_loss, 1))


# By name, and what is refused


@pytest.fixture
def undrift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args], prog_name="undrift")


QUICK = ("-m", "softmax", "--clients", "10", "--set", "run.cohort=2", "--set", "run.trackers=tensorboard")


def test_on_the_command_line(undrift: Callable[..., Result], tmp_path: Path) -> None:
    assert undrift("run", "-a", "fedavg", *QUICK, "--rounds", 2, "--out", "x").exit_code == 0
    assert undrift("resume", "x", "--rounds", 3).exit_code == 0
    assert [step for tag, step, _ in events(tmp_path / "x/tensorboard") if tag == "participants"] == [1, 2, 3]
    done = undrift("compare", "-a", "fedavg", *QUICK, "--seeds", 2, "--rounds", 1, "--out", "y")
    assert done.exit_code == 0, done.output
    assert len(list(tmp_path.glob("y/fedavg/seed-*/tensorboard/events.*"))) >= 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("tensorbord", "unknown tracker 'tensorbord'; did you mean 'tensorboard'?"),
        ('["wandb", "wandb"]', "trackers must differ, got wandb, wandb"),
        ("3", "run.trackers must be a name or a list of names, got 3"),
    ],
)
def test_wrong_names_are_refused(given: str, message: str, undrift: Callable[..., Result], tmp_path: Path) -> None:
    result = undrift("run", "-a", "fedavg", "--set", f"run.trackers={given}", "--out", "x")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "x").exists()


def test_tuning_logs_nowhere(undrift: Callable[..., Result]) -> None:
    result = undrift("tune", "-a", "fedavg", "--set", "run.trackers=tensorboard", "--out", "x")
    assert result.exit_code == 2
    assert "run.trackers is for undrift run and undrift compare" in result.stderr


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_names_its_extra(
    name: str, undrift: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    result = undrift("run", "-a", "fedavg", "--set", f"run.trackers={name}", "--out", "x")
    line = f'undrift: error: {name} is not installed; get it with: pip install "undrift[{name}]"\n'
    assert (result.exit_code, result.stderr) == (2, line)
    assert not (tmp_path / "x").exists()
    with pytest.raises(MissingExtraError):
        ud.trackers.available()[name]()


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="dir must be"):
        ud.trackers.TensorBoard(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="experiment must be a text, got 3"):
        ud.trackers.MLflow(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="MLflow: "):
        ud.trackers.MLflow(uri="file:///nowhere")
    with pytest.raises(ValueError, match="mode must be one of"):
        ud.trackers.WandB(mode="ofline")  # type: ignore[arg-type]
