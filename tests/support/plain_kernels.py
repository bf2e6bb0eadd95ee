"""`undrift.accelerate.kernels` in plain PyTorch, one client after another, and how to compare the two."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from undrift.accelerate.geometry import Geometry

calls: list[str] = []  # what was asked for


def first(tensor: Tensor) -> Tensor:
    """[..., H, W, C] → [..., C, H, W]."""
    return tensor.movedim(-1, -3)


def last(tensor: Tensor) -> Tensor:
    return tensor.movedim(-3, -1).contiguous()


def spread_out(x: Tensor, spread: tuple[int, int]) -> Tensor:
    """Pixels [..., H, W] so far apart, zeros between."""
    high, wide = ((s - 1) * d + 1 for s, d in zip(x.shape[-2:], spread, strict=True))
    out = x.new_zeros(*x.shape[:-2], high, wide)
    out[..., :: spread[0], :: spread[1]] = x
    return out


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    size: tuple[int, int],
    geometry: Geometry,
    clients: int,
    *,
    pool: bool = False,
) -> tuple[Tensor, Tensor | None]:
    calls.append("pooled" if pool else "plain")
    outputs = []
    for i in range(clients):
        own = spread_out(first(x[i % len(x)]), geometry.spread)
        kernel = first(weight[i % len(weight)])
        margin = [*(2 * [geometry.padding[1]]), *(2 * [geometry.padding[0]])]
        # Padding for every window, also where a stride left pixels over.
        missing = [
            max(0, (n - 1) * t + d * (k - 1) + 1 - (s + 2 * p))
            for n, t, k, d, p, s in zip(
                size, geometry.stride, geometry.kernel, geometry.dilation, geometry.padding, own.shape[-2:], strict=True
            )
        ]
        margin[1] += missing[1]
        margin[3] += missing[0]
        given = None if bias is None else bias[i % len(bias)]
        out = F.conv2d(F.pad(own, margin), kernel, given, geometry.stride, 0, geometry.dilation)
        outputs.append(out[..., : size[0], : size[1]])
    stacked = torch.stack(outputs)  # [n, B, F, OH, OW]
    if not pool:
        return last(stacked), None
    high, wide = size[0] // 2, size[1] // 2
    windows = stacked[..., : 2 * high, : 2 * wide].unflatten(-1, (wide, 2)).unflatten(-3, (high, 2))
    top, which = windows.transpose(-2, -3).flatten(-2).max(-1)
    dead = top <= 0
    return last(torch.where(dead, 0, top)), last(torch.where(dead, 4, which).to(torch.uint8))


def unpool(pooled: Tensor, code: Tensor, size: tuple[int, int]) -> Tensor:
    out = pooled.new_zeros(*pooled.shape[:2], *size, pooled.shape[-1])
    for pixel in range(4):
        rows = slice(pixel // 2, 2 * (size[0] // 2), 2)
        columns = slice(pixel % 2, 2 * (size[1] // 2), 2)
        out[:, :, rows, columns] = torch.where(code == pixel, pooled, 0)
    return out


def correlate(
    x: Tensor, gradient: Tensor, code: Tensor | None, size: tuple[int, int], geometry: Geometry
) -> tuple[Tensor, Tensor]:
    full = gradient if code is None else unpool(gradient, code, size)
    weights = []
    for i in range(len(full)):
        own, slope = first(x[i % len(x)]), first(full[i])
        kernel = own.new_zeros(slope.shape[1], own.shape[1], *geometry.kernel, requires_grad=True)
        with torch.enable_grad():
            out = F.conv2d(own, kernel, None, geometry.stride, geometry.padding, geometry.dilation)
        weights.append(torch.autograd.grad(out, kernel, slope)[0])
    return torch.stack(weights), full.sum((1, 2, 3))


def transposed(tensor: Tensor, dtype: torch.dtype, *, shares: bool = False, flip: int = 1) -> Tensor:
    out = (tensor.sum(0) if shares else tensor).mT
    if flip > 1:
        out = out.unflatten(-2, (-1, flip)).flip(-2).flatten(-3, -2)
    return out.to(dtype).contiguous()


class Case(NamedTuple):
    """Clients, batch, channels, height, width, outputs, kernel, stride, padding, dilation, pooled."""

    clients: int
    batch: int
    channels: int
    height: int
    width: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    pooled: bool = False


CASES = (
    Case(2, 3, 3, 8, 8, 8, (3, 3)),
    Case(2, 3, 3, 8, 9, 8, (3, 3), padding=(1, 1), pooled=True),
    Case(2, 2, 16, 9, 7, 20, (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(3, 2, 4, 11, 11, 5, (5, 5), pooled=True),
    Case(2, 2, 4, 12, 10, 5, (3, 2), padding=(2, 1), dilation=(2, 1)),
    Case(1, 5, 4, 12, 12, 70, (3, 3), stride=(2, 1), padding=(1, 1), pooled=True),
    Case(2, 4, 64, 6, 6, 64, (5, 5), padding=(2, 2), pooled=True),
    Case(2, 3, 17, 5, 5, 3, (1, 1)),
    Case(2, 4, 6, 14, 13, 40, (5, 5), pooled=True),
    Case(3, 3, 1, 9, 8, 6, (5, 3), padding=(2, 1), pooled=True),
)


def compare(case: Case, device: str, tolerance: float, dtype: torch.dtype = torch.float32) -> None:
    """The kernels against the above, forward, both gradients, and where a tensor is shared by all clients."""
    from undrift.accelerate import kernels
    from undrift.accelerate.convolution import Spec

    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    spec = Spec(case.kernel, case.stride, case.padding, case.dilation, pooled=case.pooled, dtype=dtype)
    size = spec.size((case.height, case.width))
    own = numbers(case.clients, case.batch, case.height, case.width, case.channels)
    taps = case.kernel[0] * case.kernel[1] * case.channels
    weight = numbers(case.clients, case.outputs, *case.kernel, case.channels) / taps**0.5
    bias = numbers(case.clients, case.outputs)
    geometry = (case.kernel, case.stride, case.padding, case.dilation)

    def near(found: Tensor, expected: Tensor) -> None:
        scale = float(expected.abs().max()) + 1e-6
        assert float((found.double() - expected.double()).abs().max()) <= tolerance * scale

    for x in (own, own[:1]):
        options: Any = {"size": size, "clients": case.clients, "pool": case.pooled}
        out, code = kernels.convolve(x, weight, bias, geometry=Geometry(*geometry), **options)
        exact = (x.double(), weight.double(), bias.double())
        expected, chosen = convolve(*exact, geometry=Geometry(*geometry), **options)
        near(out, expected)
        if code is not None and chosen is not None:
            assert float((code != chosen).double().mean()) <= 10 * tolerance  # rounding decides ties
        slope = numbers(*out.shape)
        weights, biases = kernels.correlate(x, slope, code, size=size, geometry=Geometry(*geometry))
        exact_gradients = correlate(x.double(), slope.double(), code, size=size, geometry=Geometry(*geometry))
        near(weights, exact_gradients[0])
        near(biases, exact_gradients[1])
        if code is not None:
            assert torch.equal(kernels.unpool(slope, code, size), unpool(slope, code, size))
    margin: Any = tuple(d * (k - 1) - p for k, p, d in zip(case.kernel, case.padding, case.dilation, strict=True))
    back = (case.kernel, (1, 1), margin, case.dilation, case.stride)
    slope = numbers(case.clients, case.batch, *size, case.outputs)
    flat = first(weight).contiguous().flatten(2)
    flipped = kernels.transposed(flat, dtype, flip=case.kernel[0] * case.kernel[1])
    assert torch.equal(flipped, transposed(flat, dtype, flip=case.kernel[0] * case.kernel[1]))
    flipped = flipped.view(case.clients, case.channels, *case.kernel, case.outputs)
    shape: Any = {"size": (case.height, case.width), "clients": case.clients}
    found, _ = kernels.convolve(slope, flipped, None, geometry=Geometry(*back), **shape)
    near(found, convolve(slope.double(), flipped.double(), None, geometry=Geometry(*back), **shape)[0])
