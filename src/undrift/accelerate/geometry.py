"""How the output pixels of a convolution map to its input pixels."""

from __future__ import annotations

from typing import NamedTuple


class Geometry(NamedTuple):
    """`spread` is the distance between input pixels, with zeros between them."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    spread: tuple[int, int] = (1, 1)

    def is_bounded(self, size: tuple[int, int], input_size: tuple[int, int]) -> bool:
        """Whether windows of an output of `size` may reach beyond the edge of the image."""
        return any(
            p != 0 or (out - 1) * t + (k - 1) * d >= side
            for out, side, k, t, p, d in zip(
                size, input_size, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )
