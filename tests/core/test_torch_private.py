"""Every fallback, with the private name removed: the same results."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor
from torch import Tensor, nn
from torch.autograd import profiler
from torch.func import functional_call, grad, vmap
from torch.profiler import ProfilerActivity, profile

import undrift as ud
from undrift.core import torch_private
from undrift.core.parts import Part, mark

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("order", [2, math.inf])
def test_norms(monkeypatch: Patch, order: float) -> None:
    tensors = [torch.tensor([4.0, -3.0]), torch.tensor(2.0, dtype=torch.float64), torch.tensor([math.nan, 1.0])]
    private = torch_private.norms(tensors, order)
    monkeypatch.delattr(torch, "_foreach_norm")
    torch.testing.assert_close(torch_private.norms(tensors, order), private, rtol=0, atol=0, equal_nan=True)
    assert [float(norm) for norm in private[:2]] == [5.0 if order == 2 else 4.0, 2.0]
    assert math.isnan(private[2])


def test_differences(monkeypatch: Patch) -> None:
    tensors, others = [torch.rand(2, 3), torch.tensor(2.0)], [torch.rand(2, 3), torch.tensor(0.5)]
    private = torch_private.differences(tensors, others)
    monkeypatch.delattr(torch, "_foreach_sub")
    torch.testing.assert_close(torch_private.differences(tensors, others), private, rtol=0, atol=0)
    assert float(private[1]) == 1.5


@pytest.mark.parametrize("private", [True, False])
def test_copy_all(private: bool, monkeypatch: Patch) -> None:
    if not private:
        monkeypatch.delattr(torch, "_foreach_copy_")
    sources = [torch.arange(3), torch.rand(2, 2), torch.tensor(4.0)]
    targets = [torch.zeros_like(source) for source in sources]
    torch_private.copy_all(targets, sources)
    torch.testing.assert_close(targets, sources, rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        torch_private.norms,
        lambda none: torch_private.copy_all(none, none),
        lambda none: torch_private.differences(none, none),
    ],
)
@pytest.mark.parametrize("name", ["_foreach_norm", "_foreach_copy_", "_foreach_sub", None])
def test_no_tensors(function: Any, name: str | None, monkeypatch: Patch) -> None:
    if name is not None:
        monkeypatch.delattr(torch, name)
    assert not function([])


@pytest.mark.parametrize("private", [True, False])
def test_parts_are_marked_while_profiling(private: bool, monkeypatch: Patch) -> None:
    if not private:
        monkeypatch.delattr(profiler, "_is_profiler_enabled")
    with profile(activities=[ProfilerActivity.CPU]) as recorded, mark(Part.TRAINING):
        torch.ones(2).sum()
    assert Part.TRAINING in {event.key for event in recorded.key_averages()}
    with mark(Part.TRAINING):  # nor does a mark outside of a profile fail
        pass


@pytest.mark.parametrize("private", [True, False])
def test_in_functorch(private: bool, monkeypatch: Patch) -> None:
    if not private:
        # Only as `torch_private` sees it: PyTorch itself cannot do without.
        monkeypatch.setattr(torch_private, "torch", SimpleNamespace(_C=SimpleNamespace(), zeros=torch.zeros))
    found: list[bool] = []

    def note(x: Tensor) -> Tensor:
        found.append(torch_private.in_functorch())
        return x.sum()

    x = torch.ones(2, 3)
    note(x)
    vmap(note)(x)
    grad(note)(x)
    vmap(grad(note))(x)
    note(x)
    assert found == [False, True, True, True, False]


@pytest.mark.parametrize("private", [True, False])
def test_in_vmap(private: bool, monkeypatch: Patch) -> None:
    """Without the private function, other transforms are taken for it."""
    if not private:
        monkeypatch.setattr(torch_private, "torch", SimpleNamespace(_C=SimpleNamespace(), zeros=torch.zeros))
    found: list[bool] = []

    def note(x: Tensor) -> Tensor:
        found.append(torch_private.in_vmap())
        return x.sum()

    x = torch.ones(2, 3)
    for call in (note, vmap(note), grad(note), vmap(grad(note)), note):
        call(x)
    assert found == [False, True, not private, True, False]


@pytest.mark.parametrize("private", [True, False])
def test_each_operation(private: bool, monkeypatch: Patch) -> None:
    if not private:
        monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", None)
    names: list[str] = []

    def note(name: str, operation: Any) -> Any:
        names.append(name)
        return operation()

    with torch_private.each_operation(note):
        result = torch.ones(3).add(2).sum()
    assert float(result) == 9
    assert names == (["ones", "add", "sum"] if private else [])


@pytest.mark.parametrize("name", ["_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl"])
def test_fused_lstm_cell(name: str, monkeypatch: Patch) -> None:
    """What callers do instead is compared in `test_recurrence.py`."""
    assert torch_private.fused_lstm_cell() is not None
    monkeypatch.setattr(torch.ops, "aten", SimpleNamespace(**{name: torch.ops.aten.mm}))
    assert torch_private.fused_lstm_cell() is None


def test_trace_without_make_fx(monkeypatch: Patch) -> None:
    """The caller's fallback, not to compile, is tested in `test_compiled.py`."""
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.proxy_tensor", ModuleType("empty"))
    with pytest.raises(ImportError, match="make_fx"):
        torch_private.trace(torch.sin, [torch.ones(1)])


@pytest.mark.parametrize("private", [True, False])
def test_compile_graph(private: bool, monkeypatch: Patch) -> None:
    if not private:
        monkeypatch.delattr(torch._inductor, "standalone_compile")
        # The compiler itself is tried in `test_compiled.py`; here, what is handed to it.
        monkeypatch.setattr(torch, "compile", lambda graph, fullgraph, dynamic: graph)

    def function(a: Tensor, b: Tensor) -> list[Tensor]:
        return [vmap(torch.dot)(a, b), a.sin()]

    inputs = [torch.rand(3, 4), torch.rand(3, 4)]
    run = torch_private.compile_graph(torch_private.trace(function, inputs), inputs)
    torch.testing.assert_close(list(run(*inputs)), function(*inputs))


@pytest.mark.parametrize("private", [True, False])
def test_all_threads_config(private: bool, monkeypatch: Patch) -> None:
    if not private:
        monkeypatch.setitem(sys.modules, "torch._C._profiler", ModuleType("empty"))
    config = torch_private.all_threads_config()
    monkeypatch.undo()
    assert (config is not None) == private
    with profile(activities=[ProfilerActivity.CPU], experimental_config=config) as recorded:
        torch.ones(2).sum()
    assert "aten::sum" in {event.key for event in recorded.key_averages()}


MODULES: list[nn.Module] = [
    *(kind(2, 2, 1) for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
    *(kind(2, 2, 1) for kind in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)),
    *(kind(2) for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)),
    *(kind(2) for kind in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)),
    *(nn.Linear(2, 2), nn.GroupNorm(1, 2), nn.LayerNorm(2)),
]


@pytest.mark.parametrize(
    ("test", "holder", "name", "count"),
    [
        (torch_private.is_convolution, nn.modules.conv, "_ConvNd", 6),
        (torch_private.is_batch_norm, nn.modules.batchnorm, "_BatchNorm", 4),
        (torch_private.is_batch_or_instance_norm, nn.modules.batchnorm, "_NormBase", 7),
    ],
)
def test_kinds_of_modules(test: Any, holder: ModuleType, name: str, count: int, monkeypatch: Patch) -> None:
    private = [test(module) for module in MODULES]
    assert sum(private) == count
    monkeypatch.delattr(holder, name)
    assert [test(module) for module in MODULES] == private


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_refresh_flat_weights(kind: Any) -> None:
    torch.manual_seed(0)
    module = kind(3, 4, num_layers=2, bidirectional=True)
    other = {name: torch.rand_like(parameter) for name, parameter in module.named_parameters()}
    x = torch.rand(5, 2, 3)
    expected = functional_call(module, other, (x,))[0]
    replaced = copy.deepcopy(module)
    for name, tensor in other.items():
        replaced._parameters[name] = tensor
    torch_private.refresh_flat_weights(replaced)
    assert torch.equal(replaced(x)[0], expected)


def test_a_recurrent_layer_without_flat_weights() -> None:
    module = nn.LSTM(3, 4)
    del module._flat_weights
    torch_private.refresh_flat_weights(module)
    assert not hasattr(module, "_flat_weights")


@pytest.mark.parametrize("private", [True, False])
def test_hooks(private: bool) -> None:
    """Callers leave modules with hooks as they are, which gives the same numbers."""
    module = nn.ReLU()
    if not private:
        del module._forward_hooks, module._forward_pre_hooks
    assert torch_private.has_forward_hooks(module) != private
    assert torch_private.has_forward_pre_hooks(module) != private
    if private:
        with module.register_forward_hook(lambda part, given, output: None):
            assert torch_private.has_forward_hooks(module)
            assert not torch_private.has_forward_pre_hooks(module)
        with module.register_forward_pre_hook(lambda part, given: None):
            assert torch_private.has_forward_pre_hooks(module)


class Tied(nn.Module):
    """An embedding whose weight is used twice, and statistics that are written to."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4)
        self.outer = nn.Linear(4, 4, bias=False)
        self.outer.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.outer(self.norm(self.inner(x)))
        return output


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_tensor_slots(engine: str, monkeypatch: Patch) -> None:
    torch.manual_seed(0)
    module, data = Tied(), [(torch.randn(6, 4), torch.arange(6) % 4) for _ in range(3)]
    private = ud.simulate("scaffold", module, data, rounds=2, batch_size=3, lr=0.1, engine=engine)
    monkeypatch.setattr(torch_private, "tensor_slots", lambda module: {})
    public = ud.simulate("scaffold", module, data, rounds=2, batch_size=3, lr=0.1, engine=engine)
    torch.testing.assert_close(public.parameters, private.parameters, rtol=0, atol=0)
    torch.testing.assert_close(public.buffers, private.buffers, rtol=0, atol=0)


def seen(function: Callable[[], Any]) -> tuple[set[int], set[int]]:
    """Where the tensors begin that operations read, and those that they write to."""
    read: set[int] = set()
    written: set[int] = set()

    def see(reads: list[Tensor], writes: list[Tensor]) -> None:
        read.update(t.data_ptr() for t in reads)
        written.update(t.data_ptr() for t in writes)

    with torch_private.operations(see):
        function()
    return read, written


def test_operations_show_what_is_written_also_by_views_and_data() -> None:
    a, b, c, d = (torch.ones(3, requires_grad=True) for _ in range(4))

    def function() -> None:
        a.data.clamp_(-1, 1)
        b.detach().view(3)[:1].zero_()
        torch.mul(c.detach(), 2, out=d.data)

    read, written = seen(function)
    assert written == {t.data_ptr() for t in (a, b, d)}
    assert c.data_ptr() in read


def test_flops() -> None:
    convolution, linear, x = nn.Conv2d(2, 3, 3), nn.Linear(48, 5), torch.zeros(4, 2, 6, 6)
    by_hand = 2 * 4 * (3 * 4 * 4) * (2 * 3 * 3) + 2 * 4 * 48 * 5
    with torch.no_grad():
        assert torch_private.flops(lambda: linear(convolution(x).flatten(1)), {}) == by_hand
        assert torch_private.flops(lambda: x.exp(), {}) == 0
        assert (
            torch_private.flops(lambda: x.exp(), {torch.ops.aten.exp: lambda shape, **_: math.prod(shape)}) == x.numel()
        )


def test_flops_without_dispatch_modes(monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", None)
    assert torch_private.flops(lambda: torch.zeros(2, 2) @ torch.zeros(2, 2), {}) == 0


def test_operations_without_dispatch_modes(monkeypatch: Patch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", None)
    assert seen(lambda: torch.ones(2).add_(1)) == (set(), set())


def test_uncompiled() -> None:
    """A module that was compiled, in place or in a wrapper, runs as it was written."""

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self._orig_mod = module

        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError("compiled code")

    def compiled(*_: Any) -> Tensor:
        raise AssertionError("compiled code")

    inner: Any = nn.Linear(2, 2)
    inner._compiled_call_impl = compiled
    module = nn.Sequential(Wrapper(inner))
    torch_private.uncompiled(module)
    x = torch.ones(1, 2)
    torch.testing.assert_close(module(x), torch.nn.functional.linear(x, inner.weight, inner.bias))


def test_hooks_of_parameters() -> None:
    parameter = nn.Parameter(torch.ones(2))
    assert torch_private.gradient_hooks(parameter) == ()
    assert not torch_private.has_accumulation_hooks(parameter)

    def double(gradient: Tensor) -> Tensor:
        return 2 * gradient

    parameter.register_hook(double)
    parameter.register_post_accumulate_grad_hook(lambda _: None)
    assert torch_private.gradient_hooks(parameter) == (double,)
    assert torch_private.has_accumulation_hooks(parameter)


def test_backward_hooks_of_modules() -> None:
    module = nn.Linear(2, 2)
    assert not torch_private.has_backward_hooks(module)
    module.register_full_backward_hook(lambda *_: None)
    assert torch_private.has_backward_hooks(module)
