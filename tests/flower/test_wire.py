"""What travels: every nest of tensors arrives as it was sent, and nothing else is accepted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from undrift.core.tree import Nest
from undrift.flower import wire

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.int64, torch.int8, torch.uint8, torch.bool),
)


@st.composite
def tensors(draw: Any) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    bits = torch.tensor(draw(st.lists(st.integers(0, 255), min_size=27, max_size=27)), dtype=torch.uint8)
    dtype = draw(st.sampled_from(DTYPES))
    count = torch.Size(shape).numel()
    if dtype is torch.bool:
        return (bits[:count] > 99).reshape(shape)
    return bits.repeat(8)[: count * dtype.itemsize].clone().view(dtype).reshape(shape)  # NaN and infinity among them


NAMES = st.text(alphabet="ab/~.\x00é", max_size=3)
NESTS = st.recursive(
    st.dictionaries(NAMES, tensors(), max_size=3),
    lambda inner: st.dictionaries(NAMES, st.one_of(tensors(), inner), max_size=3),
    max_leaves=6,
)


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)


def shape(nest: Any) -> Any:
    """Names, dtypes and shapes, in any order."""
    if isinstance(nest, dict):
        return {key: shape(value) for key, value in nest.items()}
    return nest.dtype, nest.shape


@settings(deadline=None, max_examples=60)
@given(NESTS)
def test_every_nest_arrives_to_the_bit(nest: Nest) -> None:
    assert same(wire.from_record(wire.to_record(nest), wire.structure(nest), "reply"), nest)


@settings(deadline=None, max_examples=60)
@given(NESTS, NESTS)
def test_only_the_expected_structure_is_accepted(sent: Nest, expected: Nest) -> None:
    record, shapes = wire.to_record(sent), wire.structure(expected)
    if shape(sent) == shape(expected):
        wire.from_record(record, shapes, "reply")
    else:
        with pytest.raises(wire.WireError, match=r"\Areply: .*\Z"):
            wire.from_record(record, shapes, "reply")


def test_a_transposed_and_an_expanded_tensor_arrive_as_they_read() -> None:
    nest = {"t": torch.arange(6.0).reshape(2, 3).T, "e": torch.ones(1).expand(4)}
    arrived = wire.from_record(wire.to_record(nest), wire.structure(nest), "reply")
    assert same(arrived, nest)
    assert arrived["t"].is_contiguous()


MODEL = {"update": {"fc/0.weight": torch.zeros(2, 3), "fc/0.bias": torch.zeros(2)}, "extra": {}}


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"update": {"fc/0.weight": torch.zeros(2, 3)}, "extra": {}}, "'update/fc~10.bias' is missing"),
        (MODEL | {"more": torch.zeros(1)}, "'more' is not expected"),
        ({"update": MODEL["update"]}, "'extra/' is missing"),
        (
            {"update": {"fc/0.weight": torch.zeros(3, 2), "fc/0.bias": torch.zeros(2)}, "extra": {}},
            "'update/fc~10.weight' is 'float32' (3, 2), expected 'float32' (2, 3)",
        ),
        (
            {"update": {"fc/0.weight": torch.zeros(2, 3).double(), "fc/0.bias": torch.zeros(2)}, "extra": {}},
            "'update/fc~10.weight' is 'float64' (2, 3), expected 'float32' (2, 3)",
        ),
    ],
)
def test_a_wrong_reply_is_named_in_one_line(sent: Nest, message: str) -> None:
    with pytest.raises(wire.WireError) as refused:
        wire.from_record(wire.to_record(sent), wire.structure(MODEL), "client 3")
    assert str(refused.value) == f"client 3: {message}"


def test_bytes_that_do_not_fit_the_shape_are_refused() -> None:
    from flwr.app import Array, ArrayRecord

    cut = ArrayRecord({"x": Array("float32", (4,), "undrift.raw", b"\0" * 15)})
    with pytest.raises(wire.WireError, match="15 bytes, expected 16"):
        wire.from_record(cut, {"x": torch.zeros(4)}, "client 3")
    pickled = ArrayRecord({"x": Array("float32", (4,), "numpy.ndarray", b"\0" * 16)})
    with pytest.raises(wire.WireError, match="expected"):
        wire.from_record(pickled, {"x": torch.zeros(4)}, "client 3")
    with pytest.raises(wire.WireError, match="client 3 is missing"):
        wire.from_record(None, {"x": torch.zeros(4)}, "client 3")


def test_plain_values_are_checked_by_name_and_type() -> None:
    from flwr.app import ConfigRecord

    kinds = {"round": int, "lr": float}
    assert wire.numbers_from(ConfigRecord({"round": 1, "lr": 0.5}), kinds, "order") == {"round": 1, "lr": 0.5}
    with pytest.raises(wire.WireError, match="order: 'round' must be of type int, got True"):
        wire.numbers_from(ConfigRecord({"round": True, "lr": 0.5}), kinds, "order")
    with pytest.raises(wire.WireError, match="order: 'lr' is missing"):
        wire.numbers_from(ConfigRecord({"round": 1}), kinds, "order")
    with pytest.raises(wire.WireError, match="order: 'x' is not expected"):
        wire.numbers_from(ConfigRecord({"round": 1, "lr": 0.5, "x": 1}), kinds, "order")


def test_a_dtype_that_is_not_sent_is_refused_by_its_sender() -> None:
    with pytest.raises(wire.WireError, match="'x' has the dtype"):
        wire.to_record({"x": torch.zeros(2, dtype=torch.float8_e4m3fn)})
