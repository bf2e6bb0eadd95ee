"""`simulate` from the outside: what may be given, and what comes back."""

from __future__ import annotations

import itertools
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import undrift as ud
from laws import SIZES, classified, mlp, seeded

TEST = classified((30,))[0]
MODEL_BYTES = sum(p.nbytes for p in mlp().parameters())


def run(**options: Any) -> ud.Run:
    settings: dict[str, Any] = {"rounds": 4, "batch_size": 4, "lr": 0.1, "test": TEST} | options
    return ud.simulate(settings.pop("algorithm", "fedavg"), settings.pop("model", mlp()), classified(), **settings)


class TestHistory:
    def test_a_row_per_round(self) -> None:
        history = run(cohort=2).history
        assert history["round"].tolist() == [1, 2, 3, 4]
        assert (history["participants"] == 2).all()
        assert (history["bytes_down"] == 2 * MODEL_BYTES).all()
        assert (history["bytes_up"] == 2 * MODEL_BYTES).all()
        assert (history["seconds"] > 0).all()
        assert not history["diverged"].any()

    def test_evaluation_is_timed_apart(self) -> None:
        history = run(eval_every=2).history
        assert (history["evaluation_seconds"] > 0).tolist() == [False, True, False, True]
        assert (history["evaluation_seconds"] < history["seconds"]).all()

    def test_loss_and_accuracy_are_those_of_the_test_set(self) -> None:
        result = run()
        model = mlp()
        model.load_state_dict(result.parameters)
        last = result.history.iloc[-1]
        assert last["loss"] == pytest.approx(F.cross_entropy(model(TEST[0]), TEST[1]).item(), abs=1e-12)
        assert last["accuracy"] == (model(TEST[0]).argmax(1) == TEST[1]).double().mean().item()

    def test_training_loss_is_the_weighted_mean_of_the_clients(self) -> None:
        """One full batch a round: the losses are those of the model that was sent."""
        result = run(rounds=1, batch_size=None)
        losses = [F.cross_entropy(mlp()(x), y).item() for x, y in classified()]
        expected = np.array(SIZES) @ np.array(losses) / sum(SIZES)
        assert result.history["train_loss"][0] == pytest.approx(expected, abs=1e-12)

    def test_evaluation_now_and_then_and_at_the_end(self) -> None:
        evaluated = run(rounds=5, eval_every=2).history["accuracy"].notna()
        assert evaluated.tolist() == [False, True, False, True, True]

    def test_without_a_test_set(self) -> None:
        history = run(test=None).history
        assert history[["loss", "accuracy"]].isna().all(axis=None)
        assert history["train_loss"].notna().all()

    def test_a_regression_has_no_accuracy(self) -> None:
        data = [(x, x[:, :3].clone()) for x, _ in classified()]
        result = ud.simulate(
            "fedavg", mlp(), data, test=data[0], rounds=1, loss=lambda output, target: (output - target).square().sum(1)
        )
        assert result.history["loss"].notna().all()
        assert result.history["accuracy"].isna().all()


class TestCohorts:
    def participations(self, **options: Any) -> list[int]:
        return run(**options).clients["rounds"].tolist()

    def test_everyone(self) -> None:
        assert self.participations(cohort=None) == [4] * 5

    def test_a_number(self) -> None:
        assert sum(self.participations(cohort=2)) == 8

    @pytest.mark.parametrize(("fraction", "size"), [(0.4, 2), (0.5, 2), (0.01, 1), (1.0, 5)])
    def test_a_fraction(self, fraction: float, size: int) -> None:
        assert sum(self.participations(cohort=fraction)) == 4 * size

    def test_a_list(self) -> None:
        assert self.participations(cohort=[[0], [3, 1], [1], [1]]) == [1, 3, 0, 1, 0]

    def test_the_seed_decides(self) -> None:
        drawn = [tuple(self.participations(cohort=1, rounds=20, seed=seed)) for seed in (0, 0, 1)]
        assert drawn[0] == drawn[1] != drawn[2]


class TestData:
    """The same samples in another dress."""

    def trained(self, data: Any, **options: Any) -> ud.Run:
        return ud.simulate("fedavg", mlp(), data, rounds=2, batch_size=4, lr=0.1, **options)

    def test_arrays_lists_and_a_federation(self) -> None:
        tensors = classified()
        x, y = (torch.cat(parts) for parts in zip(*tensors, strict=True))
        ends = np.cumsum(SIZES)
        federation = ud.FederatedData(x, y, np.split(np.arange(sum(SIZES)), ends[:-1]))
        expected = self.trained(tensors).parameters
        for data in (
            [(x.numpy(), y.numpy()) for x, y in tensors],
            [(x.numpy(), y.numpy().astype(np.int32)) for x, y in tensors],
            [(x.tolist(), y.tolist()) for x, y in tensors],
            federation,
        ):
            assert_close(self.trained(data).parameters, expected, rtol=0, atol=0)

    def test_clients_may_share_samples(self) -> None:
        x, y = classified((6,))[0]
        federation = ud.FederatedData(x, y, [[0, 1, 2, 3], [2, 3, 4, 5]])
        pairs = [(x[:4], y[:4]), (x[2:], y[2:])]
        assert_close(self.trained(federation).parameters, self.trained(pairs).parameters, rtol=0, atol=0)

    def test_bytes_are_numbers_between_0_and_1(self) -> None:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (8, 6), dtype=torch.uint8, generator=generator)
        labels = torch.arange(8) % 3
        as_bytes = self.trained([(images[:4], labels[:4]), (images[4:], labels[4:])]).parameters
        as_floats = self.trained([(images[:4] / 255.0, labels[:4]), (images[4:] / 255.0, labels[4:])]).parameters
        assert_close(as_bytes, as_floats, rtol=1e-6, atol=1e-6)

    def test_a_named_federation_brings_its_test_set(self) -> None:
        result = ud.simulate("fedavg", "softmax", "digits", rounds=2, cohort=3)
        assert result.history["accuracy"].notna().all()
        assert len(result.clients) == 40
        assert (result.clients["classes"] <= 2).all()

    def test_samples_and_classes_of_every_client(self) -> None:
        clients = run().clients
        assert clients["samples"].tolist() == list(SIZES)
        assert clients["classes"].tolist() == [len(y.unique()) for _, y in classified()]


class TestEnding:
    def test_a_callback_may_end_the_run(self) -> None:
        rows: list[int] = []
        result = run(callbacks=[lambda row, run: rows.append(row["round"]), lambda row, run: row["round"] == 2])
        assert rows == [1, 2]
        assert (result.rounds, len(result.history)) == (2, 2)

    def test_every_callback_is_called(self) -> None:
        rows: list[int] = []
        run(callbacks=[lambda row, run: True, lambda row, run: rows.append(row["round"])])
        assert rows == [1]

    def test_a_target_ends_the_run(self) -> None:
        free = run(rounds=20, lr=0.5).history["accuracy"]
        target = free.iloc[0] + 0.01
        first = int((free >= target).idxmax()) + 1
        assert 1 < first < 20
        assert run(rounds=20, lr=0.5, target=float(target)).rounds == first

    def test_what_a_callback_sees_is_what_it_gets(self) -> None:
        """Rounds before are not overwritten by rounds after."""
        kept: list[Any] = []
        copied: list[Any] = []
        run(
            algorithm="scaffold",
            callbacks=[
                lambda row, run: kept.append(run.parameters),
                lambda row, run: copied.append({k: v.clone() for k, v in run.parameters.items()}),
            ],
        )
        assert_close(kept, copied, rtol=0, atol=0)


def test_a_run_in_a_thread_of_its_own() -> None:
    """Where signals cannot be caught."""
    results: list[ud.Run] = []
    thread = threading.Thread(target=lambda: results.append(run()))
    thread.start()
    thread.join()
    assert_close(results[0].parameters, run().parameters, rtol=0, atol=0)


def test_large_test_sets_are_evaluated_in_blocks() -> None:
    x, y = classified((5000,))[0]
    result = run(rounds=1, test=(x, y))
    model = mlp()
    model.load_state_dict(result.parameters)
    assert result.history["loss"][0] == pytest.approx(F.cross_entropy(model(x), y).item(), abs=1e-12)
    assert result.history["accuracy"][0] == (model(x).argmax(1) == y).sum().item() / 5000


def test_a_named_algorithm_is_its_default_instance() -> None:
    for name, instance in (("fedprox", ud.algorithms.FedProx()), ("Fed-HBM", ud.algorithms.FedHBM())):
        assert_close(run(algorithm=name).parameters, run(algorithm=instance).parameters, rtol=0, atol=0)


def test_a_named_model_depends_on_the_seed_only() -> None:
    torch.manual_seed(1)
    first = ud.simulate("fedavg", "mlp", classified(), rounds=1, lr=1e-12).parameters
    torch.manual_seed(2)
    second = ud.simulate("fedavg", "mlp", classified(), rounds=1, lr=1e-12).parameters
    assert_close(first, second, rtol=0, atol=0)


def test_frozen_parameters_stay() -> None:
    model = mlp()
    frozen = model.get_parameter("0.weight").requires_grad_(False)
    result = run(model=model)
    assert "0.weight" not in result.parameters
    assert result.history["bytes_up"][0] == 5 * (MODEL_BYTES - frozen.nbytes)
    full = mlp()
    full.load_state_dict(result.parameters | {"0.weight": frozen})
    expected = F.cross_entropy(full(TEST[0]), TEST[1]).item()
    assert result.history["loss"].iloc[-1] == pytest.approx(expected, abs=1e-12)


def test_shared_parameters_are_trained_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.second = self.first
            self.out = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))))

    model, data = seeded(Tied), classified()[:1]
    result = ud.simulate("fedavg", model, data, rounds=1, batch_size=None, lr=0.1)
    F.cross_entropy(model(data[0][0]), data[0][1]).backward()
    expected = {k: p.detach() - 0.1 * p.grad for k, p in model.named_parameters() if p.grad is not None}
    assert_close(result.parameters, expected, rtol=1e-12, atol=1e-12)


def test_the_model_s_precision_or_the_one_asked_for() -> None:
    assert {v.dtype for v in run().parameters.values()} == {torch.float64}
    for wish in ("float32", torch.float32):
        assert {v.dtype for v in run(dtype=wish).parameters.values()} == {torch.float32}


def test_the_server_s_rate_scales_the_step() -> None:
    whole, half = (run(rounds=1, server_lr=rate).parameters for rate in (1.0, 0.5))
    start = dict(mlp().named_parameters())
    for name, value in half.items():
        assert_close(value, (whole[name] + start[name].detach()) / 2, rtol=1e-12, atol=1e-12)


def test_the_rate_decays_by_round() -> None:
    """Two rounds with a decay of one half are a round, and another one at half the rate."""
    full: dict[str, Any] = {"batch_size": None, "test": None}
    model = mlp()
    model.load_state_dict(run(rounds=1, lr=0.1, **full).parameters)
    by_hand = run(model=model, rounds=1, lr=0.05, **full).parameters
    assert_close(run(rounds=2, lr=0.1, lr_decay=0.5, **full).parameters, by_hand, rtol=1e-12, atol=1e-12)


def test_clipping_bounds_the_gradient() -> None:
    start, data = mlp(), classified()[:1]
    F.cross_entropy(start(data[0][0]), data[0][1]).backward()
    gradient = {k: p.grad for k, p in start.named_parameters() if p.grad is not None}
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradient.values()))
    for clip in (norm / 3, norm * 2):
        moved = ud.simulate("fedavg", mlp(), data, rounds=1, batch_size=None, lr=0.1, clip=clip).parameters
        factor = min(1.0, clip / norm)
        expected = {k: p.detach() - 0.1 * factor * gradient[k] for k, p in start.named_parameters()}
        assert_close(moved, expected, rtol=1e-9, atol=1e-12)


def test_everything_needed_is_in_the_directory(tmp_path: Path) -> None:
    result = run(out=tmp_path / "a/run")
    assert result.out == tmp_path / "a/run"
    names = sorted(p.name for p in (tmp_path / "a/run").iterdir())
    stored = ["checkpoints", "config.json", "environment.json", "initial.safetensors"]
    stored += ["predictions.safetensors", "rounds.jsonl"]
    assert names == [".lock", *stored]
    record = ud.Comparison.from_directories([tmp_path]).records[0]
    assert record.history.equals(result.history)


def test_compare_uses_the_same_seeds_for_all(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 2, "cohort": 2, "batch_size": 4, "lr": 0.1}
    compared = ud.compare(
        {"plain": "fedavg", "spring": ud.algorithms.FedProx(mu=1.0)},
        mlp(),
        classified(),
        TEST,
        seeds=2,
        out=tmp_path,
        **settings,
    )
    curves = compared.curves()
    assert sorted(set(zip(curves["label"], curves["seed"], strict=True))) == list(
        itertools.product(["plain", "spring"], [0, 1])
    )
    for seed in (0, 1):
        alone = ud.simulate("fedavg", mlp(), classified(), TEST, seed=seed, **settings).history
        mine = curves[(curves["label"] == "plain") & (curves["seed"] == seed)]
        assert mine["loss"].tolist() == alone["loss"].tolist()
    assert (tmp_path / "spring/seed-1/config.json").exists()
    again = ud.compare({"plain": "fedavg"}, mlp(), classified(), TEST, seeds=2, out=tmp_path, **settings)
    assert again.curves()["seconds"].tolist() == curves[curves["label"] == "plain"]["seconds"].tolist()


def test_repr_says_what_it_is() -> None:
    assert repr(run(cohort=2)).startswith("Run(FedAvg(), 4 rounds, accuracy 0.")


def test_numpy_numbers_are_numbers(tmp_path: Path) -> None:
    data, model = classified(), mlp()
    lists = np.array([[0, 2], [1, 2], [0, 1]])
    given: dict[str, Any] = {"rounds": np.int64(3), "lr": np.float32(0.5), "seed": np.int64(1)}
    first = ud.simulate("fedavg", model, data, cohort=lists.tolist(), rounds=3, lr=0.5, seed=1, batch_size=4)
    given |= {"cohort": lists, "batch_size": np.int32(4)}
    second = ud.simulate("fedavg", model, data, out=tmp_path / "run", **given)
    assert all(torch.equal(v, second.parameters[k]) for k, v in first.parameters.items())


def test_what_a_callback_does_to_the_parameters_does_not_reach_the_run() -> None:
    def vandal(row: dict[str, Any], run: ud.Run) -> None:
        for value in run.parameters.values():
            value.zero_()

    data, model = classified(), mlp()
    spoiled = ud.simulate("fedavg", model, data, rounds=3, callbacks=[vandal])
    sound = ud.simulate("fedavg", model, data, rounds=3)
    assert all(torch.equal(v, sound.parameters[k]) for k, v in spoiled.parameters.items())


def test_compare_refuses_before_anything_has_trained(tmp_path: Path) -> None:
    algorithms = {"plain": "fedavg", "dynamic": "feddyn"}
    with pytest.raises(ValueError, match=r"dynamic: FedDyn fixes its own server step; .* got 0\.5"):
        ud.compare(algorithms, mlp(), classified(), rounds=2, server_lr=0.5, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
