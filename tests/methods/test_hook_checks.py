"""Users' own corrections: a misspelt hook is refused, and one that returns the wrong thing is named before round 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import undrift as ud
from laws import classified, mlp
from undrift.algorithm import Setting
from undrift.algorithms.fedprox import Proximal
from undrift.correction import At, Correction
from undrift.methods.averaging import Averaging
from undrift.methods.codec import Coded
from undrift.methods.codecs import Half
from undrift.methods.hook_checks import HookError, checked
from undrift.tree import Tree

Hook = Callable[..., Any]


@dataclass(frozen=True)
class Listed(ud.Algorithm):
    """Federated averaging with the correction that it is given."""

    own: Any = None

    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (self.own,)


def correction(**hooks: Any) -> Correction:
    return type("Mine", (Correction,), hooks)()


def simulate(**hooks: Hook) -> ud.Run:
    return ud.simulate(Listed(correction(**hooks)), mlp(), classified(), rounds=1, batch_size=4, lr=0.1)


@pytest.mark.parametrize(("name", "near"), [("stepp", "step"), ("finnish", "finish"), ("clients", "client")])
def test_a_misspelt_hook_is_refused(name: str, near: str) -> None:
    with pytest.raises(TypeError, match=rf"Mine\.{name} is no hook of a correction; did you mean '{near}'\?"):
        correction(**{name: lambda self, *given: given})


def test_other_methods_are_allowed() -> None:
    correction(_stepp=lambda self: 1, temperature=lambda self: 2, steps=property(lambda self: 3))


def extra(grad: Tree) -> Tree:
    return grad | {"extra": torch.ones(1)}


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        (
            {"step": lambda self, grad, client, at: None},
            r"Mine\.step must return \(a tree .*\), got None \(is",
        ),
        ({"step": lambda self, grad, client, at: grad}, r"Mine\.step must return \(a tree .*, its state\), got dict"),
        ({"step": lambda self, grad, client, at: (extra(grad), client)}, r"Mine\.step .*'extra' was not there before"),
        ({"step": lambda self, grad: (grad, {})}, r"Mine\.step: .* takes 2 positional arguments but 4 were given"),
        ({"finish": lambda self, update, client, at: (update, client)}, r"Mine\.finish .* got a tuple of 2"),
        (
            {"finish": lambda self, update, client, at: (update, {"x": at.loss}, {})},
            r"Mine\.finish .*'x' was not",
        ),
        ({"begin": lambda self, start, client, at: (start, 1)}, r"Mine\.begin must .*; got int instead of a dict"),
        ({"locate": lambda self, at, client: at.params}, r"Mine\.locate must return an At, .* got dict"),
        ({"objective": lambda self, loss, client, at: 1.0}, r"Mine\.objective must return a loss.*; got float"),
        (
            {"move": lambda self, change, client, at: tuple(change)},
            r"Mine\.move must return a tree .*; got a tuple",
        ),
        ({"client": lambda self, model: None}, r"Mine\.client must return a dict of tensors; got None"),
        (
            {"broadcast": lambda self, server, model: {"number": 1}},
            r"Mine\.broadcast must .*; 'number' is int, not",
        ),
        ({"advance": lambda self, update, server, heard: update}, r"Mine\.advance must return .*got dict"),
        ({"collect": lambda self, updates, server, heard: 1 / 0}, r"Mine\.collect: division by zero"),
        ({"present": lambda self, model, server: None}, r"Mine\.present must return .* None"),
        ({"adapt": lambda self, model, client, task, buffers: None}, r"Mine\.adapt must return .* None"),
    ],
)
def test_a_wrong_hook_is_named(hooks: dict[str, Hook], message: str) -> None:
    with pytest.raises(HookError, match=message):
        simulate(**hooks)


def test_a_state_keeps_its_shape() -> None:
    with pytest.raises(HookError, match=r"Mine\.step .*'kept' is of shape \(2,\) and type float32, but was of"):
        simulate(
            client=lambda self, model: {"kept": torch.ones(1)},
            step=lambda self, grad, client, at: (grad, {"kept": torch.ones(2)}),
        )


def test_right_hooks_pass_and_ours_are_not_tried() -> None:
    def step(self: Correction, grad: Tree, client: dict[str, Any], at: At) -> tuple[Tree, dict[str, Any]]:
        return grad, client

    assert simulate(step=step).rounds == 1
    method = Averaging((correction(step=step),))
    assert checked(Coded(method, Half(), seed=0)) is not None
    assert checked(replace(method, corrections=(Proximal(0.1),))) is None
