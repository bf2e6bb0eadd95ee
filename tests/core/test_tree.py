"""Arithmetic on trees; a name that the second tree lacks is left alone."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap
from torch.testing import assert_close

from undrift.core import tree

A = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.tensor([5.0, 6.0])}
B = {"w": torch.tensor([[10.0, 20.0], [30.0, 40.0]]), "b": torch.tensor([50.0, 60.0])}
PART = {"b": torch.tensor([1.0, 1.0])}
STACKED = {k: torch.stack([A[k], B[k], A[k] - B[k]]) for k in A}


def test_add_and_sub() -> None:
    assert_close(tree.add(A, B, 0.5)["w"], torch.tensor([[6.0, 12.0], [18.0, 24.0]]))
    assert_close(tree.add(A, B, torch.tensor(0.5)), tree.add(A, B, 0.5))
    assert_close(tree.sub(B, A)["b"], torch.tensor([45.0, 54.0]))
    assert_close(tree.sub(tree.add(A, B), B), A)


@pytest.mark.parametrize("combine", [tree.add, tree.sub, lambda a, b: tree.mix(a, b, 0.25)])
def test_a_partial_tree_acts_where_it_has_the_name(combine: object) -> None:
    out = combine(A, PART)  # type: ignore[operator]
    assert out["w"] is A["w"]
    assert not torch.equal(out["b"], A["b"])


def test_mix_and_scale() -> None:
    assert_close(tree.mix(A, B, 0.25)["b"], torch.tensor([16.25, 19.5]))
    assert_close(tree.scale(A, 2.0), tree.add(A, A))


def test_vectors_and_back_whatever_the_order_of_names() -> None:
    mixed = A | {"n": torch.tensor(2.0, dtype=torch.float64)}
    assert {k: v.shape for k, v in tree.to_vectors(mixed).items()} == {"torch.float32": (6,), "torch.float64": (1,)}
    other = tree.from_vectors(tree.to_vectors(dict(reversed(mixed.items()))), mixed)
    assert list(other) == list(mixed)
    assert all(torch.equal(other[k], v) and other[k].dtype is v.dtype for k, v in mixed.items())
    many = vmap(lambda each: tree.from_vectors(tree.scale(tree.to_vectors(each), 2.0), each))(STACKED)
    assert_close(many, tree.scale(STACKED, 2.0))


def test_a_large_tree_stays_as_it_is() -> None:
    large = {"w": torch.empty(1 << 20), "b": torch.empty(1)}
    assert tree.to_vectors(large) is large
    assert tree.from_vectors(large, large) is large


def test_dot_is_over_the_names_of_the_second() -> None:
    assert tree.dot(A, A).item() == 1 + 4 + 9 + 16 + 25 + 36
    assert tree.dot(A, PART).item() == 11


def test_rows() -> None:
    assert_close(tree.row(tree.rows(STACKED, torch.tensor([1.0, 2.0, 3.0])), 1), tree.scale(B, 2.0))
    assert_close(tree.squares(STACKED)[0], tree.dot(A, A))
    assert_close(tree.dots(STACKED, B), torch.stack([tree.dot(t, B) for t in (A, B, tree.sub(A, B))]))
    assert_close(tree.mean(STACKED, torch.tensor([0.5, 0.25, 0.25])), tree.scale(A, 0.75))


def test_stack_row_and_concat() -> None:
    nested = [{"model": A, "n": torch.tensor(1)}, {"model": B, "n": torch.tensor(2)}]
    stacked = tree.stack(nested)
    assert_close(tree.row(stacked, 1), nested[1])
    assert_close(tree.concat([tree.row(stacked, slice(0, 1)), tree.row(stacked, slice(1, 2))]), stacked)
    assert_close(tree.row(tree.repeat(nested[0], 3), 2), nested[0])


def test_where_under_vmap() -> None:
    chosen = vmap(lambda c: tree.where(c, A, B))(torch.tensor([True, False]))
    assert_close(tree.row(chosen, 0), A)
    assert_close(tree.row(chosen, 1), B)


def test_take_and_drop() -> None:
    assert list(tree.take(A, ["b"])) == ["b"]
    assert list(tree.drop(A, ["b", "absent"])) == ["w"]
    with pytest.raises(KeyError):
        tree.take(A, ["absent"])


def test_flatten_and_back() -> None:
    nest = {"server": {"model": A, "age": torch.tensor(3)}, "clients": {"ids": torch.arange(2)}}
    flat = tree.flatten(nest)
    assert list(flat) == ["server/model/w", "server/model/b", "server/age", "clients/ids"]
    assert_close(tree.unflatten(flat), nest)


@pytest.mark.parametrize("name", ["a/b", "/", "a~b", "~1", "a~/0b~", "~01"])
def test_flatten_escapes_slashes_in_names(name: str) -> None:
    nest = {"model": {name: A["w"], "plain": A["b"]}, name: {"x": A["b"]}}
    flat = tree.flatten(nest)
    assert all(key.count("/") == 1 for key in flat)
    back = tree.unflatten(flat)
    assert list(back) == list(nest)
    assert_close(back, nest)


def test_files_without_escapes_read_as_before() -> None:
    assert tree.unflatten({"server/model/0.weight": A["w"]}) == {"server": {"model": {"0.weight": A["w"]}}}


def test_ordered_like_restores_the_order() -> None:
    shuffled = {"n": torch.tensor(1), "model": {"b": A["b"], "w": A["w"]}}
    out = tree.ordered_like(shuffled, {"model": A, "n": torch.tensor(0)})
    assert list(out) == ["model", "n"]
    assert list(out["model"]) == ["w", "b"]


def test_bytes() -> None:
    assert tree.nbytes({"model": A, "n": torch.tensor(1)}) == 6 * 4 + 8


def test_same_structure() -> None:
    assert tree.same_structure(A, B)
    assert not tree.same_structure(A, PART)
    assert not tree.same_structure(A, A | {"b": A["b"].double()})
    assert not tree.same_structure(A, A | {"b": torch.zeros(3)})
