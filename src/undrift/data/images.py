"""Images as arrays of bytes [channels, height, width]."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

Array = np.ndarray[Any, Any]
_MARGIN = 256 / 224  # an image's shorter side relative to the square that is cropped


def decode(source: Any, channels: int | None = None, square: int | None = None) -> Array:
    """From encoded bytes, a cell of the hub (``{"bytes": ...}``), a file's path, a Pillow image or an array.

    `channels` 1 or 3 converts to grey or colour; `square` scales and crops the centre.
    """
    if isinstance(source, dict):
        source = source.get("bytes") or source.get("path")
    if source is None:
        raise ValueError("there is no image")
    if isinstance(source, np.ndarray):
        source = Image.fromarray(source)
    opened = source if isinstance(source, Image.Image) else Image.open(_stream(source))
    mode = {None: "L" if opened.mode in ("1", "L", "I;16", "I") else "RGB", 1: "L", 3: "RGB"}[channels]
    image = opened if opened.mode == mode else opened.convert(mode)
    if square is not None:
        image = _centre_crop(image, square)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _stream(source: Any) -> Any:
    return io.BytesIO(source) if isinstance(source, bytes) else source


def _centre_crop(image: Image.Image, side: int) -> Image.Image:
    """The central square of the image, scaled so that its shorter side is a seventh longer."""
    scale = round(side * _MARGIN) / min(image.size)
    width, height = (max(side, round(length * scale)) for length in image.size)
    left, top = (width - side) // 2, (height - side) // 2
    return image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + side, top + side))


def decode_all(
    sources: Sequence[Any], where: Sequence[str], shape: tuple[int, int, int] | None, resized: bool = False
) -> Array:
    """Images of one shape [n, channels, height, width], by default that of the first; `where` is for messages."""
    channels = None if shape is None else shape[0]
    square = shape[1] if resized and shape is not None else None

    def one(item: tuple[Any, str]) -> Array:
        try:
            return decode(item[0], channels, square)
        except (OSError, ValueError, TypeError, SyntaxError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{item[1]} is not a readable image: {first}") from error

    items = zip(sources, where, strict=True)
    if resized:  # for small images threads cost more than they gain
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(one, items))
    else:
        found = [one(item) for item in items]
    wanted = found[0].shape if shape is None else shape
    for pixels, place in zip(found, where, strict=True):
        if pixels.shape != wanted:
            raise ValueError(f"{place} is {_size(pixels.shape)}; all images must be {_size(wanted)}")
    return np.stack(found)


def _size(shape: tuple[int, ...]) -> str:
    colour = {1: "grey", 3: "colour"}[shape[0]]
    return f"{shape[1]}×{shape[2]} {colour}"
