from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import undrift as ud
from laws import classified, normed
from quadratics import BY_ONES, SIZED, Quadratics
from undrift.algorithms import GHB, FedAvg, FedHBM, LocalGHB

# f = ½x² from 1, two steps of ½ a round, alone: without momentum 1 → ½ → ¼.
ALONE = Quadratics(((1.0,),), ((0.0,),), (1.0,), lr=0.5)


@pytest.mark.parametrize(
    ("algorithm", "points"),
    [
        # a = ¼: ¼ + 0 − ⅛ = ⅛, then ⅛ − 1/16 + ½(⅛ − ¼) = 0
        (FedHBM(beta=1.0), (1 / 4, 0, 0)),
        # the same shift, before the slope is taken: ⅛ − 1/16 = 1/16, half of which remains
        (FedHBM(beta=1.0, nesterov=True), (1 / 4, 1 / 32)),
        # a = 1, then ½: ⅛ + ½(¼ − 1) = −¼, then −⅛ + ½(−¼ − ½) = −½; in the third round a = ¼, then −¼
        (FedHBM(beta=1.0, anchor="step"), (1 / 4, -1 / 2, -1 / 2)),
        # slopes at ¼ − ⅜ and at −1/16 − 9/32
        (FedHBM(beta=1.0, anchor="step", nesterov=True), (1 / 4, -11 / 64)),
        # ½(¼ − 1) = −⅜ in both steps: ⅛ − ⅜ = −¼, then −⅛ − ⅜ = −½
        (LocalGHB(beta=1.0), (1 / 4, -1 / 2)),
        (LocalGHB(beta=1.0, nesterov=True), (1 / 4, -7 / 32)),
        # over one round the server's walk is what the only client saw
        (GHB(beta=1.0, tau=1), (1 / 4, -1 / 2, -11 / 16)),
        # nothing until three models exist; then ¼(1/16 − 1) = −15/64 in both steps
        (GHB(beta=1.0, tau=2), (1 / 4, 1 / 16, -43 / 128)),
    ],
    ids=repr,
)
def test_by_hand(algorithm: ud.Algorithm, points: tuple[float, ...]) -> None:
    path, _ = ALONE.run(algorithm, len(points))
    np.testing.assert_allclose(path[:, 0], points, rtol=1e-14, atol=1e-15)


COHORTS = [[0, 1], [1, 2], [0, 2, 1], [2], [0, 1]]
COUNTS = np.array([1, 4, 2])  # samples and steps of the clients


def path_of(algorithm: Any, momentum: float, weight_decay: float) -> list[np.ndarray]:
    """The table of the paper: what x and the anchor are, C anew in every round, J_i steps."""
    x, start = np.array(SIZED.start), np.array(SIZED.start)
    moving = isinstance(algorithm, FedHBM)
    by_step = moving and algorithm.anchor == "step"
    anchors: dict[int, list[np.ndarray]] = {}  # one for every step
    first = {"shared": start, None: None}[algorithm.variant]
    path = []
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            before = anchors.get(i, [first] * 4)
            gain = algorithm.beta * len(cohort) / 3 / COUNTS[i]
            y, buffer, visited = x, np.zeros(1), []
            for anchor in before[: COUNTS[i]]:
                visited.append(y)
                here = y if moving and i in anchors else x
                push = np.zeros(1) if anchor is None else gain * (here - anchor)
                look = y + push if algorithm.nesterov else y
                slope = SIZED.a[i] * (look - SIZED.b[i]) + weight_decay * look
                buffer = momentum * buffer + slope
                y = y - SIZED.lr * buffer + push
            ends.append(y)
            anchors[i] = visited if by_step else [y if moving else x] * 4
        x = COUNTS[cohort] @ np.array(ends) / COUNTS[cohort].sum()
        path.append(x)
    return path


@pytest.mark.parametrize("local", [(0.0, 0.0), (0.5, 0.1)], ids=["plain", "momentum and decay"])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("variant", [None, "shared"])
@pytest.mark.parametrize("kind", [FedHBM, LocalGHB, partial(FedHBM, anchor="step")])
def test_partial_participation(kind: Any, variant: str | None, nesterov: bool, local: tuple[float, float]) -> None:
    """Unequal steps and cohorts; the momentum is neither multiplied by the rate nor decayed nor in the buffer."""
    algorithm = kind(0.7, variant, nesterov)
    options = {"cohort": COHORTS, "momentum": local[0], "weight_decay": local[1], **BY_ONES}
    for engine in ("sequential", "batched"):
        path, _ = SIZED.run(algorithm, len(COHORTS), engine=engine, **options)
        np.testing.assert_allclose(path, path_of(algorithm, *local), rtol=1e-12)


KINDS = pytest.mark.parametrize("kind", [FedHBM, LocalGHB, partial(FedHBM, anchor="step")])


@KINDS
def test_a_pretrained_anchor_acts_in_the_first_participation(kind: Any, tmp_path: Path) -> None:
    """½(1 − 3) = −1 in both steps, x staying at the model received: ½ − 1 = −½, then −¼ − 1 = −5/4."""
    pretrained = {"point": torch.tensor([3.0], dtype=torch.float64)}
    save_file(pretrained, tmp_path / "start.safetensors")
    for variant in (pretrained, tmp_path / "start.safetensors", str(tmp_path / "start.safetensors")):
        path, _ = ALONE.run(kind(beta=1.0, variant=variant), 1)
        assert path[0, 0] == pytest.approx(-5 / 4, abs=1e-14)


def test_a_pretrained_anchor_must_fit(tmp_path: Path) -> None:
    save_file({"other": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="variant: the given state has no tensor of the model's shape for 'point'"):
        ALONE.run(FedHBM(variant=tmp_path / "other.safetensors"), 1)
    with pytest.raises(ValueError, match=r"variant: there is no file 'nowhere\.safetensors'"):
        ALONE.run(FedHBM(variant="nowhere.safetensors"), 1)


def random_anchor(kind: Any, client: int, engine: str = "sequential") -> dict[str, torch.Tensor]:
    """At a vanishing rate one step of β C = 1 is x − a_i: the anchor can be read off."""
    settings: dict[str, Any] = {"rounds": 1, "cohort": [[client]], "steps": 1, "lr": 1e-15, "engine": engine}
    run = ud.simulate(kind(beta=5.0, variant="random"), normed(), classified(), **settings)
    return {k: 2 * v - run.parameters[k] for k, v in normed().state_dict().items() if k in run.parameters}


@KINDS
def test_a_random_anchor_is_the_client_s_own(kind: Any) -> None:
    mine, again, yours = (random_anchor(kind, client) for client in (0, 0, 1))
    for name, value in normed().named_parameters():
        assert torch.equal(mine[name], again[name])
        if value.ndim == 1 and (value == value[0]).all():  # of normalisations: ones and zeros, always
            torch.testing.assert_close(mine[name], value.detach(), rtol=0, atol=1e-6)
        else:
            bound = value.detach().abs().max()
            assert (mine[name] - yours[name]).abs().max() > 0.3 * bound
            assert 0.3 * bound < mine[name].abs().max() < 3 * bound
    batched = random_anchor(kind, 0, "batched")
    torch.testing.assert_close(batched, mine, rtol=0, atol=1e-6)


def test_a_random_anchor_needs_an_initialiser() -> None:
    with pytest.raises(ValueError, match=r"no reset_parameters\(\) of the model Point sets its parameter 'point'"):
        ALONE.run(FedHBM(variant="random"), 1)


def test_one_step_of_everybody_is_the_classical_heavy_ball() -> None:
    """w_t = w_{t−1} − η ∇f(w_{t−1}) + β (w_{t−1} − w_{t−2})."""
    problem = Quadratics(**vars(SIZED) | {"samples": ()})
    for algorithm in (LocalGHB(beta=0.8), GHB(beta=0.8, tau=1)):
        path, _ = problem.run(algorithm, 6, steps=1)
        before = x = np.array(problem.start)
        for reached in path:
            slope = (problem.a * (x - problem.b)).mean(0)
            before, x = x, x - problem.lr * slope + 0.8 * (x - before)
            np.testing.assert_allclose(reached, x, rtol=1e-12)


def test_the_server_s_history_has_heard_the_last_cohorts() -> None:
    """GHB(2) with unequal steps: (β/(2 J_i))(x_{t−1} − x_{t−3}), whoever takes part."""
    path, _ = SIZED.run(GHB(beta=0.7, tau=2), len(COHORTS), cohort=COHORTS, **BY_ONES)
    models = [np.array(SIZED.start)]
    for cohort in COHORTS:
        x, ends = models[-1], []
        walked = x - models[-3] if len(models) >= 3 else np.zeros(1)
        for i in cohort:
            y = x
            for _ in range(COUNTS[i]):
                y = y - SIZED.lr * SIZED.a[i] * (y - SIZED.b[i]) + 0.7 / (2 * COUNTS[i]) * walked
            ends.append(y)
        models.append(COUNTS[cohort] @ np.array(ends) / COUNTS[cohort].sum())
    np.testing.assert_allclose(path, models[1:], rtol=1e-12)
    plain, _ = SIZED.run(FedAvg(), 2, cohort=COHORTS[:2], **BY_ONES)
    np.testing.assert_allclose(path[:2], plain, rtol=1e-14)
