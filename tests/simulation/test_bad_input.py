"""What cannot be is refused before anything is computed, in one line that says what was given and what is allowed."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import undrift as ud
from laws import classified, mlp, one_of_every_kind
from undrift import algorithms
from undrift.algorithm import Setting
from undrift.correction import At, Correction
from undrift.protocol import Message, State
from undrift.tree import Tree

NAN, INF = math.nan, math.inf
DATA = classified((4, 3, 5))
TEST = classified((6,))[0]


def changed(client: int, x: Any = None, y: Any = None) -> list[tuple[Any, Any]]:
    """The data with one client's samples or targets replaced."""
    data: list[tuple[Any, Any]] = list(DATA)
    data[client] = (data[client][0] if x is None else x, data[client][1] if y is None else y)
    return data


def with_value(value: float) -> Tensor:
    x = DATA[1][0].clone()
    x[2, 3] = value
    return x


class Collapsed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mean(0)


class Pair(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x), x  # type: ignore[return-value]


# (what is given to `simulate`, the kind of error, words of the message)
BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    # names, with the nearest one
    "algorithm name": ({"algorithm": "fedhmb"}, ValueError, "unknown algorithm 'fedhmb'; did you mean 'fedhbm'?"),
    "algorithm far off": ({"algorithm": "zzz"}, ValueError, "unknown algorithm 'zzz'; allowed: 'fedavg', "),
    "algorithm class": ({"algorithm": algorithms.FedAvg}, TypeError, "a name or an instance such as ud.algorithms"),
    "model name": ({"model": "mpl"}, ValueError, "unknown model 'mpl'; did you mean 'mlp'?"),
    "model kind": ({"model": 3}, TypeError, "model must be a torch.nn.Module or a name, got int"),
    "data name": ({"data": "digit"}, ValueError, "unknown data set 'digit'; did you mean 'digits'?"),
    "data kind": ({"data": 3}, TypeError, "a dict of them, a FederatedData or a name, got int"),
    "engine name": ({"engine": "batch"}, ValueError, "engine must be one of"),
    "optimizer name": ({"optimizer": "adamw"}, ValueError, "got 'adamw'; did you mean 'adam'?"),
    "augmentation name": ({"augment": "flop"}, ValueError, "unknown augmentation 'flop'; did you mean 'flip'?"),
    "augmentation kind": ({"augment": 3}, TypeError, "augment must be a name or a function"),
    "weighting name": ({"weighting": "sample"}, ValueError, "did you mean 'samples'?"),
    "buffers name": ({"buffers": "average"}, ValueError, "did you mean 'averaged'?"),
    "dtype name": ({"dtype": "int32"}, ValueError, "dtype must be one of 'float32', 'float64', got 'int32'"),
    "device name": ({"device": "tpu"}, ValueError, "device must be 'cpu', 'cuda' or 'mps', got 'tpu'"),
    "device that cannot compute": ({"device": "meta"}, ValueError, "device must be 'cpu', 'cuda' or 'mps', got 'meta'"),
    "on_divergence name": ({"on_divergence": "halt"}, ValueError, "on_divergence must be one of 'raise', 'stop'"),
    # rates and counts
    "lr zero": ({"lr": 0.0}, ValueError, "lr must be greater than 0, got 0.0"),
    "lr negative": ({"lr": -0.1}, ValueError, "lr must be greater than 0, got -0.1"),
    "lr nan": ({"lr": NAN}, ValueError, "lr must be greater than 0, got nan"),
    "lr infinite": ({"lr": INF}, ValueError, "lr must be greater than 0, got inf"),
    "lr text": ({"lr": "0.1"}, TypeError, "lr must be a number, got '0.1'"),
    "lr true": ({"lr": True}, TypeError, "lr must be a number, got True"),
    "server_lr zero": ({"server_lr": 0}, ValueError, "server_lr must be greater than 0, got 0"),
    "server_lr nan": ({"server_lr": NAN}, ValueError, "server_lr must be greater than 0, got nan"),
    "momentum one": ({"momentum": 1.0}, ValueError, "momentum must be at least 0 and less than 1, got 1.0"),
    "momentum negative": ({"momentum": -0.5}, ValueError, "momentum must be at least 0 and less than 1"),
    "momentum with adam": ({"optimizer": "adam", "momentum": 0.9}, ValueError, "optimizer='adam' has its own, got 0.9"),
    "momentum with rmsprop": ({"optimizer": "rmsprop", "momentum": 0.9}, ValueError, "'rmsprop' has none, got 0.9"),
    "nesterov without momentum": ({"optimizer": "nesterov"}, ValueError, "needs a momentum greater than 0"),
    "weight decay negative": ({"weight_decay": -1e-3}, ValueError, "weight_decay must be at least 0, got -0.001"),
    "clip zero": ({"clip": 0.0}, ValueError, "clip must be greater than 0"),
    "lr_decay above one": ({"lr_decay": 1.5}, ValueError, "lr_decay must be greater than 0 and at most 1, got 1.5"),
    "rounds zero": ({"rounds": 0}, ValueError, "rounds must be at least 1, got 0"),
    "rounds fraction": ({"rounds": 2.5}, TypeError, "rounds must be a whole number, got 2.5"),
    "epochs zero": ({"epochs": 0}, ValueError, "epochs must be at least 1, got 0"),
    "steps zero": ({"steps": 0}, ValueError, "steps must be at least 1, got 0"),
    "epochs and steps": ({"epochs": 2, "steps": 3}, ValueError, "give epochs or steps, not both"),
    "batch size zero": ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
    "eval_every zero": ({"eval_every": 0}, ValueError, "eval_every must be at least 1, got 0"),
    "seed negative": ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
    "seed too large": ({"seed": 2**32}, ValueError, "seed must be at most 4294967295"),
    "target above one": ({"target": 87.5, "test": TEST}, ValueError, "target must be at least 0 and at most 1"),
    "target without test": ({"target": 0.9}, ValueError, "target=0.9 needs a test set; give test=(x, y)"),
    # cohorts
    "cohort too large": ({"cohort": 4}, ValueError, "between 1 and the federation's 3 clients, got 4"),
    "cohort zero": ({"cohort": 0}, ValueError, "between 1 and the federation's 3 clients, got 0"),
    "cohort negative": ({"cohort": -1}, ValueError, "between 1 and the federation's 3 clients, got -1"),
    "cohort fraction zero": ({"cohort": 0.0}, ValueError, "cohort (a fraction) must be greater than 0 and at most 1"),
    "cohort fraction": ({"cohort": 1.5}, ValueError, "cohort (a fraction) must be greater than 0 and at most 1"),
    "cohort nan": ({"cohort": NAN}, ValueError, "cohort (a fraction) must be greater than 0"),
    "cohort text": (
        {"cohort": "everyone"},
        TypeError,
        "cohort must be 'auto', 'all', a number, a fraction or a list of lists",
    ),
    "cohort list length": ({"cohort": [[0]]}, ValueError, "one entry per round, got 1 for 2 rounds"),
    "cohort duplicate": ({"cohort": [[0], [1, 1]]}, ValueError, "round 2 must name different clients"),
    "cohort empty": ({"cohort": [[], [1]]}, ValueError, "round 1 must name different clients, at least one, got []"),
    "cohort out of range": ({"cohort": [[0], [3]]}, ValueError, "cohort of round 2: clients are 0..2, got 3"),
    "cohort below range": ({"cohort": [[-1], [0]]}, ValueError, "cohort of round 1: clients are 0..2, got -1"),
    "cohort flat list": ({"cohort": [0, 1]}, TypeError, "cohort of round 1 must be a list of clients, got 0"),
    # data
    "no clients": ({"data": []}, ValueError, "a federation needs at least one client, got none"),
    "an empty client": (
        {"data": changed(1, torch.zeros(0, 6), torch.zeros(0).long())},
        ValueError,
        "client 1 has none",
    ),
    "an empty first client": ({"data": changed(0, [], [])}, ValueError, "client 0 has none"),
    "no pair": (
        {"data": [DATA[0], DATA[1][0]]},
        TypeError,
        "client 1 must be a pair (x, y) or a torch Dataset, got Tensor",
    ),
    "nan": ({"data": changed(1, with_value(NAN))}, ValueError, "x must be finite; a sample of client 1 (row 6)"),
    "infinity": ({"data": changed(1, with_value(INF))}, ValueError, "x must be finite; a sample of client 1"),
    "nan target": (
        {"data": changed(1, y=torch.tensor([0.0, NAN, 0.0])), "loss": lambda o, t: o.sum(1)},
        ValueError,
        "client 1",
    ),
    "nan in test": ({"test": (torch.full((2, 6), NAN), torch.zeros(2).long())}, ValueError, "test x must be finite"),
    "x and y lengths": ({"data": changed(2, y=torch.zeros(4).long())}, ValueError, "client 2: x and y must have equ"),
    "sample shapes": ({"data": changed(2, torch.zeros(5, 7).double())}, ValueError, "client 2: samples must have clie"),
    "sample types": ({"data": changed(2, torch.zeros(5, 6))}, ValueError, "client 2: samples must have the types of"),
    "no numbers": ({"data": changed(2, np.array(["a"] * 5))}, TypeError, "client 2: x must be an array or a tensor"),
    "label too large": ({"data": changed(0, y=torch.tensor([0, 1, 2, 3]))}, ValueError, "labels must lie in 0..2"),
    "label negative": ({"data": changed(0, y=torch.tensor([0, 1, 2, -1]))}, ValueError, "got -1..2"),
    "labels float": ({"data": [(x, y.double()) for x, y in DATA]}, ValueError, "targets that are class numbers"),
    "test label too large": ({"test": (TEST[0], TEST[1] + 3)}, ValueError, "test labels must lie in 0..2"),
    "test shape": ({"test": (torch.zeros(4, 7).double(), TEST[1][:4])}, ValueError, "test samples have shapes (7,)"),
    "test lengths": ({"test": (TEST[0], TEST[1][:4])}, ValueError, "test: x and y must have equally many rows"),
    "test no pair": ({"test": TEST[0]}, TypeError, "test must be a pair (x, y), got Tensor"),
    # model and loss
    "model input": ({"model": nn.Linear(5, 3).double()}, ValueError, "does not accept samples of shape (6,)"),
    "model output count": ({"model": nn.Linear(6, 2).double()}, ValueError, "labels must lie in 0..1 for a model with"),
    "model output rows": ({"model": Collapsed(6, 3).double()}, ValueError, "one row per sample, got (3,)"),
    "model output kind": ({"model": Pair(6, 3).double()}, ValueError, "must return a tensor with one row per sample"),
    "model output shape": (
        {"model": nn.Sequential(nn.Linear(6, 3), nn.Unflatten(1, (3, 1))).double()},
        ValueError,
        "cross-entropy needs one output per class",
    ),
    "model without parameters": ({"model": nn.Flatten()}, ValueError, "Flatten has no trainable parameters"),
    "model not finite": (
        {"model": (lambda m: (m.weight.data.fill_(NAN), m)[1])(nn.Linear(6, 3).double())},
        ValueError,
        "parameter 'weight' is not finite",
    ),
    "dropout inside a recurrent network": (
        {"model": nn.Sequential(nn.LSTM(6, 3, 2, dropout=0.5), nn.Linear(3, 3)).double()},
        ValueError,
        "dropout inside LSTM",
    ),
    "loss of one number": ({"loss": F.cross_entropy}, ValueError, "loss must return one value per sample"),
    "loss that does not fit": ({"loss": lambda o, t: (o - t).sum(1)}, ValueError, "the loss does not fit outputs of"),
    "loss kind": ({"loss": "mse"}, TypeError, "loss must be a function of (output, target), got 'mse'"),
    "augmentation that does not fit": ({"augment": "crop"}, ValueError, "augment does not fit samples of shape (6,)"),
    "augmentation that changes the shape": (
        {"augment": lambda x, key, step: x[:, :5]},
        ValueError,
        "augment must keep the shape of samples",
    ),
    "callbacks kind": ({"callbacks": print}, TypeError, "callbacks must be a list of functions"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(name: str, tmp_path: Path) -> None:
    given, kind, words = BAD[name]
    settings: dict[str, Any] = {"algorithm": "fedavg", "model": mlp(), "data": DATA, "rounds": 2}
    with pytest.raises(kind) as caught:
        ud.simulate(**{"out": tmp_path / "run"} | settings | given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: algorithms.FedProx(mu=-1.0), "mu must be at least 0, got -1.0"),
        (lambda: algorithms.FedProx(mu=NAN), "mu must be at least 0, got nan"),
        (lambda: algorithms.FedHBM(beta=INF), "beta must be at least 0, got inf"),
        (lambda: algorithms.FedHBM(variant="share"), "did you mean 'shared'?"),
        (lambda: algorithms.GHB(tau=0), "tau must be at least 1, got 0"),
        (lambda: algorithms.SCAFFOLD(option="III"), "option must be one of"),
        (lambda: algorithms.FedDPC(lam=-1.0), "lam must be greater than -1, got -1.0"),
        (lambda: ud.data.partition("dirchlet:0.1", [0, 1], 2), "did you mean 'dirichlet'?"),
        (lambda: ud.data.partition("dirichlet:0", [0, 1], 2), "must be greater than 0, got 0"),
        (lambda: ud.data.partition("dirichlet", [0, 1], 2), "needs a number, as in 'dirichlet:1'"),
        (lambda: ud.data.partition("classes:3", [0, 1], 2), "must not exceed the 2 classes, got 3"),
        (lambda: ud.data.partition("iid", [0, 1], 3), "must not be more than the 2 samples, got 3"),
        (lambda: ud.FederatedData([[1.0]], [0], [[0, 1]]), "row numbers must lie in 0..0"),
        (lambda: ud.FederatedData([[1.0]], [0, 1], [[0]]), "equally many rows, got 1 and 2"),
        (lambda: ud.compare({}, "mlp", "digits"), "at least one algorithm, got none"),
        (lambda: ud.compare(["fedavg", "fedavg"], "mlp", "digits"), "algorithms must differ"),
        (lambda: ud.compare(["fedavg"], "mlp", "digits", seeds=0), "seeds must be at least 1, got 0"),
        (lambda: ud.compare(["fedavg"], "mlp", "digits", seeds=[1, 1]), "list of different numbers"),
    ],
)
def test_refused_elsewhere(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def test_compare_has_no_such_argument() -> None:
    with pytest.raises(TypeError, match="compare has no argument 'round'; did you mean 'rounds'"):
        ud.compare(["fedavg"], "mlp", "digits", round=3)


def test_a_directory_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists, is not empty and holds no run; choose another directory"):
        ud.simulate("fedavg", mlp(), DATA, rounds=1, out=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(ValueError, match="exists, is not empty and holds no run"):
        ud.simulate("fedavg", mlp(), DATA, rounds=1, out=tmp_path / "notes.txt")


@dataclass(frozen=True)
class Doubling(Correction):
    """Clients keep a number that nobody else sees; that of client 1 is infinite from its second round on."""

    def client(self, model: Tree) -> State:
        return {"kept": torch.ones(3)}

    def finish(self, update: Tree, client: State, at: At) -> tuple[Tree, State, Message]:
        return update, {"kept": client["kept"] * torch.where(at.task.key.client == 1, 1e30, 1.0)}, {}


class Exploding(ud.Algorithm):
    def corrections(self, setting: Setting) -> tuple[Correction, ...]:
        return (Doubling(),)


class TestDivergence:
    """Least squares in single precision with a rate of 1e9: every step grows the weights a billionfold."""

    settings: dict[str, Any] = {  # noqa: RUF012
        "rounds": 5,
        "steps": 2,
        "lr": 1e9,
        "loss": lambda output, target: (output - target).square().sum(1),
    }

    def data(self) -> list[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        return [(torch.randn(4, 2, generator=generator), torch.randn(4, 1, generator=generator)) for _ in range(3)]

    @pytest.mark.parametrize("engine", ["sequential", "batched"])
    def test_raises_with_what_is_left(self, engine: str, tmp_path: Path) -> None:
        model = nn.Linear(2, 1)
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(
            ud.DivergenceError, match=r"diverged in round \d: .* client 0, 1, 2 is not finite"
        ) as caught:
            ud.simulate("fedavg", model, self.data(), engine=engine, out=tmp_path / "run", **self.settings)
        error = caught.value
        assert isinstance(error, ArithmeticError)
        assert error.round == error.run.rounds + 1 > 1
        assert error.clients == [0, 1, 2]
        assert error.checkpoint == tmp_path / f"run/checkpoints/{error.run.rounds:06d}"
        assert error.checkpoint.is_dir()
        assert all(v.isfinite().all() for v in error.run.parameters.values())
        assert error.run.history["diverged"].tolist() == [False] * error.run.rounds + [True]
        assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)

    def test_in_the_first_round(self) -> None:
        with pytest.raises(ud.DivergenceError, match="diverged in round 1") as caught:
            ud.simulate("fedavg", nn.Linear(2, 1), self.data(), **self.settings | {"steps": 9})
        assert (caught.value.checkpoint, caught.value.run.rounds) == (None, 0)

    def test_stop_returns_the_rounds_before(self) -> None:
        run = ud.simulate("fedavg", nn.Linear(2, 1), self.data(), on_divergence="stop", **self.settings)
        assert 1 <= run.rounds < 5
        assert run.history["diverged"].tolist() == [False] * run.rounds + [True]
        assert all(v.isfinite().all() for v in run.parameters.values())

    def test_names_the_client(self) -> None:
        data = self.data()
        data[1] = (1e12 * data[1][0], data[1][1])
        with pytest.raises(ud.DivergenceError) as caught:
            ud.simulate("fedavg", nn.Linear(2, 1), data, **self.settings | {"lr": 0.01})
        assert caught.value.clients == [1]

    @pytest.mark.usefixtures("networks_are_tried_once")
    @pytest.mark.parametrize("engine", ["sequential", "batched"])
    @pytest.mark.parametrize(
        "name", one_of_every_kind(sorted(set(algorithms.available()) - {"fedbn"}))
    )  # it normalises
    def test_names_the_client_in_every_algorithm(self, name: str, engine: str) -> None:
        """Also where its huge gradient, averaged in a first phase, makes the numbers of all others infinite."""
        generator = torch.Generator().manual_seed(0)
        data = [(torch.randn(6, 4, generator=generator), torch.randn(6, 1, generator=generator)) for _ in range(5)]
        for scale in (1e6, 1e15):
            data[2] = (scale * data[2][0], data[2][1])
            model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
            with pytest.raises(ud.DivergenceError) as caught:
                ud.simulate(name, model, data, engine=engine, **self.settings | {"lr": 0.01, "steps": 3})
            assert caught.value.clients == [2]

    @pytest.mark.parametrize("engine", ["sequential", "batched"])
    def test_notices_states_in_the_round_they_explode(self, engine: str) -> None:
        with pytest.raises(ud.DivergenceError) as caught:
            ud.simulate(Exploding(), nn.Linear(2, 1), self.data(), engine=engine, **self.settings | {"lr": 1e-3})
        assert (caught.value.round, caught.value.clients) == (2, [1])

    def test_compare_records_it_and_goes_on(self) -> None:
        model = nn.Linear(2, 1)
        algorithms = {"wild": ud.algorithms.FedAvg(), "also": ud.algorithms.FedProx()}
        curves = ud.compare(algorithms, model, self.data(), **self.settings).curves()
        assert set(curves[curves["diverged"]]["label"]) == {"wild", "also"}


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_the_caller_s_model_is_never_changed(engine: str) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).double().eval()
    before, random_state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    ud.simulate("fedavg", model, DATA, test=TEST, rounds=2, engine=engine, dtype="float32")
    assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    assert not model.training
    assert not model[2].training
    assert all(p.grad is None and p.requires_grad and p.dtype is torch.float64 for p in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), random_state)
