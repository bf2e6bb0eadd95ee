"""The table of laws: what every algorithm must obey, checked by `test_laws.py`.

To add an algorithm, add a `Law` to `LAWS`. All an entry must name is a typical instance, its options far enough from
neutral to matter; the rest has defaults:

    Law(
        FedCM(alpha=0.5),
        neutral=Neutral(FedCM(alpha=1.0), exact=False),
        down=2,
        limit=lambda q: q.balance(q.walk(0.5)),
        golden=(Golden(FedCM(alpha=0.1), (1.0787, 1.22441305, 1.4240790621, 1.6639303559)),),
    )

From this every algorithm gets, without another line:

    neutral     at its neutral element it is FedAvg (or another algorithm), bit for bit or to rounding
    difference  elsewhere it is neither these, nor FedAvg, nor another entry of the same algorithm
    limit       on heterogeneous quadratics with full participation it ends where its equations say, with clients
                of unequal weights and numbers of steps
    partial     the same when a random half of the clients takes part
    engines     sequential and batched agree to 1e-10: unequal sizes, unequal numbers of steps, partial participation;
                with SGD, with momentum and with Adam
    traffic     bytes down and up are so many model sizes
    state       server, client and ledger states keep names, shapes and dtypes; who does not take part is left alone
    resume      an interrupted run goes on bit for bit
    transport   a round whose clients are reached by messages is the fused round, bit for bit
    golden      the first rounds of a reference problem
    permutation the order of a cohort does not matter
    translation moving all centres and the start moves the whole path

Where a law cannot hold for a reason in the paper, say so: ``excused={"translation": "it decays towards zero"}``; the
test then has to fail. Where the algorithm refuses the case, give a part of the message it must raise:
``refused={"engines adam": "which Adam rescales"}``. A key may name one case, as in ``"engines adam"``. Formulas:
`quadratics.Terrain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quadratics import P2, P3, Quadratics, Terrain
from undrift import PGVC, Algorithm
from undrift.algorithms import (
    FSVRG,
    GAFSVRG,
    GHB,
    MAFSVRG,
    MIFA,
    MOON,
    SCAFFOLD,
    AdaBest,
    FedAdagrad,
    FedAdam,
    FedADC,
    FedAvg,
    FedAvgM,
    FedBN,
    FedCM,
    FedDC,
    FedDPC,
    FedDyn,
    FedExP,
    FedGA,
    FedHBM,
    FedNova,
    FedPGVC,
    FedPMVR,
    FedProx,
    FedPVR,
    FedSpeed,
    FedVARP,
    FedYogi,
    LocalGHB,
    LoSAC,
    Mime,
    MimeLite,
    MimeLiteMom,
    MimeMom,
    MimeSVRG,
    PerFedAvg,
)

Limit = Callable[[Terrain], np.ndarray]
Data = list[tuple[Tensor, Tensor]]
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Neutral:
    """Two experiments that must be one: `algorithm`, and `equals` under the same weighting."""

    algorithm: Algorithm
    equals: Algorithm = field(default_factory=FedAvg)
    exact: bool = True  # bit for bit; else to 1e-12
    options: Mapping[str, Any] = field(default_factory=dict)  # of `simulate`, for both
    mine: Mapping[str, Any] = field(default_factory=dict)  # for `algorithm` alone, such as another lr
    theirs: Mapping[str, Any] = field(default_factory=dict)  # for `equals` alone


@dataclass(frozen=True)
class Golden:
    """The server's first points on a reference problem (one dimension, full batches, all clients)."""

    algorithm: Algorithm
    points: tuple[float, ...]
    problem: Quadratics = P2
    limit: float | None = None  # what the law's formula must give on this problem
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Law:
    algorithm: Algorithm
    label: str = ""  # needed only for a second entry of the same algorithm
    neutral: Neutral | tuple[Neutral, ...] = ()
    down: float = 1  # model sizes a client receives in a round; a few bytes more are allowed
    up: float = 1
    warm_up: int = 0  # rounds before traffic is steady
    remembers: bool = False  # clients keep a state
    ledger: bool = False  # the server keeps something of every client
    limit: Limit | None = None  # None: no claim
    partial: Limit | None = None
    lr: float = 0.4  # on the quadratics of the limits; a large one takes few rounds
    rounds: int = 150  # within which the limit is reached to 1e-6
    partial_rounds: int = 500
    golden: tuple[Golden, ...] = ()
    model: Callable[[], nn.Module] = field(default_factory=lambda: mlp)
    options: Mapping[str, Any] = field(default_factory=dict)  # of `simulate`, for the laws on `model`
    excused: Mapping[str, str] = field(default_factory=dict)  # law -> why it does not hold
    refused: Mapping[str, str] = field(default_factory=dict)  # law -> a part of the message of the error

    @property
    def name(self) -> str:
        return self.label or self.algorithm.name()

    @property
    def neutrals(self) -> tuple[Neutral, ...]:
        return self.neutral if isinstance(self.neutral, tuple) else (self.neutral,)

    @property
    def always(self) -> tuple[Algorithm, ...]:
        """What it is whatever the options are."""
        return tuple(
            case.equals
            for case in self.neutrals
            if case.algorithm == self.algorithm and not (case.options or case.mine or case.theirs)
        )


# What the laws are checked on


def mlp() -> nn.Sequential:
    """A classifier of vectors with six features into three classes."""
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3)))


def normed() -> nn.Module:
    """The same with batch normalisation."""
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)))


def linear() -> nn.Module:
    """Softmax regression."""
    return seeded(lambda: nn.Linear(6, 3))


def seeded(build: Callable[[], M]) -> M:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return build().double()


def share(*names: str, model: Callable[[], nn.Module] = mlp) -> float:
    """The part of a model in the parameters whose names start so: ``share("4.")`` is the last layer of `mlp`."""
    sizes = {name: p.numel() for name, p in model().named_parameters()}
    return sum(size for name, size in sizes.items() if name.startswith(names)) / sum(sizes.values())


SIZES = (11, 3, 6, 14, 9)  # with batches of four: 3, 1, 2, 4 and 3 steps an epoch


def classified(sizes: tuple[int, ...] = SIZES, features: int = 6, classes: int = 3) -> Data:
    """Clients of unequal size whose inputs and classes differ."""
    generator = torch.Generator().manual_seed(2)
    data = []
    for client, size in enumerate(sizes):
        x = torch.randn(size, features, dtype=torch.float64, generator=generator) + 0.5 * client
        data.append((x, torch.randint(0, classes, (size,), generator=generator)))
    return data


TRAINING: dict[str, Any] = {"rounds": 4, "cohort": 3, "epochs": 2, "batch_size": 4, "lr": 0.1, "weight_decay": 1e-3}
# Of every algorithm: in three rounds of three out of five clients some take part again. One engine for all laws but
# `engines`, so that they share runs.
SHORT: dict[str, Any] = TRAINING | {"rounds": 3, "epochs": 1, "engine": "batched:2"}

SAMPLES = (4, 2, 3, 1)
# Every sample of a client is the same, so that batches of one give unequal numbers of steps and exact gradients.
TERRAIN = Quadratics(
    curvature=((1.0, 2.0), (0.5, 1.0), (1.5, 0.7), (2.0, 1.2)),
    centre=((0.0, 1.0), (4.0, -2.0), (1.0, 3.0), (-1.0, 0.0)),
    start=(1.0, 1.0),
    lr=0.2,
    samples=SAMPLES,
)
UNEQUAL_STEPS: dict[str, Any] = {"weighting": "samples", "batch_size": 1, "epochs": 1, "steps": None}


def terrain(lr: float) -> Terrain:
    """What formulas see of it, with clients of unequal weights and numbers of steps."""
    counts = np.array(SAMPLES)[:, None]
    p = counts / counts.sum()
    return Terrain(a=TERRAIN.a, b=TERRAIN.b, p=p, k=counts, lr=lr, start=np.array(TERRAIN.start))


# P2 where the clients take two and four steps, alike in weight.
P2_UNEQUAL = Quadratics(**vars(P2) | {"samples": (2, 4)})
UNEQUAL: dict[str, Any] = {"steps": None, "batch_size": 1, "weighting": "uniform"}
P3_COHORTS: dict[str, Any] = {"cohort": [[0, 1], [0, 1], [2, 1]]}


# Limits


def optimum(q: Terrain) -> np.ndarray:
    return q.optimum


def fedavg_point(q: Terrain) -> np.ndarray:
    """Σ p_i M_i (x − b_i) = 0: where local walks balance."""
    return q.balance(q.walk())


def fedprox_point(mu: float) -> Limit:
    """Σ p_i [1 − (1 − η(a_i + μ))^K] a_i/(a_i + μ) (x − b_i) = 0."""

    def point(q: Terrain) -> np.ndarray:
        stiff = q.a + mu
        return q.balance((1 - (1 - q.lr * stiff) ** q.k) * q.a / stiff)

    return point


def fedhbm_point(beta: float) -> Limit:
    """At rest a client's anchor is where it ends again. With z the distance to its centre and h = β/K,
    z_{j+1} = (1 − ηa + h) z_j − h z_K gives z_K = r^K z_0 / (1 + h (1 + r + … + r^{K−1})).
    """

    def point(q: Terrain) -> np.ndarray:
        h = beta / q.k
        r = 1 - q.lr * q.a + h
        return q.balance(1 - r**q.k / (1 + h * (1 - r**q.k) / (1 - r)))

    return point


def fednova_point(mu: float = 0.0) -> Limit:
    """FedProx's balance (FedAvg's for μ = 0), every pull divided by A_i = 1 + (1 − ημ) + … + (1 − ημ)^{K−1}."""

    def point(q: Terrain) -> np.ndarray:
        stiff = q.a + mu
        length = (1 - (1 - q.lr * mu) ** q.k) / (q.lr * mu) if mu else q.k
        return q.balance((1 - (1 - q.lr * stiff) ** q.k) * q.a / stiff / length)

    return point


def fedcm_point(alpha: float) -> Limit:
    """With c = (1 − α) Δ, a client walks M (x − b) + c M/(αa) in a round, M at the rate αη. At rest the walks sum to
    zero, and divided by ηK to c/(1 − α): two equations in x and c; c = 0 where all K are equal.
    """

    def point(q: Terrain) -> np.ndarray:
        weight = q.p * q.walk(alpha)
        each = weight / (q.lr * q.k)
        # weight·(x − b) + c weight/(αa) = 0 and each·(x − b) + c each/(αa) = c/(1 − α), solved for x
        s0, s1, s2 = weight.sum(0), (weight * q.b).sum(0), (weight / (alpha * q.a)).sum(0)
        e0, e1, e2 = each.sum(0), (each * q.b).sum(0), (each / (alpha * q.a)).sum(0) - 1 / (1 - alpha)
        return (s1 * e2 - e1 * s2) / (s0 * e2 - e0 * s2)

    return point


def adabest_point(mu: float, beta: float, per_step: bool = False) -> Limit:
    """Σ p_i a_i (x − b_i) + μ(1 − β)(x − x⁰) = 0; per step, clients also count by their steps."""

    def point(q: Terrain) -> np.ndarray:
        pull, hold = q.p * q.a * (q.k if per_step else 1), mu * (1 - beta)
        return ((pull * q.b).sum(0) + hold * q.start) / (pull.sum(0) + hold)

    return point


def fedspeed_point(rho: float, mix: float) -> Limit:
    """FedDyn's rest, y_i = x and Σ p_i g_i = 0, with g_i = a(x − b) + mix·ρ a²(x − b)/‖a(x − b)‖ after the ascent."""

    def point(q: Terrain) -> np.ndarray:
        x = q.optimum
        for _ in range(100):
            x = q.balance(q.a + mix * rho * q.a**2 / (norm(slope(q, x)) + 1e-7))
        return x

    return point


Direction = Callable[[Terrain, np.ndarray, np.ndarray], np.ndarray]


def walked_point(direction: Direction) -> Limit:
    """Where clients that walk along `direction`, of their points y and the received x, meet where they began."""

    def point(q: Terrain) -> np.ndarray:
        x = q.start
        for _ in range(1000):
            y = np.broadcast_to(x, q.b.shape)
            for step in range(int(q.k.max())):
                y = np.where(step < q.k, y - q.lr * direction(q, y, x), y)
            x = (q.p * y).sum(0)
        return x

    return point


def slope(q: Terrain, y: np.ndarray) -> np.ndarray:
    return q.a * (y - q.b)


def loss(q: Terrain, y: np.ndarray) -> np.ndarray:
    return 0.5 * np.asarray(q.a * (y - q.b) ** 2).sum(1, keepdims=True)


def norm(rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows, axis=1, keepdims=True)


def penalty(q: Terrain, y: np.ndarray) -> np.ndarray:
    """PGVC's ρ = ℓ ∇ℓ."""
    return loss(q, y) * slope(q, y)


def fedga_point(beta: float) -> Limit:
    """Σ p_i M_i [(1 + βa_i)(x − b_i) − β G(x)] = 0 with G(x) = Σ p_j a_j (x − b_j)."""

    def point(q: Terrain) -> np.ndarray:
        walk = q.p * q.walk()
        pull = walk * (1 + beta * q.a) - beta * walk.sum(0) * q.p * q.a
        return (pull * q.b).sum(0) / pull.sum(0)

    return point


def stale_fedga_point(beta: float) -> Limit:
    """With m = M/(ηK) and z = x − βū, u = m (x + β(u − ū) − b) gives u = r (z − b), r = m/(1 − βm). At rest
    Σ p_i K_i u_i = 0 says what z is, and x = z + βū.
    """

    def point(q: Terrain) -> np.ndarray:
        mean = q.walk() / (q.lr * q.k)
        r = mean / (1 - beta * mean)
        z = q.balance(q.k * r)
        return z + beta * (q.p * r * (z - q.b)).sum(0)

    return point


def mimelitemom_point(beta: float) -> Limit:
    """Σ p_i M_i/a_i [(1 − β) a_i (x − b_i) + β Σ_j p_j a_j (x − b_j)] = 0, M at the rate (1 − β) η."""

    def point(q: Terrain) -> np.ndarray:
        own = q.p * q.walk(1 - beta) * (1 - beta)
        common = beta * (q.p * q.walk(1 - beta) / q.a).sum(0) * q.p * q.a
        return ((own + common) * q.b).sum(0) / (own + common).sum(0)

    return point


def perfedavg_point(alpha: float, power: int) -> Limit:
    """FedAvg's balance with the curvatures a (1 − αa) of the first-order form, or a (1 − αa)² of the full one."""
    return lambda q: fedavg_point(replace(q, a=q.a * (1 - alpha * q.a) ** power))


def fedpmvr_point(q: Terrain) -> np.ndarray:
    """At rest m_i is the gradient at y_i, and a client ends at b + (1 − a)(1 − ηa)^K (x − b)."""
    return q.balance(1 - (1 - q.a) * (1 - q.walk()))


def stepwise_point(alpha: float, kept: bool = True) -> Limit:
    """A step takes m⁺ = (1 − α) a z + α m off the distance z to the centre, η times."""
    return _point_at_rest(lambda a: np.array([[(1 - alpha) * a, alpha]] * 2), kept)


def sum_point(alpha: float) -> Limit:
    """A step takes g + m⁺ off, where g = a z and m⁺ = α g + (1 − α) m."""
    return _point_at_rest(lambda a: np.array([[(1 + alpha) * a, 1 - alpha], [alpha * a, 1 - alpha]]))


def _point_at_rest(rule: Callable[[float], np.ndarray], kept: bool = True) -> Limit:
    """Of steps z⁺ = z − η d with d and m⁺ linear in (z, m), the rows of `rule`; at rest m is the same after K steps, if
    it is kept, and else it is zero before them.
    """

    def end(a: float, k: int, lr: float) -> float:
        d, m = rule(a)
        whole = np.linalg.matrix_power(np.array([np.array([1, 0]) - lr * d, m]), k)
        return float(whole[0, 0] + kept * whole[0, 1] * whole[1, 0] / (1 - whole[1, 1]))

    return lambda q: q.balance(1 - np.vectorize(end)(q.a, q.k, q.lr))


# The table

# Batched, the first step of FedAvg computes with one model for all clients, and others with one for each.
ALONE = {"engine": "sequential"}

LAWS: tuple[Law, ...] = (
    Law(
        FedAvg(),
        excused={"difference": "it is the neutral element"},
        limit=fedavg_point,
        golden=(Golden(FedAvg(), (1.67, 2.1055, 2.388575, 2.57257375), limit=2.9142857143),),
    ),
    Law(
        FedProx(mu=0.5),
        neutral=Neutral(FedProx(mu=0.0)),
        limit=fedprox_point(0.5),
        golden=(Golden(FedProx(mu=0.5), (1.65, 2.079, 2.36214, 2.5490124), limit=2.9117647059),),
    ),
    Law(
        SCAFFOLD(),
        # One step and all clients: the corrections cancel.
        neutral=Neutral(SCAFFOLD(), exact=False, options={"steps": 1, "epochs": 1, "batch_size": None, "cohort": None}),
        down=2,
        up=2,
        remembers=True,
        lr=0.2,
        limit=optimum,
        partial=optimum,
        partial_rounds=120,
        golden=(Golden(SCAFFOLD(), (1.67, 2.1485, 2.458465, 2.65600825), limit=3),),
    ),
    Law(
        SCAFFOLD(option="I"),
        label="scaffold-i",
        neutral=Neutral(
            SCAFFOLD("I"), exact=False, options={"steps": 1, "epochs": 1, "batch_size": None, "cohort": None}
        ),
        down=2,
        up=2,
        remembers=True,
        limit=optimum,
        partial=optimum,
        partial_rounds=120,
        golden=(Golden(SCAFFOLD(option="I"), (1.67, 2.1555, 2.464375, 2.66028875), limit=3),),
    ),
    Law(
        FedPVR(layers=1),  # of three on the classifier, of one on quadratics
        neutral=(Neutral(FedPVR(layers=0)), Neutral(FedPVR(layers="all"), SCAFFOLD())),
        down=1 + share("4."),
        up=1 + share("4."),
        remembers=True,
        lr=0.2,
        limit=optimum,
    ),
    Law(
        FedPVR(layers=["0.weight", "4.bias"], option="I"),
        label="fedpvr-i",
        neutral=Neutral(FedPVR(layers="all", option="I"), SCAFFOLD(option="I")),
        down=1 + share("0.weight", "4.bias"),
        up=1 + share("0.weight", "4.bias"),
        remembers=True,
        refused={"translation": "layers"},
    ),
    Law(
        FedDyn(alpha=0.5),
        remembers=True,
        limit=optimum,
        partial=optimum,
        partial_rounds=320,
        golden=(Golden(FedDyn(alpha=0.5), (2.3, 3.2606, 3.701751375, 3.6963709906), limit=3),),
    ),
    Law(
        FedDC(alpha=0.5),
        down=2,
        up=2,
        remembers=True,
        limit=optimum,
        partial=optimum,
        partial_rounds=120,
        golden=(
            Golden(FedDC(alpha=0.5), (2.3, 3.3441, 3.822415125, 3.8049906844), limit=3),
            Golden(FedDC(alpha=0.1), (2.332, 3.4662952, 4.0229476037, 4.0069847446)),
        ),
    ),
    Law(
        FedSpeed(lam=2.0, mix=0.5),
        neutral=(
            Neutral(FedSpeed(lam=2.0, rho=0.0), FedDyn(alpha=0.5)),
            Neutral(FedSpeed(lam=2.0, mix=0.0), FedDyn(alpha=0.5)),
        ),
        remembers=True,
        limit=fedspeed_point(0.1, mix=0.5),
        partial=fedspeed_point(0.1, mix=0.5),
        golden=(Golden(FedSpeed(lam=2.0, rho=0.0), (2.3, 3.2606, 3.701751375, 3.6963709906)),),
    ),
    Law(
        AdaBest(mu=0.5, beta=0.5),
        neutral=Neutral(AdaBest(mu=0.0, beta=0.0), exact=False),
        remembers=True,
        limit=adabest_point(0.5, 0.5),
        golden=(
            Golden(AdaBest(mu=0.5, beta=0.5), (2.005, 2.565875, 2.783388, 2.8208825631), limit=2.7777777778),
            Golden(AdaBest(mu=0.0, beta=0.5), (2.005, 2.649875, 2.952003125, 3.0369936719)),
            Golden(AdaBest(mu=0.02, beta=0.8), (2.206, 3.076988, 3.4693631513, 3.4767060169)),
        ),
    ),
    Law(
        AdaBest(mu=0.0, beta=0.5),
        label="adabest-average",
        remembers=True,
        limit=fedavg_point,
    ),
    Law(
        AdaBest(mu=0.5, beta=0.5, per_step=True),
        label="adabest-per-step",
        # With K = 1 for everybody the options agree.
        neutral=Neutral(
            AdaBest(mu=0.5, beta=0.5, per_step=True),
            AdaBest(mu=0.5, beta=0.5),
            options={"steps": 1, "epochs": 1},
        ),
        remembers=True,
        limit=adabest_point(0.5, 0.5, per_step=True),
        rounds=400,
    ),
    Law(
        FedGA(beta=0.1),
        # Batched, clients that start apart take their first step in another order of sums.
        neutral=Neutral(FedGA(beta=0.0), options={"engine": "sequential"}),
        down=3,
        up=2,
        limit=fedga_point(0.1),
        golden=(
            Golden(FedGA(beta=0.01), (1.678, 2.1176152, 2.4026616957, 2.5874858435)),
            Golden(FedGA(beta=0.05), (1.71, 2.16582, 2.45845644, 2.6463290345)),
            Golden(FedGA(beta=0.1), (1.75, 2.2255, 2.526967, 2.718097078), limit=3.0491803279),
        ),
    ),
    Law(
        FedGA(beta=0.1, form="stale"),
        label="fedga-stale",
        neutral=Neutral(FedGA(beta=0.0, form="stale"), options={"engine": "sequential"}),
        down=2,
        remembers=True,
        limit=stale_fedga_point(0.1),
        refused={"engines adam": "Adam"},
    ),
    Law(
        LoSAC(),
        neutral=Neutral(LoSAC(), SCAFFOLD(), exact=False, options={"steps": 1, "epochs": 1, "batch_size": None}),
        down=2,
        up=2,
        remembers=True,
        lr=0.2,
        limit=optimum,
        partial=optimum,
        partial_rounds=120,
        golden=(Golden(LoSAC(), (1.47, 1.9935, 2.373255, 2.61873375), limit=3),),
    ),
    Law(
        LoSAC(partitions=4),  # more than the smallest client has samples
        label="losac-partitions",
        down=2,
        up=2,
        remembers=True,
        lr=0.2,
        limit=optimum,
        partial=optimum,
        partial_rounds=120,
    ),
    Law(
        FedNova(),
        neutral=(
            Neutral(FedNova(), exact=False, options={"steps": 3, "epochs": 1}),
            Neutral(FedNova(mu=0.5), exact=False, options={"steps": 1, "epochs": 1}),
        ),
        limit=fednova_point(),
        golden=(
            Golden(FedNova(), (1.67, 2.1055, 2.388575, 2.57257375), limit=2.9142857143),
            Golden(FedNova(), (1.7123875, 2.1202560583, 2.3537761030), P2_UNEQUAL, options=UNEQUAL),
        ),
    ),
    Law(
        FedNova(mu=0.5),
        label="fednova-prox",
        limit=fednova_point(0.5),
    ),
    Law(
        FedAvgM(beta=0.5),
        neutral=Neutral(FedAvgM(beta=0.0)),
        limit=fedavg_point,
        golden=(Golden(FedAvgM(), (1.67, 2.7085, 3.715175, 4.34087125)),),
    ),
    Law(
        FedAvgM(beta=0.5, nesterov=True),
        label="fedavgm-nesterov",
        neutral=Neutral(FedAvgM(beta=0.0, nesterov=True)),
        limit=fedavg_point,
    ),
    # With τ far above D the root of s stays at τ, or at |D| where it forgets at once: a plain step of rate one.
    Law(
        FedAdagrad(tau=1.0),
        neutral=Neutral(FedAdagrad(tau=1e7), exact=False, mine={"server_lr": 2e7}),
        limit=fedavg_point,
        rounds=300,
        golden=(Golden(FedAdagrad(), (1.0998508577, 1.1685688441, 1.2237118599), options={"server_lr": 0.1}),),
    ),
    Law(
        FedAdam(beta1=0.5, tau=1.0),
        neutral=Neutral(FedAdam(beta1=0.0, beta2=0.0, tau=1e14), exact=False, mine={"server_lr": 1e14}),
        limit=fedavg_point,
        golden=(Golden(FedAdam(), (1.0985187085, 1.2315379242, 1.3864982462), options={"server_lr": 0.1}),),
    ),
    Law(
        FedYogi(beta1=0.5, tau=1.0),
        neutral=Neutral(FedYogi(beta1=0.0, beta2=0.0, tau=1e7), exact=False, mine={"server_lr": 2e7}),
        limit=fedavg_point,
        golden=(Golden(FedYogi(), (1.0985186004, 1.2311908942, 1.3853205041), options={"server_lr": 0.1}),),
    ),
    Law(
        # Near its end the server's rate is Σ p_i ‖Δ_i‖²/(2ε), with which a smaller ε would oscillate.
        FedExP(eps=0.02),
        neutral=(Neutral(FedExP(eps=1e6)), Neutral(FedExP(eps=0.02), options={"cohort": 1})),
        limit=fedavg_point,
        lr=0.07,
        golden=(
            Golden(FedExP(eps=0.1), (1.725355256, 2.2788061056, 2.6351985089, 2.7990907356)),
            Golden(FedExP(eps=0.001), (1.884968882, 2.7745396872, 5.1842187401, 4.3897421811)),
            Golden(FedExP(eps=1.0), (1.67, 2.1055, 2.388575, 2.57257375)),
        ),
    ),
    Law(
        FedCM(alpha=0.5),
        neutral=(
            Neutral(FedCM(alpha=1.0)),
            # One step: server momentum at the rate αη.
            Neutral(
                FedCM(alpha=0.5),
                FedAvgM(beta=0.5),
                exact=False,
                options={"steps": 1, "epochs": 1, "weight_decay": 0.0},
                theirs={"lr": 0.05},
            ),
        ),
        down=2,
        limit=fedcm_point(0.5),
        golden=(Golden(FedCM(alpha=0.1), (1.0787, 1.22441305, 1.4240790621, 1.6639303559)),),
    ),
    Law(
        FedADC(beta=0.5),
        down=2,
        limit=fedavg_point,
        golden=(Golden(FedADC(), (1.67, 2.6415, 3.514175, 4.00235375)),),
        refused={"engines adam": "which Adam rescales"},
    ),
    Law(
        FedADC(beta=0.5, form="v1"),
        label="fedadc-v1",
        neutral=(
            Neutral(FedADC(beta=0.0, form="v1")),
            Neutral(FedADC(beta=0.5, form="v1"), GHB(beta=0.5, tau=1), exact=False),
            Neutral(
                FedADC(beta=0.5, form="v1"),
                FedCM(alpha=0.5),
                exact=False,
                options={"steps": 3, "epochs": 1, "weight_decay": 0.0},
                theirs={"lr": 0.2},
            ),
        ),
        down=2,
        limit=fedavg_point,
        golden=(Golden(FedADC(form="v1"), (1.67, 2.6482, 3.533672, 4.03411912)),),
        refused={"engines adam": "which Adam rescales"},
    ),
    Law(
        FedADC(beta=0.5, lookahead=True),
        label="fedadc-lookahead",
        down=2,
        lr=0.2,
        limit=fedavg_point,
        refused={"engines adam": "which Adam rescales"},
    ),
    # Updates are remembered per step, so that unequal steps end at FedNova's point.
    Law(
        FedVARP(),
        neutral=Neutral(FedVARP(), exact=False, options={"steps": 3, "epochs": 1, "cohort": None}),
        ledger=True,
        limit=fednova_point(),
        partial=fednova_point(),
        golden=(
            Golden(FedVARP(), (1.67, 2.1055, 2.388575, 2.57257375), limit=2.9142857143),
            Golden(FedVARP(), (1.67, 1.8821666667, 1.9596075), P3, options=P3_COHORTS),
        ),
    ),
    Law(
        MIFA(),
        neutral=Neutral(MIFA(), exact=False, options={"steps": 3, "epochs": 1, "cohort": None}),
        ledger=True,
        limit=fednova_point(),
        partial=fednova_point(),
        golden=(
            Golden(MIFA(), (1.67, 2.1055, 2.388575, 2.57257375), limit=2.9142857143),
            Golden(MIFA(), (1.4466666667, 1.7891111111, 1.9786466667), P3, options=P3_COHORTS),
        ),
    ),
    # The extra exchange sends the model, and training sends it again with the cohort's gradient.
    Law(
        Mime(),
        # One step is the cohort's full gradient step, whatever the minibatch.
        neutral=Neutral(
            Mime(),
            exact=False,
            options={"steps": 1, "epochs": 1},
            theirs={"batch_size": None},
        ),
        down=3,
        up=2,
        limit=optimum,
        golden=(Golden(Mime(), (1.72, 2.1808, 2.475712, 2.66445568), limit=3),),
    ),
    Law(
        MimeSVRG(anchor_fraction=0.5),
        neutral=Neutral(MimeSVRG(), Mime()),
        down=3,
        up=2,
        limit=optimum,  # the samples of a client are all the same here
        golden=(Golden(MimeSVRG(), (1.72, 2.1808, 2.475712, 2.66445568)),),
    ),
    Law(
        MimeMom(beta=0.5),
        neutral=(
            Neutral(MimeMom(beta=0.0), Mime()),
            # One step: the server's own averaged momentum.
            Neutral(
                MimeMom(beta=0.5),
                FedAvgM(beta=0.5),
                exact=False,
                options={"steps": 1, "epochs": 1},
                theirs={"batch_size": None, "lr": 0.05},
            ),
        ),
        down=4,
        up=2,
        limit=optimum,
        golden=(Golden(MimeMom(), (1.0792, 1.22654368, 1.4293818623, 1.6741327046)),),
    ),
    Law(
        MimeLite(),
        neutral=Neutral(MimeLite()),
        excused={"difference": "without momentum it is FedAvg"},
        limit=fedavg_point,
        golden=(Golden(MimeLite(), (1.67, 2.1055, 2.388575, 2.57257375), limit=2.9142857143),),
    ),
    Law(
        MimeLiteMom(beta=0.5),
        neutral=Neutral(MimeLiteMom(beta=0.0)),
        down=2,
        up=2,
        limit=mimelitemom_point(0.5),
        golden=(Golden(MimeLiteMom(), (1.0787, 1.22557135, 1.4279884137, 1.6723879272)),),
    ),
    Law(
        PerFedAvg(alpha=0.1),
        neutral=Neutral(PerFedAvg(alpha=0.0), options=ALONE),
        limit=perfedavg_point(0.1, power=1),
        golden=(Golden(PerFedAvg(alpha=0.1), (1.4779, 1.82490319, 2.0768622063, 2.259809648), limit=2.7447973713),),
    ),
    Law(
        PerFedAvg(alpha=0.1, form="hf"),
        label="perfedavg-hf",
        neutral=Neutral(PerFedAvg(alpha=0.0, form="hf"), options=ALONE),
        limit=perfedavg_point(0.1, power=2),
        golden=(
            Golden(
                PerFedAvg(alpha=0.1, form="hf"),
                (1.330867, 1.5909565857, 1.7954091077, 1.9561261684),
                limit=2.5467218288,
            ),
            Golden(PerFedAvg(alpha=0.1, form="hf", delta=0.5), (1.330867, 1.5909565857, 1.7954091077, 1.9561261684)),
        ),
    ),
    Law(
        MOON(mu=2.0),
        # In a client's first participation its last model is the received one.
        neutral=(Neutral(MOON(mu=0.0)), Neutral(MOON(mu=2.0), exact=False, options={"rounds": 1})),
        remembers=True,
        refused={"translation": "MOON compares representations"},  # of which a point has none
    ),
    Law(
        FedBN(),
        down=1 - share("1.", model=normed),
        up=1 - share("1.", model=normed),
        remembers=True,
        limit=fedavg_point,
        model=normed,
    ),
    Law(
        FedPMVR(alpha=0.4),
        limit=fedpmvr_point,
        remembers=True,
    ),
    Law(
        FedPMVR(alpha=0.4, form="drift"),
        label="fedpmvr-drift",
        neutral=(
            Neutral(FedPMVR(alpha=0.0, form="drift")),
            Neutral(FedPMVR(alpha=0.4, form="drift", layers=0)),
        ),
        remembers=True,
    ),
    Law(
        FedPMVR(alpha=0.4, form="stepwise"),
        label="fedpmvr-stepwise",
        neutral=(
            Neutral(FedPMVR(alpha=0.0, form="stepwise")),
            Neutral(FedPMVR(alpha=0.4, form="stepwise", layers=0)),
        ),
        remembers=True,
        limit=stepwise_point(0.4),
    ),
    Law(
        FedPMVR(alpha=0.4, form="stepwise", keep_momentum=False),
        label="fedpmvr-forgetful",
        neutral=Neutral(FedPMVR(alpha=0.0, form="stepwise", keep_momentum=False)),
        limit=stepwise_point(0.4, kept=False),
    ),
    # Every client's update is multiplied by 1 − α, which moves no balance.
    Law(
        FedPMVR(alpha=0.4, form="drift", keep_momentum=False),
        label="fedpmvr-drift-reset",
        neutral=Neutral(FedPMVR(alpha=0.0, form="drift", keep_momentum=False)),
        limit=fedavg_point,
    ),
    Law(
        FedPMVR(alpha=0.4, form="drift", accumulate=True),
        label="fedpmvr-accumulating",
        neutral=Neutral(FedPMVR(alpha=0.0, form="drift", accumulate=True)),
        remembers=True,
    ),
    Law(
        FedPMVR(alpha=0.4, form="pseudogradient", keep_momentum=False),
        label="fedpmvr-pseudogradient",
        neutral=Neutral(FedPMVR(alpha=0.0, form="pseudogradient", keep_momentum=False)),
        limit=fedavg_point,
    ),
    Law(
        FedPMVR(alpha=0.4, form="sum"),
        label="fedpmvr-sum",
        neutral=(
            Neutral(FedPMVR(alpha=0.0, form="sum")),
            Neutral(FedPMVR(alpha=0.4, form="sum", layers=0)),
        ),
        remembers=True,
        limit=sum_point(0.4),
    ),
    Law(
        FedPGVC(),
        neutral=Neutral(FedPGVC(layers=0)),
        lr=0.01,
    ),
    Law(
        FedPGVC(form="additive"),
        label="fedpgvc-additive",
        neutral=Neutral(FedPGVC(form="additive", layers=0)),
        limit=walked_point(lambda q, y, x: slope(q, y) + penalty(q, y)),
        lr=0.06,
    ),
    Law(
        FedPGVC(form="magnitude"),
        label="fedpgvc-magnitude",
        neutral=Neutral(FedPGVC(form="magnitude", layers=0)),
        limit=walked_point(lambda q, y, x: abs(penalty(q, y)) * slope(q, y)),
        lr=0.04,
    ),
    Law(
        FedPGVC(form="product"),
        label="fedpgvc-product",
        neutral=Neutral(FedPGVC(form="product", layers=0)),
        lr=0.01,
    ),
    Law(
        FedPGVC(form="loss"),
        label="fedpgvc-loss",
        neutral=Neutral(FedPGVC(form="loss", layers=0)),
        limit=walked_point(lambda q, y, x: loss(q, y) * slope(q, y)),
        lr=0.06,
    ),
    Law(
        FedPGVC(form="norm"),
        label="fedpgvc-norm",
        neutral=Neutral(FedPGVC(form="norm", layers=0)),
        limit=walked_point(lambda q, y, x: norm(slope(q, y)) * slope(q, y)),
        lr=0.15,
    ),
    Law(
        FedPGVC(form="decay"),
        label="fedpgvc-decay",
        neutral=Neutral(FedPGVC(form="decay", layers=0)),
        lr=0.01,
        excused={"translation": "it multiplies weights, which pulls them towards zero or away from it"},
    ),
    Law(
        FedPGVC(form="magnitude", penalty_at="received"),
        label="fedpgvc-received",
        neutral=Neutral(FedPGVC(form="magnitude", layers=0)),
        limit=walked_point(lambda q, y, x: abs(penalty(q, x)) * slope(q, y)),
        lr=0.04,
    ),
    Law(
        FedProx(mu=0.5, pgvc=PGVC(layers=1, form="magnitude")),
        label="fedprox-pgvc",
        neutral=Neutral(FedProx(mu=0.5, pgvc=PGVC(layers=0)), FedProx(mu=0.5)),
        limit=walked_point(lambda q, y, x: abs(penalty(q, y)) * slope(q, y) + 0.5 * (y - x)),
        lr=0.03,
    ),
    Law(
        FedDPC(lam=0.5),
        neutral=(
            Neutral(FedDPC(projection=False, scaling=False)),
            Neutral(FedDPC(lam=0.5, projection=False), exact=False, theirs={"server_lr": 1.5}),
        ),
        limit=fedavg_point,
        excused={"limit": "its steps are as long as clients' updates, which do not vanish where clients disagree"},
    ),
    # Steps in turn along two directions that are orthogonal.
    Law(
        FedDPC(scaling=False),
        label="feddpc-projection",
        neutral=Neutral(FedDPC(projection=False, scaling=False)),
        limit=fedavg_point,
    ),
    Law(
        FSVRG(scale_step=False),
        label="fsvrg-plain",
        # One step and all clients: everybody steps along the mean gradient.
        neutral=Neutral(
            FSVRG(scale_step=False),
            exact=False,
            options={"steps": 1, "epochs": 1, "batch_size": None, "cohort": None},
        ),
        down=3,
        up=2,
        limit=optimum,
        golden=(Golden(FSVRG(scale_step=False), (1.72, 2.1808, 2.475712, 2.66445568), limit=3),),
    ),
    Law(
        FSVRG(),
        neutral=Neutral(FSVRG(), FSVRG(scale_step=False), exact=False, options={"cohort": [[1]] * 3}, mine={"lr": 0.3}),
        down=3,
        up=2,
        limit=optimum,
        rounds=400,
    ),
    Law(
        FSVRG(feature_scaling="printed"),
        label="fsvrg-printed",
        # No feature is ever zero, and everybody takes part: all factors are one.
        neutral=Neutral(
            FSVRG(feature_scaling="printed"), FSVRG(feature_scaling="off"), exact=False, options={"cohort": None}
        ),
        down=3,
        up=2,
        remembers=True,
        ledger=True,
        model=linear,
    ),
    Law(
        FSVRG(feature_scaling="census"),
        label="fsvrg-census",
        # No feature is ever zero, so that all counts agree; where everybody takes part, all factors are one.
        neutral=(
            Neutral(FSVRG(feature_scaling="census"), FSVRG(feature_scaling="printed"), exact=False),
            Neutral(
                FSVRG(feature_scaling="census"), FSVRG(feature_scaling="off"), exact=False, options={"cohort": None}
            ),
        ),
        down=3,
        up=2,
        remembers=True,
        model=linear,
    ),
    Law(
        MAFSVRG(models=2, threshold=2),
        neutral=Neutral(MAFSVRG(models=1, acceleration="off"), FSVRG(), exact=False),
        down=5,
        up=5,
        warm_up=2,
        ledger=True,
    ),
    # The optimum is where one model rests: every gradient that is sent is zero there.
    Law(
        MAFSVRG(models=1),
        label="mafsvrg-one",
        neutral=Neutral(MAFSVRG(models=1, acceleration="off"), FSVRG(), exact=False),
        down=3,
        up=3,
        ledger=True,
        limit=optimum,
        rounds=250,
    ),
    Law(
        GAFSVRG(models=1, threshold=0),
        label="gafsvrg-one",
        down=3,
        up=3,
        ledger=True,
        limit=optimum,
        rounds=250,
    ),
    Law(
        GAFSVRG(models=2, threshold=2),
        neutral=Neutral(GAFSVRG(models=2, threshold=5, acceleration="off"), FSVRG(), exact=False),
        down=5,
        up=5,
        warm_up=2,
        ledger=True,
    ),
    Law(
        GAFSVRG(models=3, threshold=2, acceleration="off", feature_scaling="printed"),
        label="gafsvrg-printed",
        neutral=Neutral(
            GAFSVRG(models=3, threshold=2, acceleration="off", feature_scaling="printed"),
            GAFSVRG(models=3, threshold=2, acceleration="off", feature_scaling="off"),
            exact=False,
            options={"cohort": None},
        ),
        down=4,
        up=4,
        warm_up=2,
        remembers=True,
        ledger=True,
        model=linear,
    ),
    Law(
        GAFSVRG(
            models=3,
            threshold=2,
            accelerate_first_rounds=False,
            centred_starts=False,
            eps_in_root=True,
            scale_twice=True,
            feature_scaling="census",
        ),
        label="gafsvrg-readings",
        down=7,
        up=7,
        warm_up=2,
        remembers=True,
        ledger=True,
        model=linear,
    ),
    Law(
        FedHBM(beta=0.35),
        neutral=Neutral(FedHBM(beta=0.0), exact=False),  # FedAvg's step is rounded once less
        remembers=True,
        limit=fedhbm_point(0.35),
    ),
    Law(
        FedHBM(beta=0.5, anchor="step"),
        label="fedhbm-step",
        neutral=(
            Neutral(FedHBM(beta=0.0, anchor="step"), exact=False),
            # before the only step a client is where it received the model
            Neutral(FedHBM(beta=0.3, anchor="step"), LocalGHB(beta=0.3), options={"steps": 1, "epochs": 1}),
        ),
        remembers=True,
        limit=fedavg_point,
    ),
    Law(
        LocalGHB(beta=0.3),
        neutral=Neutral(LocalGHB(beta=0.0), exact=False),  # FedAvg's step is rounded once less
        remembers=True,
        limit=fedavg_point,
    ),
    Law(
        GHB(beta=0.5, tau=2),
        neutral=Neutral(GHB(beta=0.0, tau=2), exact=False),  # FedAvg's step is rounded once less
        down=2,
        limit=fedavg_point,
    ),
)

_NAMES = [law.algorithm.name() for law in LAWS]
# Without state, with that of clients, of the server and of the ledger, of several phases and of several models.
KINDS = {"fedavg", "scaffold", "mime", "fedvarp", "feddyn", "fedhbm", "mafsvrg", "fedbn", "fedadam", "moon"}


def one_of_every_kind(names: Iterable[str]) -> list[Any]:
    """Parameters of a test; algorithms that are like one of these are tested with --all."""
    return [pytest.param(name, marks=() if name in KINDS else pytest.mark.long) for name in names]


FIRST = [law for i, law in enumerate(LAWS) if law.algorithm.name() not in _NAMES[:i]]  # one of every algorithm
FIRST_OF_EVERY_KIND = [
    pytest.param(law, marks=() if law.algorithm.name() in KINDS else pytest.mark.long, id=law.name) for law in FIRST
]
