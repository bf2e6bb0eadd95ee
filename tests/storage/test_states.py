"""States of clients: what was scattered is gathered, wherever it is stored; only clients that took part cost memory."""

from __future__ import annotations

import gc
import os
import resource
import sys
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.testing import assert_close

import undrift as ud
from laws import classified, mlp, normed
from undrift.core import tree
from undrift.reporting.record import TIMES
from undrift.storage import arena, memory, states
from undrift.storage.arena import Space
from undrift.storage.states import ClientStates

CPU = torch.device("cpu")
POPULATION = 31
INITIAL = {"control": {"w": torch.zeros(2, 3)}, "seen": torch.tensor(0)}
SIZE = tree.nbytes(INITIAL)
EVERYONE = np.arange(POPULATION)


@contextmanager
def memory_for(host: int, together: int = states.TOGETHER, small: int = 0, device: int = 0) -> Iterator[None]:
    """As if states could take this many bytes of memory, and were read in blocks of `together` bytes."""
    blocks: weakref.WeakSet[Any] = weakref.WeakSet()

    def taken(kind: str) -> int:
        return sum(block.size for block in blocks if block.device.type == kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "_blocks", blocks)
        patch.setattr(arena, "_SHARES", {"cpu": 1.0, "cuda": 1.0})
        patch.setattr(memory, "host_left", lambda: host - taken("cpu"))
        patch.setattr(memory, "device_left", lambda _: device - taken("cuda"))
        patch.setattr(states, "TOGETHER", together)
        patch.setattr(states, "SMALL", small)
        yield


def empty(initial: tree.Nest = INITIAL, home: Path | None = None) -> ClientStates:
    return ClientStates(initial, POPULATION, Space(CPU, home))


def states_of(ids: list[int], stamp: int) -> dict[str, object]:
    return tree.stack([{"control": {"w": torch.full((2, 3), 1.0 * stamp + i)}, "seen": torch.tensor(i)} for i in ids])


COHORTS = st.lists(st.lists(st.integers(0, POPULATION - 1), min_size=1, max_size=6, unique=True), max_size=8)
ROOM = st.sampled_from([0, SIZE, 5 * SIZE + 1, 1 << 30])


@settings(max_examples=100, deadline=None)
@given(COHORTS, ROOM, ROOM, st.sampled_from([1, 3 * SIZE, 1 << 30]), st.sampled_from([0, 7 * SIZE, 1 << 30]))
def test_the_last_state_of_every_client_is_kept(
    cohorts: list[list[int]], limit: int, other_limit: int, together: int, small: int
) -> None:
    expected = dict.fromkeys(range(POPULATION), INITIAL)
    with memory_for(limit, together, small):
        kept = empty()
        for stamp, cohort in enumerate(cohorts, 1):
            kept.scatter(np.array(cohort), states_of(cohort, 100 * stamp))
            expected |= {i: tree.row(states_of(cohort, 100 * stamp), place) for place, i in enumerate(cohort)}
        found = kept.gather(EVERYONE)
        blocks = list(kept.blocks())
    assert_close(found, tree.stack([expected[i] for i in range(POPULATION)]), rtol=0, atol=0)
    assert list(found) == list(INITIAL)
    seen = sorted({i for cohort in cohorts for i in cohort})
    assert (len(kept), kept.seen.tolist()) == (len(seen), seen)
    assert [i for block in blocks for i in block["ids"].tolist()] == seen
    assert all(tree.nbytes(block["states"]) <= max(together, SIZE) for block in blocks)
    with memory_for(other_limit):
        again = empty()
        for block in blocks:
            again.scatter(block["ids"].numpy(), block["states"])
        assert_close(again.gather(EVERYONE), found, rtol=0, atol=0)


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_every_type_and_every_bit(limit: int) -> None:
    noise = torch.Generator().manual_seed(0)

    def anything(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        width = torch.empty(0, dtype=dtype).itemsize
        words = torch.randint(0, 256, (*shape[:-1], shape[-1] * width), dtype=torch.uint8, generator=noise)
        return words.view(dtype)  # NaNs of all kinds among them

    wide = {str(t): anything(t, 4, 3) for t in (torch.float64, torch.float32, torch.bfloat16, torch.int64)}
    given = wide | {
        "small": anything(torch.int8, 4, 5, 1),
        "flags": anything(torch.uint8, 4, 7) < 128,
        "one": anything(torch.float32, 4, 1).view(4),
        "pairs": anything(torch.complex128, 4, 2),
    }
    with memory_for(limit):
        kept = empty(tree.row(given, 0))
        kept.scatter(np.array([7, 3, 4, 30]), given)
        found = kept.gather(np.array([30, 7, 3, 4]))
    for name, values in given.items():
        expected = values[[3, 0, 1, 2]]
        assert (found[name].dtype, found[name].shape) == (values.dtype, expected.shape)
        assert found[name].is_contiguous()
        assert torch.equal(found[name].flatten().view(torch.uint8), expected.flatten().view(torch.uint8))


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_gathered_states_are_copies(limit: int) -> None:
    with memory_for(limit):
        kept = empty()
        kept.scatter(np.array([4]), states_of([4], 0))
        kept.gather(np.array([4]))["control"]["w"].zero_()
        assert kept.gather(np.array([4]))["control"]["w"][0, 0, 0] == 4


def test_a_part_of_the_states() -> None:
    with memory_for(2 * SIZE):
        kept = empty()
        kept.scatter(np.array([4, 2, 9]), states_of([4, 2, 9], 0))
        (block,) = kept.blocks("seen")
    assert (block["ids"].tolist(), list(block["states"])) == ([2, 4, 9], ["seen"])
    assert block["states"]["seen"].tolist() == [2, 4, 9]


class TestPlaces:
    """Memory first, then disk."""

    def test_only_clients_that_took_part_count(self) -> None:
        kept = empty()
        assert kept.kept == {}
        kept.scatter(np.array([30, 3]), states_of([7, 3], 0))
        kept.scatter(np.array([30, 5]), states_of([7, 5], 0))
        assert kept.kept == {"in memory": 3 * SIZE}

    @pytest.mark.parametrize("room", [0, 1, 4, 7])
    def test_memory_is_filled_first(self, room: int) -> None:
        with memory_for(room * SIZE):
            kept = empty()
            for i in range(6):
                kept.scatter(np.array([i]), states_of([i], 0))
        in_memory = min(max(room - 1, 0), 6)  # one row is for clients that have not taken part
        places = {"in memory": in_memory * SIZE, "on disk": (6 - in_memory) * SIZE}
        assert kept.kept == {place: size for place, size in places.items() if size}

    @pytest.mark.parametrize(("small", "blocks"), [(0, [1, 1, 2, 4, 8, 16]), (4 * SIZE, [8, 8, 16]), (1 << 30, [32])])
    def test_blocks_are_few(self, small: int, blocks: list[int]) -> None:
        with memory_for(1 << 30, small=small):
            kept = empty()
            for i in range(POPULATION):
                kept.scatter(np.array([i]), states_of([i], 0))
        assert [block.rows for block in kept._blocks] == blocks

    def test_runs_share_the_memory(self) -> None:
        with memory_for(10 * SIZE):
            first = empty()
            first.scatter(EVERYONE[:6], states_of(EVERYONE[:6].tolist(), 0))
            second = empty()
            second.scatter(EVERYONE[:6], states_of(EVERYONE[:6].tolist(), 0))
            assert first.kept.get("in memory", 0) + second.kept.get("in memory", 0) <= 10 * SIZE
            assert "on disk" in second.kept
            del first
            gc.collect()
            third = empty()
            third.scatter(EVERYONE[:6], states_of(EVERYONE[:6].tolist(), 0))
            assert "in memory" in third.kept

    def test_no_file_is_left_on_disk(self, tmp_path: Path) -> None:
        with memory_for(0):
            kept = empty(home=tmp_path)
            kept.scatter(np.array([1]), states_of([1], 0))
            file = weakref.ref(kept._blocks[0])
            assert list(tmp_path.iterdir()) == []  # the file is unnamed: a killed process leaves nothing
            del kept
            gc.collect()
        assert file() is None

    def test_a_full_disk_gives_a_one_line_error(self, tmp_path: Path) -> None:
        with memory_for(0), largest_file(3 * SIZE):
            kept = empty(home=tmp_path)
            with pytest.raises(OSError, match=r"client states cannot be stored in .*: File too large") as caught:
                kept.scatter(EVERYONE, states_of(EVERYONE.tolist(), 0))
        assert "\n" not in str(caught.value)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As if the disk were full: files cannot grow beyond this size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_state_that_changes_shape_is_refused() -> None:
    with pytest.raises(AssertionError, match="must keep its names, shapes and dtypes"):
        empty().scatter(np.array([0]), {"control": {"w": torch.zeros(1, 2, 4)}, "seen": torch.zeros(1)})


@pytest.mark.parametrize("nothing", [{}, {"control": {}}])
def test_stateless_clients_have_no_states(nothing: dict[str, Any]) -> None:
    kept = empty(nothing)
    kept.scatter(np.array([0]), nothing)
    assert (kept.gather(np.array([0, 1])), kept.kept, len(kept), list(kept.blocks())) == (nothing, {}, 0, [])


@pytest.mark.usefixtures("networks_are_tried_once")
class TestRuns:
    """Where states are stored changes no bit of a run, nor of a resumed one."""

    TEST = classified((20,))[0]
    MODELS = {"fedbn": normed}  # noqa: RUF012

    def begin(self, algorithm: str, **options: Any) -> ud.Run:
        model, training = self.MODELS.get(algorithm, mlp)(), {"rounds": 6, "cohort": 2, "batch_size": 4, "lr": 0.1}
        return ud.simulate(algorithm, model, classified(), self.TEST, **training | options)

    def resume(self, algorithm: str, out: Path) -> ud.Run:
        return ud.resume(out, model=self.MODELS.get(algorithm, mlp)(), data=classified(), test=self.TEST)

    @pytest.fixture(params=["scaffold", "mifa", "fedvarp", "fedbn", "adabest"])
    def whole(self, request: pytest.FixtureRequest) -> Iterator[tuple[str, ud.Run, int]]:
        """An algorithm, its run in memory, and the bytes of two states."""
        run = self.begin(request.param, rounds=1)
        size = 2 * max(tree.nbytes(run.memory.own.initial), tree.nbytes(run.memory.ledger.initial))
        with memory_for(1 << 30, size):
            yield request.param, self.begin(request.param), size

    @pytest.mark.parametrize("memory", ["no", "little"])
    def test_on_disk(self, whole: tuple[str, ud.Run, int], memory: str) -> None:
        algorithm, run, size = whole
        assert run.environment["states"] == "in memory"
        with memory_for({"no": 0, "little": size}[memory], size):
            other = self.begin(algorithm)
            assert other.environment["states"] == {"no": "on disk", "little": "in memory, on disk"}[memory]
            assert other.states.endswith("on disk")
            assert_same(other, run)

    @pytest.mark.parametrize("algorithm", ["scaffold", "fedbn", "feddc", "fedpmvr"])
    @pytest.mark.parametrize("disk", ["writable", "read-only"])
    def test_large_new_states_wait_on_disk(self, algorithm: str, disk: str, monkeypatch: pytest.MonkeyPatch) -> None:
        run = self.begin(algorithm, engine="sequential")
        made: list[Any] = []
        real = tempfile.TemporaryFile

        def file(**options: Any) -> Any:
            made.append(None)
            if disk == "read-only":
                raise PermissionError(13, "Permission denied")
            return real(**options)

        monkeypatch.setattr(tempfile, "TemporaryFile", file)
        with memory_for(1 << 30, together=1):
            other = self.begin(algorithm, engine="sequential")
        assert other.environment["states"] == "in memory"
        assert len(made) >= other.rounds
        assert_same(other, run)

    def test_large_new_states_of_a_round_that_diverges_are_dropped(self) -> None:
        def diverges() -> ud.DivergenceError:
            with pytest.raises(ud.DivergenceError) as caught:
                self.begin("feddc", engine="sequential", rounds=40, lr=1e10)
            return caught.value

        expected = diverges()
        with memory_for(1 << 30, together=1):
            found = diverges()
        assert (found.round, found.clients) == (expected.round, expected.clients)
        assert found.round > 1
        assert_same(found.run, expected.run)

    @pytest.mark.parametrize(("before", "after"), [("disk", "disk"), ("disk", "memory"), ("memory", "disk")])
    def test_resumed(self, whole: tuple[str, ud.Run, int], before: str, after: str, tmp_path: Path) -> None:
        algorithm, run, size = whole
        room, out = {"disk": size, "memory": 1 << 30}, tmp_path / "run"
        with memory_for(room[before], size):
            self.begin(algorithm, out=out, callbacks=[lambda row, run: row["round"] == 3])
        with memory_for(room[after], size):
            resumed = self.resume(algorithm, out)
            assert resumed.environment["states"].endswith(after)
            assert_same(resumed, run)
        assert ud.Comparison.from_directories([out]).records[0].environment == resumed.environment

    def test_the_notice_about_the_disk_comes_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        said: list[str] = []
        monkeypatch.setattr("undrift.simulation.run.notice", said.append)
        self.begin("scaffold")
        assert said == []
        with memory_for(0):
            self.begin("scaffold", out=tmp_path / "run")
        assert len(said) == 1
        assert said[0].endswith(f"go to disk, in {tmp_path / 'run'}")

    def test_means_over_clients_do_not_depend_on_blocks(self) -> None:
        run = self.begin("fedbn", weighting="samples", dtype="float64")
        with memory_for(0, together=1):
            other = self.begin("fedbn", weighting="samples", dtype="float64")
        np.testing.assert_allclose(other.history["loss"], run.history["loss"], rtol=1e-12)


def assert_same(run: ud.Run, other: ud.Run) -> None:
    everyone = np.arange(len(run.clients))
    assert_close(tree.flatten(run.memory.server), tree.flatten(other.memory.server), rtol=0, atol=0)
    for mine, theirs in ((run.memory.own, other.memory.own), (run.memory.ledger, other.memory.ledger)):
        assert_close(mine.gather(everyone), theirs.gather(everyone), rtol=0, atol=0)
    assert run.history.drop(columns=TIMES).equals(other.history.drop(columns=TIMES))
    assert run.clients.equals(other.clients)


class TestCheckpoints:
    """Checkpoints of states that are too large to be held at once."""

    def begin(self, out: Path, **options: Any) -> ud.Run:
        with memory_for(0, together=1):
            return ud.simulate(
                "scaffold", mlp(), classified(), rounds=4, cohort=2, batch_size=4, lr=0.1, out=out, **options
            )

    def test_a_file_holds_a_block(self, tmp_path: Path) -> None:
        run = self.begin(tmp_path / "run")
        home, count = tmp_path / "run/checkpoints/000004", len(run.memory.own)
        names = ["state.safetensors", *(f"state-{number}.safetensors" for number in range(1, count))]
        assert sorted(os.listdir(home)) == sorted([*names, "manifest.json"])
        stored = [load_file(home / name) for name in names]
        assert [k for part in stored for k in part["clients/ids"].tolist()] == run.memory.own.seen.tolist()
        assert [any(k.startswith("server/") for k in part) for part in stored] == [True] + [False] * (count - 1)

    def test_a_damaged_block_invalidates_its_checkpoint(self, tmp_path: Path) -> None:
        whole = self.begin(tmp_path / "whole")
        self.begin(tmp_path / "run", callbacks=[lambda row, run: run.save() and row["round"] == 3])
        block = tmp_path / "run/checkpoints/000003/state-1.safetensors"
        content = bytearray(block.read_bytes())
        content[-1] ^= 1
        block.write_bytes(content)
        rounds: list[int] = []
        again = ud.resume(
            tmp_path / "run", model=mlp(), data=classified(), callbacks=[lambda row, run: rounds.append(row["round"])]
        )
        assert rounds == [3, 4]
        assert_close(again.parameters, whole.parameters, rtol=0, atol=0)

    def test_a_full_disk_leaves_the_last_checkpoint(self, tmp_path: Path) -> None:
        def stop(row: dict[str, Any], run: ud.Run) -> None:
            if row["round"] == 2:
                checkpoint = run.save()
                assert checkpoint is not None
                size = (checkpoint / "state.safetensors").stat().st_size
                full.enter_context(largest_file(size - 1))

        with (
            ExitStack() as full,
            pytest.raises(OSError, match=r"the checkpoint of round \d cannot be written to .*File too") as caught,
        ):
            ud.simulate("scaffold", mlp(), classified(), rounds=4, cohort=2, out=tmp_path / "run", callbacks=[stop])
        assert "\n" not in str(caught.value)
        assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir())[-1] == "000002"

    def test_names_with_slashes(self, tmp_path: Path) -> None:
        model = torch.nn.Sequential(OrderedDict([("in/out", mlp())]))
        options: dict[str, Any] = {"cohort": 2, "batch_size": 4, "lr": 0.1}
        whole = ud.simulate("scaffold", model, classified(), rounds=4, **options)
        ud.simulate("scaffold", model, classified(), rounds=2, out=tmp_path / "run", **options)
        resumed = ud.resume(tmp_path / "run", rounds=4, model=model, data=classified())
        assert_close(resumed.parameters, whole.parameters, rtol=0, atol=0)

    def test_an_unfinished_checkpoint_is_removed(self, tmp_path: Path) -> None:
        self.begin(tmp_path / "run", callbacks=[lambda row, run: row["round"] == 2])
        (tmp_path / "run/checkpoints/.000009").mkdir()
        ud.resume(tmp_path / "run", model=mlp(), data=classified())
        assert all(p.name.isdigit() for p in (tmp_path / "run/checkpoints").iterdir())

    def test_saving_follows_the_size_of_states(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """States that take a second per byte to write are not written in a run of a few seconds."""
        monkeypatch.setattr("undrift.simulation.run._SAVING_SPEED", 1.0)
        seen: list[list[str]] = []
        self.begin(tmp_path / "run", callbacks=[lambda row, run: seen.append(os.listdir(run.out / "checkpoints"))])
        assert seen == [[]] * 4
        assert os.listdir(tmp_path / "run/checkpoints") == ["000004"]  # the last round always is


class TestMemoryLeft:
    """Memory that is left, and limits of control groups of both versions, as containers have them."""

    def group(self, path: Path, names: tuple[str, str, str], limit: str, usage: int, idle: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / names[0]).write_text(f"{limit}\n")
        (path / names[1]).write_text(f"{usage}\n")
        (path / "memory.stat").write_text(f"anon 5\n{names[2]} {idle}\n")

    SECOND = ("memory.max", "memory.current", "inactive_file")
    FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")

    def test_version_2(self, tmp_path: Path) -> None:
        (tmp_path / "member").write_text("0::/outer/inner\n")
        self.group(tmp_path / "fs/outer", self.SECOND, "1000", 300, 100)
        self.group(tmp_path / "fs/outer/inner", self.SECOND, "max", 200, 0)
        assert list(memory.control_groups(tmp_path / "fs", tmp_path / "member")) == [1000 - 300 + 100]

    def test_version_1_from_inside_a_container(self, tmp_path: Path) -> None:
        (tmp_path / "member").write_text("5:cpu,cpuacct:/x\n4:memory:/docker/4f3a\n0::/\n")
        self.group(tmp_path / "fs/memory", self.FIRST, "900", 500, 50)
        assert list(memory.control_groups(tmp_path / "fs", tmp_path / "member")) == [900 - 500 + 50]

    def test_no_control_groups(self, tmp_path: Path) -> None:
        assert list(memory.control_groups(tmp_path, tmp_path / "member")) == []

    def test_here(self) -> None:
        assert 0 < memory.host_left() < 1 << 50

    def test_the_machine_without_psutil(self, monkeypatch: pytest.MonkeyPatch) -> None:
        left = memory._machine()
        monkeypatch.setitem(sys.modules, "psutil", None)
        assert left < memory._machine() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        monkeypatch.delattr(os, "sysconf")
        assert memory._machine() == memory._UNKNOWN


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestDevice:
    """On a GPU: its memory first, then the host's, then disk."""

    @pytest.mark.parametrize("device_rows", [0, 3, 100])
    @pytest.mark.parametrize("host_rows", [0, 2, 100])
    def test_all_places(self, device_rows: int, host_rows: int) -> None:
        initial = tree.map_nest(torch.Tensor.cuda, INITIAL)
        with memory_for(host_rows * SIZE, device=device_rows * SIZE):
            kept = ClientStates(initial, POPULATION, Space(torch.device("cuda")))
            for start in (0, 4, 2):
                ids = EVERYONE[start : start + 6]
                kept.scatter(ids, tree.map_nest(torch.Tensor.cuda, states_of(ids.tolist(), 100 * start)))
            found = kept.gather(EVERYONE[:12])
        last = [0, 0, 200, 200, 200, 200, 200, 200, 400, 400]
        assert found["control"]["w"].device.type == "cuda"
        assert found["control"]["w"][:, 1, 2].tolist() == [stamp + i for i, stamp in enumerate(last)] + [0, 0]
        assert kept.kept.get("on the device", 0) == min(max(device_rows - 1, 0), 10) * SIZE
        assert ("on disk" in kept.kept) == (device_rows + host_rows < 11)

    @pytest.mark.parametrize("host", [0, 1 << 30])
    def test_the_same_bits(self, host: int) -> None:
        options: dict[str, Any] = {"rounds": 5, "cohort": 2, "batch_size": 4, "lr": 0.1, "device": "cuda"}
        on_device = ud.simulate("scaffold", mlp(), classified(), **options)
        assert on_device.states.endswith("on the device")
        with memory_for(host):
            elsewhere = ud.simulate("scaffold", mlp(), classified(), **options)
            assert "on the device" not in elsewhere.states
            assert_same(elsewhere, on_device)
