"""Profiles: parts that add up, kinds of kernels, and runs that give the same numbers as without a profile."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

import undrift as ud
from undrift.cli import app
from undrift.cli.group import FAILED
from undrift.core.parts import Part
from undrift.core.tree import Tree
from undrift.engines import Sequential
from undrift.profile import SKIPPED, Figures, Profile, take
from undrift.profile.kinds import OTHER, kind, readable
from undrift.profile.table import table
from undrift.profile.trace import Breakdown, break_down
from undrift.reporting.record import TIMES

QUICK = ("-m", "softmax", "--clients", "10", "--set", "run.cohort=3", "--set", "local.lr=0.5")
Undrift = Callable[..., Result]


@pytest.fixture
def undrift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Undrift:
    """Runs a command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args], prog_name="undrift")


def begin(rounds: int = 6, model: str = "softmax", **options: Any) -> ud.Run:
    data = ud.data.load("digits", "classes:2", 10)
    return ud.simulate("scaffold", model, data, **{"rounds": rounds, "cohort": 3, "lr": 0.5} | options)


def profiled(path: Path, skip: int = 1, profiled_rounds: int = 2, **options: Any) -> tuple[Figures, ud.Run]:
    profile = Profile(path, skip, profiled_rounds)
    run = begin(callbacks=[profile], **options)
    assert profile.figures is not None
    return profile.figures, run


def events(path: str | Path) -> list[dict[str, Any]]:
    read = gzip.open if str(path).endswith(".gz") else open
    with read(path, "rt", encoding="utf-8") as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def same(a: Tree, b: Tree) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# taking a profile


@pytest.mark.parametrize("engine", ["batched", "sequential"])
def test_parts_add_up_to_the_round(engine: str, tmp_path: Path) -> None:
    found, run = profiled(tmp_path / "p.json", engine=engine, out=tmp_path / "run")
    steps = [e for e in events(found.trace) if e["name"].startswith("ProfilerStep#")]
    assert found.rounds == [2, 3]
    assert len(steps) == 2
    assert found.ms == pytest.approx(sum(e["dur"] for e in steps) / 2e3)
    assert sum(part.ms for part in found.parts) == pytest.approx(found.ms)
    assert sum(part.share for part in found.parts) == pytest.approx(1)
    assert all(part.ms >= 0 for part in found.parts)
    seen = (Part.COHORT, Part.BATCHES, Part.TRAINING, Part.AGGREGATION, Part.EVALUATION, Part.SAVING)
    assert [part.name for part in found.parts] == [*(part.label for part in seen), "Other"]
    # A profiled round cannot have taken less than its own row says.
    assert 2e-3 * found.ms >= run.history["seconds"].iloc[1:3].sum()


def test_operators_add_up_in_both_lists(tmp_path: Path) -> None:
    found, _ = profiled(tmp_path / "p.json")
    for listed in (found.kinds, found.kernels):
        assert sum(spent.ms for spent in listed) == pytest.approx(found.busy_ms)
        assert sum(spent.share for spent in listed) == pytest.approx(1)
        assert [spent.ms for spent in listed] == sorted((spent.ms for spent in listed), reverse=True)
    assert sum(s.calls for s in found.kinds) == pytest.approx(sum(s.calls for s in found.kernels))
    assert 0 < found.busy_ms < found.ms, "one thread: there is no more operator time than time"
    assert not found.on_gpu
    assert found.cores_busy > 0


def test_operators_of_worker_threads_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many products are counted when clients are trained side by side."""
    counts = []
    for workers in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda workers=workers: workers)
        found, run = profiled(tmp_path / f"{workers}.json", model="cnn", rounds=3)
        assert run.experiment.engine == Sequential(workers)
        counts.append(next(s.calls for s in found.kernels if s.name == "aten::addmm"))
    assert counts[0] == counts[1] > 0


def test_a_trace_names_the_parts(tmp_path: Path) -> None:
    found, _ = profiled(tmp_path / "p.json", out=tmp_path / "run")
    assert found.trace == str(tmp_path / "p.json")
    names = {e["name"] for e in events(found.trace)}
    elsewhere = {str(Part.REPLAY), str(Part.COMPILED), str(Part.DIAGNOSTICS)}
    assert {str(part) for part in Part} - names == elsewhere, "step by step, without diagnostics"


def test_compiled_rounds_have_a_readable_name() -> None:
    name = readable("## Call CompiledFxGraph fri5i7rpxx ##")
    assert (name, kind(name)) == ("a compiled round", "Compiled code")
    assert readable("aten::mm") == "aten::mm"


def test_large_traces_are_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take, "_LARGE", 1)
    found, _ = profiled(tmp_path / "p.json")
    assert found.trace == str(tmp_path / "p.json.gz")
    assert not (tmp_path / "p.json").exists()
    assert break_down(events(found.trace), 2).ms == found.ms


def test_the_same_numbers(tmp_path: Path) -> None:
    _, run = profiled(tmp_path / "p.json")
    plain = begin()
    assert same(run.parameters, plain.parameters)
    assert run.history.drop(columns=TIMES).equals(plain.history.drop(columns=TIMES))


def test_rounds_without_the_profiler_are_timed_separately(tmp_path: Path) -> None:
    found, _ = profiled(tmp_path / "p.json", rounds=3)
    assert found.unprofiled_ms is None, "all rounds after the first were profiled"
    found, _ = profiled(tmp_path / "q.json", rounds=4)
    assert found.unprofiled_ms is not None
    assert found.unprofiled_ms > 0


def test_evaluations_are_counted(tmp_path: Path) -> None:
    found, _ = profiled(tmp_path / "p.json", profiled_rounds=5, eval_every=3)
    assert (found.rounds, found.evaluations) == ([2, 3, 4, 5, 6], 2)


def test_few_long_rounds_are_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take, "_MAX_SECONDS", 0.0)
    found, _ = profiled(tmp_path / "p.json", profiled_rounds=5)
    assert found.rounds == [2]


def test_a_run_that_ends_early(tmp_path: Path) -> None:
    found, _ = profiled(tmp_path / "p.json", profiled_rounds=5, rounds=4)
    assert found.rounds == [2, 3, 4]
    profile = Profile(tmp_path / "q.json", skip=4)
    begin(4, callbacks=[profile])
    assert profile.figures is None
    assert not (tmp_path / "q.json").exists()


def test_an_interrupted_round_does_not_count(tmp_path: Path) -> None:
    def fail(row: dict[str, Any], run: ud.Run) -> None:
        if row["round"] == 4:
            raise RuntimeError("enough")

    profile = Profile(tmp_path / "p.json", 1, 5)
    with pytest.raises(RuntimeError, match="enough"):
        begin(callbacks=[fail, profile])
    assert profile.figures is not None
    assert profile.figures.rounds == [2, 3]
    assert sum(part.ms for part in profile.figures.parts) == pytest.approx(profile.figures.ms)


@pytest.mark.parametrize(("given", "message"), [({"skip": -1}, "skip"), ({"rounds": 0}, "rounds")])
def test_refusals(given: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        Profile(tmp_path / "p.json", **given)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_of_replayed_rounds_are_seen(tmp_path: Path) -> None:
    found, _ = profiled(tmp_path / "p.json", skip=SKIPPED, rounds=8, device="cuda")
    assert found.on_gpu
    parts = {part.name: part for part in found.parts}
    on_device = {name: part.device_ms or 0.0 for name, part in parts.items()}
    assert max(on_device, key=on_device.__getitem__) == Part.REPLAY.label
    assert on_device[Part.EVALUATION.label] > 0
    assert sum(on_device.values()) == pytest.approx(sum(spent.ms for spent in found.kernels))
    assert 0 < found.busy_ms < found.ms
    assert found.device_bytes


# figures from a trace


def event(category: str, name: str, began: float, took: float, thread: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": began, "dur": took, "tid": thread, "args": args}


def gpu_trace() -> list[dict[str, Any]]:
    """Two rounds of 1000 µs and the beginning of a third; kernels overlap by 50 µs."""
    found = [
        event("user_annotation", "ProfilerStep#5", 2000, 100),
        event("user_annotation", Part.COHORT, 2000, 60),
        event("kernel", "_convolve", 2010, 20, thread=7, correlation=0),
    ]
    for number in range(2):
        at, first, second = 1000.0 * number, 2 * number, 2 * number + 1
        found += [
            event("user_annotation", f"ProfilerStep#{number + 3}", at, 1000),
            event("gpu_user_annotation", f"ProfilerStep#{number + 3}", at + 150, 700, thread=7),
            event("user_annotation", Part.COHORT, at + 10, 90),
            event("user_annotation", Part.REPLAY, at + 100, 100),
            event("cuda_runtime", "cudaGraphLaunch", at + 150, 10, correlation=first),
            event("user_annotation", Part.WAITING, at + 200, 400),
            event("kernel", "_convolve", at + 160, 300, thread=7, correlation=first),
            event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", at + 410, 100, thread=8, correlation=first),
            event("user_annotation", Part.EVALUATION, at + 650, 200),
            event("cuda_driver", "cuLaunchKernel", at + 660, 10, thread=2, correlation=second),
            event("kernel", "nvjet_sm90_tst_96x128_64x6_4x1_v_bz_NTN", at + 680, 80, thread=7, correlation=second),
            event("kernel", "unlaunched", at + 900, 20, thread=7, correlation=-1),
        ]
    return found


def test_kernels_belong_to_the_part_that_launched_them() -> None:
    found = break_down(gpu_trace(), 2)
    assert found.on_gpu
    assert found.ms == 1
    parts = {part.name: (round(part.ms, 6), round(part.device_ms or 0, 6)) for part in found.parts}
    assert parts == {
        Part.COHORT.label: (0.09, 0),
        Part.REPLAY.label: (0.1, 0.4),
        Part.WAITING.label: (0.4, 0),
        Part.EVALUATION.label: (0.2, 0.08),
        "Other": (0.21, 0.02),
    }
    assert found.busy_ms == pytest.approx(0.45), "what overlaps is busy once"
    assert {s.name: s.calls for s in found.kernels} == {
        "_convolve": 1,
        "Memcpy DtoD (Device -> Device)": 1,
        "nvjet_sm90_tst_96x128_64x6_4x1_v_bz_NTN": 1,
        "unlaunched": 1,
    }


def test_time_belongs_to_the_innermost() -> None:
    found = break_down(
        [
            event("user_annotation", "ProfilerStep#0", 0, 100),
            event("user_annotation", Part.TRAINING, 10, 50),
            event("user_annotation", Part.BATCHES, 10, 20),
            event("user_annotation", Part.BATCHES, 30, 5),
            event("user_annotation", "somebody else's", 40, 5),
            event("cpu_op", "aten::matmul", 36, 4),
            event("cpu_op", "aten::mm", 37, 3),
            event("cpu_op", "aten::mm", 37, 3, thread=2),
            event("cpu_op", "aten::mm", 100, 3),
            {"ph": "M", "name": "process_name", "ts": 0, "args": {}},
        ],
        1,
    )
    parts = {part.name: part.ms for part in found.parts}
    assert parts == pytest.approx({"Batches": 0.025, "Local training": 0.025, "Aggregation": 0, "Other": 0.05})
    assert {s.name: s.ms for s in found.kernels} == pytest.approx({"aten::mm": 0.006, "aten::matmul": 0.001})
    assert found.busy_ms == pytest.approx(0.007)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_convolve", "Convolutions, pooling"),
        ("_correlate", "Convolutions, pooling"),
        ("_transpose", "Convolutions, pooling"),
        ("_unpool", "Convolutions, pooling"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16", "Convolutions, pooling"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_64x64>", "Convolutions, pooling"),
        ("aten::mkldnn_convolution", "Convolutions, pooling"),
        ("aten::max_pool2d_with_indices_backward", "Convolutions, pooling"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align4>", "Matrix products"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1", "Matrix products"),
        ("nvjet_sm90_tst_96x128_64x6_4x1_v_bz_NTN", "Matrix products"),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>", "Matrix products"),
        ("aten::addmm", "Matrix products"),
        ("aten::bmm", "Matrix products"),
        ("aten::mkldnn_linear", "Matrix products"),
        ("aten::mm", "Matrix products"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>", "Elementwise"),
        ("void at::native::elementwise_kernel_with_index<int, at::native::arange_cuda_out(", "Elementwise"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<BinaryOpListAlphaFunctor", "Elementwise"),
        ("triton_poi_fused_convolution_relu_1", "Elementwise"),
        ("aten::add_", "Elementwise"),
        ("aten::__rshift__", "Elementwise"),
        ("aten::threshold_backward", "Elementwise"),
        ("void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float", "Reductions"),
        ("triton_per_fused_sum_3", "Reductions"),
        ("aten::_log_softmax", "Reductions"),
        ("aten::linalg_vector_norm", "Reductions"),
        ("aten::logsumexp", "Reductions"),
        ("Memcpy DtoD (Device -> Device)", "Copies and gathers"),
        ("Memcpy HtoD (Pageable -> Device)", "Copies and gathers"),
        ("Memset (Device)", "Copies and gathers"),
        ("void at::native::_scatter_gather_elementwise_kernel<128, 8", "Copies and gathers"),
        (
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
            "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)",
            "Copies and gathers",
        ),
        ("aten::index_select", "Copies and gathers"),
        ("aten::copy_", "Copies and gathers"),
        ("aten::to_mkldnn", "Copies and gathers"),
        ("void at::native::radixSortKVInPlace<2, -1, 32, 32, long", "Random numbers, sorts"),
        ("aten::sort", "Random numbers, sorts"),
        ("aten::view", "Views and bookkeeping"),
        ("aten::t", "Views and bookkeeping"),
        ("ConvolutionBackward0", "Views and bookkeeping"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "Views and bookkeeping"),
        ("somebody's kernel", OTHER),
    ],
)
def test_kinds(name: str, expected: str) -> None:
    assert kind(name) == expected


# the table


def figures(breakdown: Breakdown, **others: Any) -> Figures:
    known: dict[str, Any] = {
        **{"rounds": [4, 5], "evaluations": 2, "unprofiled_ms": 0.9, "cores_busy": 1.8},
        **{"host_bytes": 2 * 10**9, "device_bytes": None, "trace": "profile.json"},
    }
    return Figures(**vars(breakdown), **known | others)


def shown(found: Figures, width: int) -> list[str]:
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(table(found))
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_fits_on_a_screen(width: int) -> None:
    long = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    )
    renamed = [e | {"name": long} if e["name"] == "unlaunched" else e for e in gpu_trace()]
    lines = shown(figures(break_down(renamed, 2), device_bytes=3 * 10**9), width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 32
    text = "\n".join(lines)
    for expected in (
        "Rounds 4 to 5: 1.000 ms each, 0.900 ms when not profiled",
        "at most 2 GB of the host, 3 GB of the GPU",
    ):
        assert expected in text
    assert "busy 0.450 ms a round, 45 % of the time; idle 0.550 ms" in text
    assert ("CUDAFunctor_add<float>" in text) == (width == 120), "names are cut where there is no room"


def test_the_rows_of_a_table_add_up_as_printed(tmp_path: Path) -> None:
    found, _ = profiled(tmp_path / "p.json")
    rows = [line.split() for line in shown(found, 60) if "%" in line]
    labels = [*(part.name for part in found.parts), "A round"]
    column = [float(row[len(label.split())]) for row, label in zip(rows, labels, strict=False)]
    step = 10 ** -len(str(rows[0][len(labels[0].split())]).partition(".")[2])
    assert sum(column[:-1]) == pytest.approx(column[-1], abs=step * len(column) / 2)


def test_operators_of_several_threads() -> None:
    busy = [event("cpu_op", "aten::mm", 0, 90, thread=number) for number in (1, 2)]
    found = break_down([event("user_annotation", "ProfilerStep#0", 0, 100), *busy], 1)
    assert any("0.180 ms a round, 1.80 at a time" in line for line in shown(figures(found), 80))


# the command


def test_run_with_a_profile(undrift: Undrift) -> None:
    result = undrift("run", "-a", "fedhbm", *QUICK, "--rounds", "9", "--profile", "--out", "x")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Rounds 4 to 8: " in result.stdout
    assert "when not profiled" in result.stdout
    for part in (Part.TRAINING, Part.AGGREGATION, Part.EVALUATION):
        assert part.label in result.stdout
    assert "profile: x/profile.json\n" in result.stdout
    assert {str(Part.TRAINING), str(Part.AGGREGATION)} <= {e["name"] for e in events("x/profile.json")}


def test_run_with_a_profile_as_json(undrift: Undrift) -> None:
    found = json.loads(undrift("run", "-a", "fedhbm", *QUICK, "--rounds", "9", "--profile", "--json").stdout)
    plain = json.loads(undrift("run", "-a", "fedhbm", *QUICK, "--rounds", "9", "--json").stdout)
    profile = found.pop("profile")
    assert found.keys() == plain.keys()
    assert (found["loss"], found["accuracy"]) == (plain["loss"], plain["accuracy"])
    assert profile["rounds"] == [4, 5, 6, 7, 8]
    assert sum(part["ms"] for part in profile["parts"]) == pytest.approx(profile["ms"])
    assert Path(profile["trace"]).exists()


def test_zero_rounds_are_refused_as_without_a_profile(undrift: Undrift) -> None:
    result = undrift("run", "-a", "fedhbm", "--rounds", "0", "--profile")
    assert (result.exit_code, result.stderr) == (2, undrift("run", "-a", "fedhbm", "--rounds", "0").stderr)


def test_one_round(undrift: Undrift) -> None:
    result = undrift("run", "-a", "fedhbm", *QUICK, "--rounds", "1", "--profile", "--out", "x")
    assert result.exit_code == 0
    assert "Round 1: " in result.stdout
    assert "Start-up" in result.stdout
    assert Path("x/profile.json").exists()


def test_a_run_that_reaches_its_target_first(undrift: Undrift) -> None:
    result = undrift("run", "-a", "fedhbm", *QUICK, "--set", "run.target=0.01", "--profile", "--out", "x")
    assert result.exit_code == 0
    assert "No profile: the run ended too early" in result.stdout
    assert not Path("x/profile.json").exists()


def test_divergence_is_reported_as_without_a_profile(undrift: Undrift) -> None:
    diverging = ("--set", "local.lr=1e18", "--set", "local.weight_decay=1", "--set", "local.epochs=9")
    result = undrift("run", "-a", "fedavg", *QUICK, *diverging, "--profile", "--out", "x")
    assert result.exit_code == FAILED
    assert "No profile" in result.stdout
    assert result.stderr.startswith("undrift: error: diverged in round 1: ")


@pytest.mark.skipif(os.name == "nt", reason="needs signals")
def test_ctrl_c_saves_the_run_and_its_profile(undrift: Undrift, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Profile.round

    def press(self: Profile, row: dict[str, Any], run: ud.Run) -> None:
        call(self, row, run)
        if row["round"] == 5:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Profile, "round", press)
    result = undrift("run", "-a", "fedhbm", *QUICK, "--rounds", "100", "--profile", "--out", "x")
    assert result.exit_code == 130
    assert result.stderr == "undrift: interrupted after round 5; resume with: undrift resume x\n"
    assert "Rounds 4 to 5: " in result.stdout
    assert events("x/profile.json")
    again = json.loads(undrift("resume", "x", "--rounds", "7", "--json").stdout)
    whole = json.loads(undrift("run", "-a", "fedhbm", *QUICK, "--rounds", "7", "--json").stdout)
    assert again["loss"] == whole["loss"]
    assert not math.isnan(again["loss"])


def test_a_profile_needs_an_experiment(undrift: Undrift) -> None:
    result = undrift("run", "--profile")
    assert result.exit_code == 2
    assert "no algorithm is named" in result.stderr
