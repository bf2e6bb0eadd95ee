"""PyTorch's private functions. Each has a public fallback for versions of PyTorch that lack the private one.

No other module uses a private function or class of PyTorch. Names are looked up when they are used, so that a missing
one concerns nobody else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd import profiler


def norms(tensors: Sequence[Tensor], order: float = 2) -> list[Tensor]:
    """The norm of every tensor, NaN if it contains one; on a GPU a few kernels for all of them. Not for `vmap`."""
    together = getattr(torch, "_foreach_norm", None)
    if together is None:
        return [torch.linalg.vector_norm(tensor, order) for tensor in tensors]
    return list(together(list(tensors), order)) if tensors else []


def differences(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """Every tensor minus its other one, of the same shape; on a GPU a few kernels for all of them. Not for `vmap`."""
    together = getattr(torch, "_foreach_sub", None)
    if together is None:
        return [a - b for a, b in zip(tensors, others, strict=True)]
    return list(together(list(tensors), list(others))) if tensors else []


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copies every source into its target; on a GPU a few kernels for all of them."""
    together = getattr(torch, "_foreach_copy_", None)
    if together is None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
    elif targets:
        together(list(targets), list(sources))


def is_profiling() -> bool:
    """Whether a profiler may be recording."""
    return bool(getattr(profiler, "_is_profiler_enabled", True))  # marks for no profiler cost time, nothing else


def in_functorch() -> bool:
    """Whether the caller runs under `vmap`, `torch.func.grad` or another transform of `torch.func`."""
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    if active is not None:
        return bool(active())
    try:
        _apply(_WithoutSetupContext, torch.zeros(()))
    except RuntimeError:
        return True
    return False


def in_vmap() -> bool:
    """Whether the caller runs under `vmap`."""
    stack = getattr(getattr(torch._C, "_functorch", None), "get_interpreter_stack", None)
    if stack is None:
        return in_functorch()
    return any(level.key().name == "Vmap" for level in stack() or ())


class _WithoutSetupContext(torch.autograd.Function):
    """A function of the kind that the transforms of `torch.func` are documented to refuse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x


def _apply(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    return function.apply(*inputs)


@classmethod  # type: ignore[misc]
def _not_skipping(cls: type) -> bool:
    """For dispatch modes: PyTorch would import its compiler, which takes seconds, in order not to use it."""
    return False


def each_operation(around: Callable[[str, Callable[[], Any]], Any]) -> AbstractContextManager[Any]:
    """Inside, PyTorch's operations are run by ``around(name, operation)``, also those of compiled modules and of
    backward passes; where this version of PyTorch has no such hook, they are run as ever."""
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        return nullcontext()

    class Around(TorchDispatchMode):
        _should_skip_dynamo = _not_skipping

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return around(func._schema.name.partition("::")[2], lambda: func(*args, **(kwargs or {})))

    mode: AbstractContextManager[Any] = Around()  # type: ignore[no-untyped-call]
    return mode


def fused_lstm_cell() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """A step of an LSTM on a GPU as one kernel, and its derivative; without them, callers use plain operations."""
    forward = getattr(torch.ops.aten, "_thnn_fused_lstm_cell", None)
    backward = getattr(torch.ops.aten, "_thnn_fused_lstm_cell_backward_impl", None)
    return None if forward is None or backward is None else (forward, backward)


def trace(function: Callable[..., Any], inputs: Sequence[Tensor]) -> fx.GraphModule:
    """The operations of a function of tensors, with `vmap` and derivatives resolved.

    There is no public replacement: without it an ImportError is raised, and rounds are not compiled.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # slow to import, rarely needed

    return make_fx(function)(*inputs)


def compile_graph(graph: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Machine code for a graph and inputs of these shapes."""
    import torch._inductor as inductor  # slow to import, rarely needed

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the compiler warns about its own code
        compile_now = getattr(inductor, "standalone_compile", None)
        if compile_now is not None:
            compiled: Callable[..., Any] = compile_now(graph, list(inputs))
            return compiled
        compiled = torch.compile(graph, fullgraph=True, dynamic=False)
        compiled(*inputs)  # compiles here, where failures are expected, and not in the first round
        return compiled


def all_threads_config() -> Any | None:
    """Settings that make a profiler record threads that were started before it; None if it cannot."""
    try:
        from torch._C._profiler import _ExperimentalConfig

        return _ExperimentalConfig(profile_all_threads=True)
    except (ImportError, TypeError):
        return None


def is_convolution(module: nn.Module) -> bool:
    public = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    return isinstance(module, getattr(nn.modules.conv, "_ConvNd", public))


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, getattr(nn.modules.batchnorm, "_BatchNorm", _BATCH_NORMS))


def is_batch_or_instance_norm(module: nn.Module) -> bool:
    return isinstance(module, getattr(nn.modules.batchnorm, "_NormBase", (*_BATCH_NORMS, *_INSTANCE_NORMS)))


Slot = tuple[dict[str, Any], str]  # a table of tensors and a key in it


def tensor_slots(module: nn.Module) -> dict[str, list[Slot]]:
    """Where a module keeps its tensors, by name; a tensor that is put there is used from then on.

    A tied tensor has several places under its first name. Without such tables the result is empty, and
    `torch.func.functional_call` has to be used, which takes longer.
    """
    slots: dict[str, list[Slot]] = {}
    first: dict[int, str] = {}
    for prefix, part in module.named_modules():
        for table in (getattr(part, "_parameters", {}), getattr(part, "_buffers", {})):
            for leaf, tensor in table.items():
                if tensor is not None:
                    name = first.setdefault(id(tensor), f"{prefix}.{leaf}" if prefix else leaf)
                    slots.setdefault(name, []).append((table, leaf))
    return slots


def refresh_flat_weights(module: nn.RNNBase) -> None:
    """Makes a recurrent layer use the tensors that were put in place of its parameters.

    It calls its kernels with a list of its own. Where it has none, it uses the parameters themselves.
    """
    if hasattr(module, "_flat_weights"):
        names = getattr(module, "_flat_weights_names", None)
        parameters = module._parameters
        if names is None or list(parameters) == names:
            module._flat_weights = list(parameters.values())  # in the order in which they are registered
        else:  # some are computed from others, by `weight_norm` or `prune`
            module._flat_weights = [getattr(module, name, None) for name in names]


def uncompiled(module: nn.Module) -> None:
    """Makes a module and its parts run as they were written, not as `torch.compile` translated them: compiled code
    knows neither `vmap` nor tensors that are put in place of parameters."""
    for part in module.modules():
        if (original := getattr(part, "_orig_mod", None)) is not None:
            part.forward = original.forward
        if getattr(part, "_compiled_call_impl", None) is not None:
            part._compiled_call_impl = None


def gradient_hooks(parameter: Tensor) -> tuple[Callable[[Tensor], Tensor | None], ...]:
    """What `Tensor.register_hook` added to a parameter; copies of it do not have them."""
    return tuple((getattr(parameter, "_backward_hooks", None) or {}).values())


def has_accumulation_hooks(parameter: Tensor) -> bool:
    """Whether `Tensor.register_post_accumulate_grad_hook` added something."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


@contextmanager
def operations(see: Callable[[list[Tensor], list[Tensor]], Any]) -> Iterator[None]:
    """Shows `see` the tensors that each operation reads and those that it writes to, also through views and `.data`.

    Without PyTorch's dispatch modes, nothing is shown.
    """
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        yield
        return

    class Watch(TorchDispatchMode):
        _should_skip_dynamo = _not_skipping

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given, kwargs = list(args), kwargs or {}
            written: list[Tensor] = []
            for place, argument in enumerate(func._schema.arguments):
                value = given[place] if place < len(given) else kwargs.get(argument.name)
                if argument.alias_info is not None and argument.alias_info.is_write:
                    written += _tensors(value)
            see(_tensors([given, list(kwargs.values())]), written)
            return func(*args, **kwargs)

    watch: Any = Watch
    with watch():
        yield


def flops(compute: Callable[[], Any], formulas: Mapping[Any, Callable[..., int]]) -> int:
    """Floating-point operations of what `compute` does, by PyTorch's formulas and some more.

    `FlopCounterMode` gives the same total, but imports PyTorch's compiler, which takes seconds. Without dispatch modes,
    nothing is counted.
    """
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.flop_counter import flop_registry, shape_wrapper
    except ImportError:
        return 0
    known = {**flop_registry, **{op: shape_wrapper(formula) for op, formula in formulas.items()}}
    total = 0

    class Count(TorchDispatchMode):
        _should_skip_dynamo = _not_skipping

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal total
            kwargs = kwargs or {}
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            out = func(*args, **kwargs)
            if func._overloadpacket in known:
                total += known[func._overloadpacket](*args, **kwargs, out_val=out)
            return out

    count: Any = Count
    with count():
        compute()
    return total


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for part in value for t in _tensors(part)] if isinstance(value, list | tuple) else []


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether somebody sees the outputs of this module; if that is unknown, yes."""
    return bool(getattr(module, "_forward_hooks", True))


def has_forward_pre_hooks(module: nn.Module) -> bool:
    """Whether somebody sees the inputs of this module; if that is unknown, yes."""
    return bool(getattr(module, "_forward_pre_hooks", True))


def has_backward_hooks(module: nn.Module) -> bool:
    """Whether somebody sees the gradients at this module's inputs or outputs; if that is unknown, yes."""
    return bool(getattr(module, "_backward_hooks", True)) or bool(getattr(module, "_backward_pre_hooks", True))
