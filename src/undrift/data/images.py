"""Images as arrays of bytes [channels, height, width]."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from undrift.data.foreign import first_line

Array = np.ndarray[Any, Any]
_MARGIN = 256 / 224  # an image's shorter side relative to the square that is cropped
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # of Pillow's; others start programs (EPS)
_DEEP = ("I", "F")  # first letters of modes with more than eight bits per pixel


def decode(
    source: Any, channels: int | None = None, square: int | None = None, size: tuple[int, int] | None = None
) -> Array:
    """From encoded bytes, a cell of the hub (``{"bytes": ...}``), a `Path` or a Pillow image.

    `channels` 1 or 3 converts to grey or colour; `square` scales and crops the centre. What is not of the `size`
    (width and height) expected is not decoded.
    """
    if isinstance(source, dict):
        if source.get("bytes") is None and source.get("path"):
            raise ValueError("there is only the name of a file, which is not opened")
        source = source.get("bytes")
    if source is None:
        raise ValueError("there is no image")
    if isinstance(source, (bytes, Path)):
        source = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_FORMATS)
    if not isinstance(source, Image.Image):
        raise ValueError(f"it is {type(source).__name__}, not the bytes of an image")
    if size is not None and source.size != size:
        raise ValueError(f"it has {_by(*source.size)} pixels, not {_by(*size)}")
    if source.mode.startswith(_DEEP):
        source = _in_bytes(source)
    mode = {None: "L" if source.mode in ("1", "L") else "RGB", 1: "L", 3: "RGB"}[channels]
    image = source if source.mode == mode else source.convert(mode)
    if square is not None:
        image = _centre_crop(image, square)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _in_bytes(image: Image.Image) -> Image.Image:
    """A grey image of deeper pixels whose values are bytes all the same; Pillow would cut off what is larger."""
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= 255 and (values == np.round(values)).all()):
        raise ValueError(f"its values lie in {low}..{high}, not in 0..255")
    return Image.fromarray(values.astype(np.uint8))


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
            return decode(item[0], channels, square, None if resized or shape is None else (shape[2], shape[1]))
        except Exception as error:  # whatever Pillow makes of bytes that are no image
            raise ValueError(f"{item[1]} is not a readable image: {first_line(error)}") from error

    items = zip(sources, where, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is odd in a file, but readable
        warnings.simplefilter("error", Image.DecompressionBombWarning)
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
    return f"{_by(shape[2], shape[1])} {'grey' if shape[0] == 1 else 'colour'}"


def _by(width: int, height: int) -> str:
    return f"{height}×{width}"
