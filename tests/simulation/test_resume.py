"""A run that was stopped, killed or cut off goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from laws import classified, mlp
from undrift.reporting.record import TIMES
from undrift.simulation.describe import _description, check_same
from undrift.storage.checkpoint import Checkpoint
from undrift.storage.directory import RunDirectory
from undrift.storage.files import write_json

pytestmark = pytest.mark.usefixtures("networks_are_tried_once")
SETTINGS: dict[str, Any] = {"rounds": 6, "cohort": 2, "batch_size": 4, "lr": 0.1}
TEST = classified((20,))[0]


def begin(out: Path | None = None, algorithm: Any = "scaffold", **options: Any) -> ud.Run:
    return ud.simulate(algorithm, mlp(), classified(), test=TEST, out=out, **SETTINGS | options)


def continued(out: Path, **options: Any) -> ud.Run:
    objects: dict[str, Any] = {"model": mlp(), "data": classified(), "test": TEST}
    return ud.resume(out, **objects | options)


def after(count: int) -> list[Any]:
    """A callback that ends a run after so many rounds."""
    return [lambda row, run: row["round"] == count]


def assert_same(run: ud.Run, other: ud.Run) -> None:
    assert_close(run.parameters, other.parameters, rtol=0, atol=0)
    assert run.history.drop(columns=TIMES).equals(other.history.drop(columns=TIMES))
    assert run.clients.equals(other.clients)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments(seed: int, tmp_path: Path) -> None:
    out, moment = tmp_path / "run", random.Random(seed)
    settings: dict[str, Any] = {"rounds": 15, "eval_every": 3, "engine": "sequential"}

    def run() -> ud.Run:
        return continued(out) if (out / "config.json").exists() else begin(out, **settings)

    begin(**settings)  # what PyTorch sets up once takes no part in the duration
    started = time.perf_counter()
    whole = begin(**settings)
    duration = time.perf_counter() - started
    endings = []
    for _ in range(6):
        child = os.fork()
        if not child:
            try:
                run()
                time.sleep(600)  # until it is killed: on a busy machine that may be late
            finally:
                os._exit(1)
        try:
            time.sleep(moment.uniform(0, duration / 2))
        finally:
            os.kill(child, signal.SIGKILL)
            endings.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert set(endings) == {-signal.SIGKILL}
    assert_same(run(), whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves(number: int, tmp_path: Path) -> None:
    def press(row: dict[str, Any], run: ud.Run) -> None:
        if row["round"] == 3:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(ud.Interrupted, match="interrupted after round 3; resume with: ") as caught:
        begin(tmp_path / "run", callbacks=[press])
    assert str(caught.value).endswith(f"ud.resume({str(tmp_path / 'run')!r}, model=model, data=data, test=test)")
    assert isinstance(caught.value, KeyboardInterrupt)
    assert (caught.value.run.rounds, caught.value.signal) == (3, number)
    assert signal.getsignal(number) is before
    assert_same(continued(tmp_path / "run"), begin())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_applications_own_handler_stays(number: int) -> None:
    received: list[int] = []

    def press(row: dict[str, Any], run: ud.Run) -> None:
        if row["round"] == 3:
            os.kill(os.getpid(), number)

    before = signal.signal(number, lambda number, frame: received.append(number))
    try:
        assert begin(callbacks=[press]).rounds == 6
    finally:
        signal.signal(number, before)
    assert received == [number]


def test_to_more_rounds_is_a_longer_run(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    assert_same(continued(tmp_path / "run", rounds=9), begin(rounds=9))
    assert_same(continued(tmp_path / "run"), begin(rounds=9))  # the new number is remembered


def test_a_finished_run_comes_back_as_it_is(tmp_path: Path) -> None:
    whole = begin(tmp_path / "run")
    again = continued(tmp_path / "run")
    assert_same(again, whole)
    assert again.history["seconds"].equals(whole.history["seconds"])
    with pytest.raises(ValueError, match="has 6 rounds already; rounds must be at least that, got 4"):
        continued(tmp_path / "run", rounds=4)


def test_a_run_that_reached_its_target_stays_there(tmp_path: Path) -> None:
    whole = begin(tmp_path / "run", target=0.2, rounds=50)
    assert whole.rounds < 50
    assert continued(tmp_path / "run").rounds == whole.rounds


@pytest.mark.parametrize("rounds", [0, -1, True, 2.5, "6"])
def test_a_number_of_rounds_that_is_none(rounds: Any, tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with refused(tmp_path / "run", "rounds must be"):
        continued(tmp_path / "run", rounds=rounds)


def test_a_run_that_ran_out_of_patience_stays_there(tmp_path: Path) -> None:
    whole = begin(tmp_path / "run", patience=1, lr=1e-9)
    assert whole.rounds == 2
    assert continued(tmp_path / "run").rounds == 2


def test_callbacks_of_a_resumed_run(tmp_path: Path) -> None:
    begin(tmp_path / "run", callbacks=after(4))
    seen: list[int] = []
    continued(tmp_path / "run", callbacks=[lambda row, run: seen.append(row["round"])])
    assert seen == [5, 6]


def content(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


@contextmanager
def refused(home: Path, message: str) -> Iterator[None]:
    """In one line, and without a change."""
    before = content(home)
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        yield
    assert "\n" not in str(caught.value)
    assert content(home) == before


class TestDamage:
    """Checkpoints of rounds 2 and 4, of which the newest is damaged."""

    @pytest.fixture
    def out(self, tmp_path: Path) -> Path:
        out = tmp_path / "run"
        begin(out, callbacks=[lambda row, run: run.save() and row["round"] == 4 if row["round"] % 2 == 0 else None])
        newest = sorted((out / "checkpoints").iterdir())
        assert newest[-1].name == "000004"
        return out

    def test_a_flipped_bit(self, out: Path) -> None:
        state = out / "checkpoints/000004/state.safetensors"
        content = bytearray(state.read_bytes())
        content[-5] ^= 1
        state.write_bytes(content)
        assert_same(continued(out), begin())

    @pytest.mark.parametrize("name", ["state.safetensors", "manifest.json"])
    def test_a_file_cut_off(self, out: Path, name: str) -> None:
        file = out / "checkpoints/000004" / name
        file.write_bytes(file.read_bytes()[:20])
        assert_same(continued(out), begin())

    @pytest.mark.parametrize("name", ["state.safetensors", "manifest.json"])
    def test_a_missing_file(self, out: Path, name: str) -> None:
        (out / "checkpoints/000004" / name).unlink()
        assert_same(continued(out), begin())

    def test_a_damaged_checkpoint_is_replaced(self, out: Path) -> None:
        file = out / "checkpoints/000004/state.safetensors"
        good = file.read_bytes()
        file.write_bytes(good[:20])
        continued(out, callbacks=after(4))
        assert file.read_bytes() == good

    def test_all_of_them(self, out: Path) -> None:
        for manifest in (out / "checkpoints").glob("*/manifest.json"):
            manifest.unlink()
        with pytest.raises(
            ValueError, match=r"000004/manifest\.json cannot be read: .*; no checkpoint is good; remove"
        ):
            continued(out)
        shutil.rmtree(out / "checkpoints")  # which looks like a run that was killed before its first checkpoint
        assert_same(continued(out), begin())

    def test_a_row_cut_off(self, out: Path) -> None:
        with (out / "rounds.jsonl").open("a") as log:
            log.write('{"round": 5, "loss"')
        assert_same(continued(out), begin())

    @pytest.mark.parametrize(
        ("edit", "problem"),
        [
            (lambda rows: rows[:3], "ends after 3 of 4 rounds"),
            (lambda rows: [rows[1], rows[0], *rows[2:]], "line 1 is of round 2"),
            (lambda rows: [rows[0], *rows], "line 2 is of round 1"),
            (lambda rows: [*rows[:3], b"\n"], "line 4 of .*rounds.jsonl is damaged: not valid JSON"),
            (
                lambda rows: [*rows[:3], rows[3].replace(b"true", b"false").replace(b'loss": ', b'loss": 1')],
                "was edited",
            ),
        ],
        ids=["lost", "swapped", "doubled", "garbled", "edited"],
    )
    def test_a_changed_row(self, edit: Any, problem: str, out: Path, caplog: pytest.LogCaptureFixture) -> None:
        """The older checkpoint is used if the rows up to it are good."""
        log = out / "rounds.jsonl"
        log.write_bytes(b"".join(edit(log.read_bytes().splitlines(keepends=True))))
        if "line 1 " in problem or "line 2 " in problem:
            with refused(out, problem):
                continued(out)
        else:
            assert_same(continued(out), begin())
            assert re.search(problem, caplog.text)
            assert "continues from" in caplog.text

    def test_no_rows(self, out: Path) -> None:
        (out / "rounds.jsonl").unlink()
        with refused(out, r"rounds\.jsonl is damaged: it ends after 0 of 4 rounds; no checkpoint is good"):
            continued(out)

    def test_other_options(self, out: Path) -> None:
        config = json.loads((out / "config.json").read_text())
        config["options"]["lr"] = 0.2
        (out / "config.json").write_text(json.dumps(config))
        with refused(out, r"config\.json is damaged or was edited"):
            continued(out)
        write_json(out / "config.json", {k: v for k, v in config.items() if k not in ("format", "checksum")})
        with refused(out, r"config\.json is not the configuration that .*000004 was written with"):
            continued(out)

    def test_a_folder_that_is_not_a_checkpoint(self, out: Path) -> None:
        (out / "checkpoints/000009").mkdir()
        (out / "checkpoints/000009/notes.txt").write_text("mine")
        (out / "checkpoints/.hidden").mkdir()
        assert_same(continued(out), begin())
        assert (out / "checkpoints/000009/notes.txt").exists()
        assert (out / "checkpoints/.hidden").exists()

    def test_states_of_another_algorithm(self, out: Path, tmp_path: Path) -> None:
        """The files are intact, but another version of undrift may keep other states."""
        begin(tmp_path / "other", "fedvarp", callbacks=after(4))
        states = Checkpoint(tmp_path / "other/checkpoints/000004", 4, {"state.safetensors": ""}).parts()
        directory = RunDirectory.open(out)
        directory.go_back_to(directory.find())
        directory.save(4, states)
        with refused(out, "000004 is not of this algorithm and model: .* of the server's state"):
            continued(out)

    def test_format_2(self, out: Path) -> None:
        """Which had checksums of states only."""
        for path in (*out.glob("*.json"), *out.glob("checkpoints/*/manifest.json")):
            content = json.loads(path.read_text())
            del content["checksum"], content["format"]
            if path.name == "manifest.json":
                content = {"format": 2, "round": content["round"], "sha256": content["states"]}
            path.write_text(json.dumps(content, indent=2) + "\n")
        assert_same(continued(out), begin())
        assert_same(continued(out), begin())

    def test_another_format_is_refused(self, out: Path) -> None:
        manifest = out / "checkpoints/000004/manifest.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 99}))
        with pytest.raises(ValueError, match="another version of undrift"):
            continued(out)


def test_a_run_killed_before_it_began_can_begin(tmp_path: Path) -> None:
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/environment.json").write_text("{}")
    assert_same(begin(tmp_path / "run"), begin())


def half_square(output: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (output - torch.eye(3, dtype=output.dtype)[target]).square().sum(1)


class TestObjects:
    """What was given as an object must be given again, and must be the same."""

    @pytest.fixture
    def out(self, tmp_path: Path) -> Path:
        begin(tmp_path / "run", callbacks=after(2), loss=half_square, augment=_double)
        return tmp_path / "run"

    def test_all_given_again(self, out: Path) -> None:
        resumed = continued(out, loss=half_square, augment=_double)
        assert_same(resumed, begin(loss=half_square, augment=_double))

    @pytest.mark.parametrize("part", ["model", "data", "test", "loss", "augment"])
    def test_left_out(self, out: Path, part: str) -> None:
        with pytest.raises(ValueError, match=f"{part} given as an object; give {part}= again"):
            continued(out, **{"loss": half_square, "augment": _double} | {part: None})

    @pytest.mark.parametrize(
        ("part", "wrong"),
        [
            ("model", nn.Sequential(nn.Linear(6, 3)).double()),
            ("model", nn.Sequential(*(nn.ReLU() if isinstance(m, nn.Tanh) else m for m in mlp()))),
            ("data", classified((3, 3, 6, 14, 9))),
            ("test", classified((21,))[0]),
            ("loss", lambda output, target: output.sum(1)),
            ("augment", "flip"),
        ],
        ids=["weights", "layers", "data", "test", "loss", "augment"],
    )
    def test_not_the_same(self, out: Path, part: str, wrong: Any) -> None:
        with pytest.raises(ValueError, match=f"the given {part} is not the one this run was started with"):
            continued(out, **{"loss": half_square, "augment": _double} | {part: wrong})

    def test_another_algorithm(self, tmp_path: Path) -> None:
        begin(tmp_path / "run", ud.algorithms.FedProx(mu=0.5), callbacks=after(2))
        with pytest.raises(ValueError, match="the given algorithm is not the one"):
            continued(tmp_path / "run", algorithm=ud.algorithms.FedProx(mu=0.6))

    def test_an_algorithm_with_an_object_among_its_options(self, tmp_path: Path) -> None:
        pretrained = ud.algorithms.FedHBM(variant={k: v + 1 for k, v in mlp().state_dict().items()})
        begin(tmp_path / "run", pretrained, callbacks=after(2))
        with pytest.raises(ValueError, match="given variant as an object; give algorithm= again"):
            continued(tmp_path / "run")
        assert_same(continued(tmp_path / "run", algorithm=pretrained), begin(algorithm=pretrained))

    def test_an_algorithm_with_a_file_among_its_options(self, tmp_path: Path) -> None:
        file = tmp_path / "start.safetensors"
        save_file({k: v + 1 for k, v in mlp().state_dict().items()}, file)
        pretrained = ud.algorithms.FedHBM(variant=file)
        begin(tmp_path / "run", pretrained, callbacks=after(2))
        assert_same(continued(tmp_path / "run"), begin(algorithm=pretrained))
        begin(tmp_path / "other", pretrained, callbacks=after(2))
        save_file({k: v + 2 for k, v in mlp().state_dict().items()}, file)
        with pytest.raises(ValueError, match="the given algorithm is not the one this run was started with"):
            continued(tmp_path / "other")

    def test_an_option_that_came_later(self) -> None:
        stored = {"name": "fedhbm", "options": {"beta": 1.0, "variant": None, "nesterov": False}}
        check_same({"algorithm": stored}, {"algorithm": _description(ud.algorithms.FedHBM(beta=1.0))})
        with pytest.raises(ValueError, match="the given algorithm is not the one"):
            check_same({"algorithm": stored}, {"algorithm": _description(ud.algorithms.FedHBM(1.0, anchor="step"))})

    @pytest.mark.parametrize("options", [{"anchor": "step"}, {"variant": "random"}], ids=str)
    def test_what_a_client_draws_or_passed(self, tmp_path: Path, options: dict[str, Any]) -> None:
        algorithm = ud.algorithms.FedHBM(**options)
        begin(tmp_path / "run", algorithm, callbacks=after(2))
        assert_same(continued(tmp_path / "run"), begin(algorithm=algorithm))


def _double(x: Tensor, key: Any, step: int) -> Tensor:
    return 2 * x


class TestOneWriter:
    def test_a_second_one_is_refused(self, tmp_path: Path) -> None:
        def second(row: dict[str, Any], run: ud.Run) -> None:
            with refused(tmp_path, "run is in use: another run writes to it"):
                continued(tmp_path / "run")
            with refused(tmp_path, "holds a run already"):
                begin(tmp_path / "run")
            for again in ("overwrite", "resume"):
                with refused(tmp_path, "run is in use: another run writes to it"):
                    begin(tmp_path / "run", **{again: True})
            assert len(ud.Comparison.from_directories([tmp_path]).records[0].history) == row["round"]

        begin(tmp_path / "run", callbacks=[second])

    def test_none_is_left_after_an_error(self, tmp_path: Path) -> None:
        def fail(row: dict[str, Any], run: ud.Run) -> None:
            failed.append(run)
            raise ZeroDivisionError

        failed: list[ud.Run] = []
        with pytest.raises(ZeroDivisionError):
            begin(tmp_path / "run", callbacks=[fail])
        assert failed[0].save() == tmp_path / "run/checkpoints/000001"
        assert_same(continued(tmp_path / "run"), begin())

    def test_a_run_whose_directory_went_on_does_not_save(self, tmp_path: Path) -> None:
        runs: list[ud.Run] = []
        with pytest.raises(ZeroDivisionError):
            begin(tmp_path / "run", callbacks=[lambda row, run: runs.append(run) or 1 / 0])  # type: ignore[func-returns-value]
        continued(tmp_path / "run")
        with refused(tmp_path, "has other rounds than this run by now"):
            runs[0].save()

    def test_a_forked_process_does_not_release_it(self, tmp_path: Path) -> None:
        def fork(row: dict[str, Any], run: ud.Run) -> None:
            if os.getpid() != parent:
                return
            child = os.fork()
            if not child:
                raise SystemExit  # leaves all blocks, as the parent will
            os.waitpid(child, 0)
            with refused(tmp_path, "in use"):
                continued(tmp_path / "run")

        parent = os.getpid()
        try:
            begin(tmp_path / "run", rounds=2, callbacks=[fork])
        finally:
            if os.getpid() != parent:
                os._exit(0)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"model": nn.Sequential(nn.Linear(6, 3)).double()}, "the given model is not the one"),
            ({"data": classified((3, 3, 6, 14, 9))}, "the given data is not the one"),
            ({"rounds": 3}, "has 4 rounds already"),
        ],
    )
    def test_nothing_changes_before_the_checks(self, change: Any, message: str, tmp_path: Path) -> None:
        """There is a row after the last checkpoint, the next checkpoint is a draft, and the first is damaged."""
        out = tmp_path / "run"
        begin(out, callbacks=[lambda row, run: run.save() and row["round"] == 4])
        with (out / "rounds.jsonl").open("a") as log:
            log.write('{"round": 5, "lo')
        (out / "checkpoints/.000005").mkdir()
        (out / "checkpoints/000003/manifest.json").write_text("{}")
        with refused(out, message):
            continued(out, **change)
        assert (out / "checkpoints/.000005").exists()


class TestAnotherInitialisation:
    """Of a module the architecture must be the same; its weights come from the run directory."""

    @pytest.mark.parametrize("algorithm", ["fedavg", "feddyn", ud.algorithms.FedHBM()], ids=str)
    def test_is_the_same_run(self, algorithm: Any, tmp_path: Path) -> None:
        """Not all clients have been seen when it stops."""
        begin(tmp_path / "run", algorithm, callbacks=after(1))
        assert_same(continued(tmp_path / "run", model=shifted(mlp())), begin(algorithm=algorithm))

    def test_also_without_a_checkpoint(self, tmp_path: Path) -> None:
        begin(tmp_path / "run", callbacks=after(1))
        shutil.rmtree(tmp_path / "run/checkpoints")
        assert_same(continued(tmp_path / "run", model=shifted(mlp())), begin())

    def test_the_given_module_stays_as_it_is(self, tmp_path: Path) -> None:
        begin(tmp_path / "run", callbacks=after(1))
        model = shifted(mlp())
        continued(tmp_path / "run", model=model)
        assert_close(model.state_dict(), shifted(mlp()).state_dict(), rtol=0, atol=0)

    @pytest.mark.parametrize(
        ("model", "difference"),
        [
            (mlp().float(), r": its '0\.weight' is float32 \(\d+, 6\), not float64 \(\d+, 6\)$"),
            (nn.Sequential(nn.Linear(6, 3)).double(), r": its '0\.weight' is float64 \(3, 6\), not "),
            (nn.Sequential(*mlp(), nn.BatchNorm1d(3).double()), r": it has '\w+\.weight', which that one had not$"),
            (nn.Sequential(mlp()[0]), r": it has no '\d\.\w+'$"),
            (
                nn.Sequential(*(nn.ReLU() if isinstance(m, nn.Tanh) else m for m in mlp())),
                ": its layers are of .*",
            ),
        ],
        ids=["dtype", "shape", "more", "less", "kinds"],
    )
    def test_another_architecture(self, model: nn.Module, difference: str, tmp_path: Path) -> None:
        begin(tmp_path / "run", callbacks=after(1))
        with refused(tmp_path / "run", "the given model is not the one this run was started with" + difference):
            continued(tmp_path / "run", model=model)

    def test_frozen_parameters_are_part_of_the_architecture(self, tmp_path: Path) -> None:
        def half_frozen() -> nn.Module:
            model = mlp()
            next(model.parameters()).requires_grad_(False)
            return model

        settings: dict[str, Any] = {"data": classified(), "test": TEST, **SETTINGS}
        whole = ud.simulate("fedavg", half_frozen(), **settings)
        ud.simulate("fedavg", half_frozen(), out=tmp_path / "run", callbacks=after(1), **settings)
        stored = load_file(tmp_path / "run/initial.safetensors")
        assert len(stored) == len(mlp().state_dict()) - 1
        other = half_frozen()
        next(other.parameters()).data += 1
        with refused(tmp_path / "run", "the given model is not the one this run was started with"):
            continued(tmp_path / "run", model=other)
        other = half_frozen()
        list(other.parameters())[-1].data += 1
        assert_same(continued(tmp_path / "run", model=other), whole)

    def test_damaged_weights(self, tmp_path: Path) -> None:
        begin(tmp_path / "run", callbacks=after(1))
        file = tmp_path / "run/initial.safetensors"
        file.write_bytes(file.read_bytes()[:20])
        with refused(tmp_path / "run", r"initial\.safetensors cannot be read"):
            continued(tmp_path / "run", model=shifted(mlp()))
        assert_same(continued(tmp_path / "run"), begin())  # which has no use for them


def shifted(model: nn.Module) -> nn.Module:
    for value in model.parameters():
        value.data += 1
    return model


class TestASecondRunInADirectory:
    def test_resume_continues_or_starts(self, tmp_path: Path) -> None:
        begin(tmp_path / "run", callbacks=after(2), resume=True)
        settings: dict[str, Any] = {"model": shifted(mlp()), "data": classified(), "test": TEST, **SETTINGS}
        again = ud.simulate("scaffold", **settings, out=tmp_path / "run", resume=True)
        assert_same(again, begin())
        assert_same(begin(tmp_path / "run", rounds=8, resume=True), begin(rounds=8))

    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            ({"lr": 0.2}, "was begun with lr=0.1, not 0.2"),
            ({"seed": 1}, "was begun with seed=0, not 1"),
            ({"algorithm": "fedavg"}, "the given algorithm is not the one .*'fedavg'.* instead of .*'scaffold'"),
            ({"compress": "half"}, "the given compress is not the one .*'half'.* instead of None"),
            ({"rounds": 1}, "has 2 rounds already"),
        ],
        ids=str,
    )
    def test_other_settings_are_not_resumed(self, change: Any, difference: str, tmp_path: Path) -> None:
        begin(tmp_path / "run", callbacks=after(2))
        with refused(tmp_path / "run", difference):
            begin(tmp_path / "run", **{"resume": True} | change)

    def test_overwrite_replaces_the_run_and_nothing_else(self, tmp_path: Path) -> None:
        begin(tmp_path / "run")
        (tmp_path / "run/notes.txt").write_text("mine")
        other = begin(tmp_path / "run", "fedavg", rounds=2, overwrite=True)
        assert_same(other, begin(algorithm="fedavg", rounds=2))
        assert {path.name for path in (tmp_path / "run/checkpoints").iterdir()} <= {"000001", "000002"}
        assert (tmp_path / "run/notes.txt").read_text() == "mine"
        assert_same(continued(tmp_path / "run"), other)

    def test_nothing_is_replaced_before_the_checks(self, tmp_path: Path) -> None:
        begin(tmp_path / "run")
        with refused(tmp_path / "run", "cohort"):
            begin(tmp_path / "run", overwrite=True, cohort=1000)
        (tmp_path / "other").mkdir()
        (tmp_path / "other/config.json").write_text('{"format": 3}')
        with refused(tmp_path / "other", "config.json"):
            begin(tmp_path / "other", overwrite=True)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"overwrite": True}, "overwrite=True needs a directory; give out="),
            ({"resume": True}, "resume=True needs a directory; give out="),
            ({"resume": 1, "out": "x"}, "resume must be True or False, got 1"),
            ({"resume": True, "overwrite": True, "out": "x"}, "give overwrite=True or resume=True, not both"),
        ],
        ids=str,
    )
    def test_wrong_arguments(self, given: Any, message: str) -> None:
        with pytest.raises((ValueError, TypeError), match=message):
            begin(**given)


def test_what_was_given_by_name_need_not_be(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 3, "cohort": 3, "eval_every": 3}
    whole = ud.simulate("fedhbm", "softmax", "digits", **settings)
    ud.simulate("fedhbm", "softmax", "digits", out=tmp_path / "run", callbacks=after(1), **settings)
    assert_same(ud.resume(tmp_path / "run"), whole)


def test_only_states_of_clients_that_were_seen_are_stored(tmp_path: Path) -> None:
    begin(tmp_path / "run", rounds=3, cohort=[[4], [1], [4]])
    stored = load_file(tmp_path / "run/checkpoints/000003/state.safetensors")
    assert stored["clients/ids"].tolist() == [1, 4]
    controls = {k: v for k, v in stored.items() if k.startswith("clients/states/")}
    assert controls
    assert all(len(v) == 2 for v in controls.values())


def test_stateless_clients_store_nothing(tmp_path: Path) -> None:
    begin(tmp_path / "run", "fedavg")
    stored = load_file(tmp_path / "run/checkpoints/000006/state.safetensors")
    assert not [k for k in stored if k.startswith("clients/")]


def test_two_checkpoints_are_kept(tmp_path: Path) -> None:
    begin(tmp_path / "run", callbacks=[lambda row, run: not run.save()])
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir()) == ["000005", "000006"]


def test_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a run directory: it has no config\.json"):
        ud.resume(tmp_path)
