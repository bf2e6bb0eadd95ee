"""Ways to split samples among clients. All are true partitions, always end, and depend on the seed only.

A scheme is written ``name``, ``name:number`` or ``name:number,min=10``. It gives every sample an owner; nothing here
loops over samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from undrift.core import check
from undrift.core.check import nearest

Ints = np.ndarray[Any, np.dtype[np.int64]]
Reals = np.ndarray[Any, np.dtype[np.float64]]
NOBODY = -1  # the owner of samples that are left out
_SMALLEST = 1e-300  # α below which a logarithm would overflow


class Parsed(NamedTuple):
    name: str
    argument: str
    least: int  # samples that every client must have


def partition(scheme: str, labels: Any, clients: int | None = None, seed: int = 0, users: Any = None) -> list[Ints]:
    """Rows of each client by a scheme: ``iid``, ``dirichlet:0.1,min=10``, ``dirichlet-client:0``, ``classes:2``, ...

    Only ``natural`` needs `users` (whose sample it is), and only there may `clients` be left out: all of them.
    """
    rows, sizes = by_owner(owners(scheme, labels, clients, seed, users))
    return np.split(rows, np.cumsum(sizes)[:-1])


def owners(scheme: str, labels: Any, clients: int | None = None, seed: int = 0, users: Any = None) -> Ints:
    """The client of every sample [n], or `NOBODY`."""
    name, argument, least = parse(scheme)
    y = np.asarray(labels)
    if name == "natural":
        y = _able(users, least)
        clients = int(y.max()) + 1 if clients is None else clients
    elif name in _BY_LABEL:
        if y.ndim != 1:
            raise ValueError(
                f"partition {name!r} needs one class per sample, got targets of shape {y.shape[1:]}; "
                "use 'iid', 'quantity' or 'natural'"
            )
        y = np.unique(y, return_inverse=True)[1]
    check.integer("clients", clients, 1)
    assert clients is not None
    if clients > len(y):
        raise ValueError(f"clients must not be more than the {len(y)} samples, got {clients}")
    if clients * least > len(y):
        raise ValueError(f"min={least} for {clients} clients needs {clients * least} samples, there are {len(y)}")
    rng = np.random.default_rng([seed, 6])
    owner = SCHEMES[name](y, clients, argument, rng)
    if name in _UNEVEN:
        return _levelled(owner, clients, least, rng)
    smallest = int(np.bincount(owner[owner != NOBODY], minlength=clients).min())
    if smallest < least:
        raise ValueError(f"min={least} cannot be had: partition {scheme!r} gives some client {smallest} samples only")
    return owner


def parse(scheme: str) -> Parsed:
    """A scheme's name, number and minimum."""
    if not isinstance(scheme, str):
        raise TypeError(f"partition must be a word such as 'dirichlet:0.1', got {scheme!r}")
    head, *options = scheme.split(",")
    name, _, argument = head.partition(":")
    if name not in SCHEMES:
        raise ValueError(f"unknown partition {scheme!r}{nearest(name, SCHEMES)}")
    least = 1
    for option in options:
        key, _, value = option.partition("=")
        if key.strip() != "min" or not value.strip().isdigit():
            raise ValueError(f"partition {scheme!r}: after a comma comes a minimum, as in '{head},min=10'")
        least = max(1, int(value))
    return Parsed(name, argument, least)


def by_owner(owner: Ints) -> tuple[Ints, Ints]:
    """All rows sorted by owner, those of one owner in increasing order, and how many each has."""
    rows = np.argsort(owner, kind="stable")
    rows = rows[np.searchsorted(owner[rows], 0) :]  # without nobody's
    return rows, np.bincount(owner[rows])


def iid(y: Ints, clients: int, argument: str, rng: np.random.Generator) -> Ints:
    """Equal parts of a shuffled whole."""
    _no_argument("iid", argument)
    return _dealt(rng.permutation(len(y)), np.arange(clients))


def dirichlet(y: Ints, clients: int, argument: str, rng: np.random.Generator) -> Ints:
    """Each class is divided among the clients in proportions drawn from Dirichlet(α) (Yurochkin et al., 2019)."""
    alpha = _number("dirichlet", argument)
    check.number("alpha of partition 'dirichlet'", alpha, 0, open_low=True)
    owner = np.empty(len(y), dtype=np.int64)
    for rows in _classes(y, rng):
        shares = _proportions(np.full(clients, alpha), 1, rng)[0]
        owner[rows] = _cut(len(rows), shares)
    return owner


def dirichlet_client(y: Ints, clients: int, argument: str, rng: np.random.Generator) -> Ints:
    """Clients of equal size draw classes in proportions Dirichlet(α p); α = 0: one class each (Hsu et al., 2019, 2020).

    p are the shares of the classes in the whole. Drawing is without replacement: when a class is used up, the others
    share its part, so that the last clients get what is left.
    """
    alpha = _number("dirichlet-client", argument)
    check.number("alpha of partition 'dirichlet-client'", alpha, 0)
    left = np.bincount(y)
    if alpha == 0:
        return _one_class_each(y, left, clients, rng)
    sizes = np.diff(np.arange(clients + 1) * len(y) // clients)
    shares = _proportions(alpha * left / len(y), clients, rng)  # [N, C]
    taken = np.zeros((clients, len(left)), dtype=np.int64)
    for client, size in enumerate(sizes):
        while size:  # every turn fills the client or uses up a class
            weights = np.where(left > 0, shares[client], 0)
            weights = weights if weights.any() else left.astype(np.float64)
            drawn = np.minimum(rng.multinomial(size, weights / weights.sum()), left)
            taken[client] += drawn
            left -= drawn
            size -= drawn.sum()
    owner = np.empty(len(y), dtype=np.int64)
    for rows, counts in zip(_classes(y, rng), taken.T, strict=True):
        owner[rows] = np.repeat(np.arange(clients), counts)
    return owner


def classes(y: Ints, clients: int, argument: str, rng: np.random.Generator) -> Ints:
    """Every client sees exactly k classes, drawn at random; a class is shared equally by the clients that see it."""
    k, counts = _whole("classes", argument), np.bincount(y)
    if k > len(counts):
        raise ValueError(f"k of partition 'classes' must not exceed the {len(counts)} classes, got {k}")
    if clients * k < len(counts):
        raise ValueError(f"{clients} clients of {k} classes cannot hold all {len(counts)} classes")
    seats = _seats(clients, k, len(counts), rng)  # [N, k]
    owner = np.empty(len(y), dtype=np.int64)
    for label, rows in enumerate(_classes(y, rng)):
        who = np.flatnonzero((seats == label).any(1))
        if len(rows) < len(who):
            raise ValueError(f"class {label} has {len(rows)} samples, too few for the {len(who)} clients that see it")
        owner[rows] = _dealt(np.arange(len(rows)), who)
    return owner


def shards(y: Ints, clients: int, argument: str, rng: np.random.Generator) -> Ints:
    """Samples sorted by label are cut into equal shards; every client gets k (2) of them (McMahan et al., 2017)."""
    k = _whole("shards", argument or "2")
    if clients * k > len(y):
        raise ValueError(f"{clients} clients of {k} shards need {clients * k} samples, there are {len(y)}")
    holders = rng.permutation(np.repeat(np.arange(clients), k))
    return _dealt(np.concatenate(_classes(y, rng)), holders)


def quantity(y: Ints, clients: int, argument: str, rng: np.random.Generator) -> Ints:
    """Sizes in proportions drawn from Dirichlet(α), labels alike everywhere."""
    alpha = _number("quantity", argument)
    check.number("alpha of partition 'quantity'", alpha, 0, open_low=True)
    owner = np.empty(len(y), dtype=np.int64)
    owner[rng.permutation(len(y))] = _cut(len(y), _proportions(np.full(clients, alpha), 1, rng)[0])
    return owner


def natural(y: Ints, clients: int, argument: str, rng: np.random.Generator) -> Ints:
    """Users as they are (roles, writers, photographers); with fewer clients, some of them, and the rest left out."""
    _no_argument("natural", argument)
    count = int(y.max()) + 1
    if clients > count:
        raise ValueError(f"clients must not be more than the {count} users, got {clients}")
    number = np.full(count + 1, NOBODY)  # the last entry is for samples that are nobody's already
    number[np.sort(rng.choice(count, clients, replace=False))] = np.arange(clients)
    return number[y]


Scheme = Callable[[Ints, int, str, np.random.Generator], Ints]
SCHEMES: dict[str, Scheme] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet-client": dirichlet_client,
    "classes": classes,
    "shards": shards,
    "quantity": quantity,
    "natural": natural,
}
_BY_LABEL = {"dirichlet", "dirichlet-client", "classes", "shards"}
_UNEVEN = {"dirichlet", "quantity"}  # these promise nothing that giving samples to the poorest would break


def stratified(owner: Ints, labels: Any, share: float, seed: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which samples [n] are a client's own test set: about a `share` of every class it has, at least one sample.

    A client of a single sample has no test set; nobody is left without training samples.
    """
    rng = np.random.default_rng([seed, 7])
    y = np.asarray(labels)
    code = np.unique(y, return_inverse=True)[1] if y.ndim == 1 else np.zeros(len(y), dtype=np.int64)
    order = np.lexsort((rng.random(len(y)), code, owner))  # by client, then class, then at random
    sizes = np.bincount(owner)
    size = sizes[owner[order]]
    place = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wanted = np.clip(np.round(share * sizes), np.minimum(1, sizes - 1), np.maximum(sizes - 1, 0))
    rate, start = np.repeat(wanted, sizes) / size, np.repeat(rng.random(len(sizes)), sizes)
    held = np.empty(len(y), dtype=bool)
    # Every 1/rate-th sample: as many as wanted, in every class its part to within one.
    held[order] = np.floor((place + 1) * rate + start) > np.floor(place * rate + start)
    return held


# Parts


def _able(users: Any, least: int) -> Ints:
    """The number of every sample's user [n]; `NOBODY` where the user has fewer than `least` samples."""
    if users is None:
        raise ValueError("partition 'natural' needs to know whose every sample is, and these data have no users")
    _, user, sizes = np.unique(np.asarray(users), return_inverse=True, return_counts=True)
    able = sizes >= least
    if not able.any():
        raise ValueError(f"no user has min={least} samples; the largest has {sizes.max()}")
    return np.where(able, np.cumsum(able) - 1, NOBODY)[user]


def _classes(y: Ints, rng: np.random.Generator) -> list[Ints]:
    """Rows of every class, shuffled."""
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(y))[:-1])


def _dealt(rows: Ints, holders: Ints) -> Ints:
    """Owners of consecutive equal parts, in the order of `rows`."""
    owner = np.empty(len(rows), dtype=np.int64)
    owner[rows] = holders[np.arange(len(rows)) * len(holders) // len(rows)]
    return owner


def _cut(count: int, shares: Reals) -> Ints:
    """Who gets each of `count` places when they are divided by `shares`."""
    cuts = np.round(np.cumsum(shares)[:-1] * count)
    return np.searchsorted(cuts, np.arange(count), side="right")


def _proportions(alpha: Reals, count: int, rng: np.random.Generator) -> Reals:
    """`count` draws from Dirichlet(α) [count, K], exact for the smallest α, where ordinary draws are 0/0."""
    # If G is Gamma(α+1) and U uniform, then G U^(1/α) is Gamma(α); in logarithms nothing vanishes.
    exponent = np.log1p(-rng.random((count, len(alpha)))) / np.maximum(alpha, _SMALLEST)
    logs = np.log(rng.standard_gamma(alpha + 1, (count, len(alpha)))) + exponent
    shares = np.exp(logs - logs.max(1, keepdims=True))
    return np.asarray(shares / shares.sum(1, keepdims=True))


def _seats(clients: int, k: int, count: int, rng: np.random.Generator) -> Ints:
    """k different classes for every client [N, k], every class for about equally many clients.

    Seats are filled with shuffled decks of all classes; where a client's seats span two decks, the second deck begins
    with classes it does not have.
    """
    seats = np.empty(clients * k, dtype=np.int64)
    for start in range(0, len(seats), count):
        deck = rng.permutation(count)
        fresh = ~np.isin(deck, seats[start - start % k : start])
        spanning = np.zeros(count, dtype=bool)
        spanning[np.flatnonzero(fresh)[: -start % k]] = True
        deck = np.concatenate([deck[spanning], deck[~spanning]])
        seats[start : start + count] = deck[: len(seats) - start]
    return seats.reshape(clients, k)


def _one_class_each(y: Ints, counts: Ints, clients: int, rng: np.random.Generator) -> Ints:
    """Clients for every class in proportion to its size, at least one; they share the class equally."""
    if clients < len(counts):
        raise ValueError(f"one class per client needs at least as many clients as the {len(counts)} classes")
    ideal = counts / len(y) * clients
    seats = np.maximum(1, np.floor(ideal)).astype(np.int64)
    while (missing := clients - int(seats.sum())) != 0:
        step = 1 if missing > 0 else -1
        gap = np.where((step > 0) | (seats > 1), step * (ideal - seats), -np.inf)
        seats[np.argmax(gap)] += step
    who = np.split(rng.permutation(clients), np.cumsum(seats)[:-1])
    owner = np.empty(len(y), dtype=np.int64)
    for rows, holders in zip(_classes(y, rng), who, strict=True):
        owner[rows] = _dealt(np.arange(len(rows)), holders)
    return owner


def _levelled(owner: Ints, clients: int, least: int, rng: np.random.Generator) -> Ints:
    """The richest clients give samples at random to those with fewer than `least`."""
    sizes = np.bincount(owner, minlength=clients)
    need = np.maximum(least - sizes, 0)
    if not need.any():
        return owner
    low, high = least, int(sizes.max())  # whoever has more than the level gives the rest away
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if np.maximum(sizes - level, 0).sum() >= need.sum() else (low, level - 1)
    give = np.maximum(sizes - low, 0)
    givers = np.flatnonzero(give)
    give[givers[: int(give.sum() - need.sum())]] -= 1
    order = rng.permutation(len(owner))
    order = order[np.argsort(owner[order], kind="stable")]
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    given = order[place < give[owner[order]]]
    after = owner.copy()
    after[rng.permutation(given)] = np.repeat(np.arange(clients), need)
    return after


# Arguments


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"partition '{name}' needs a number, as in '{name}:1', got '{name}:{text}'") from None


def _whole(name: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"partition '{name}' needs a whole number from 1, as in '{name}:2', got '{name}:{text}'")
    return int(text)


def _no_argument(name: str, argument: str) -> None:
    if argument:
        raise ValueError(f"partition '{name}' takes no number, got '{name}:{argument}'")
