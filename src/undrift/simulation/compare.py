"""`compare`: several algorithms on the same data and the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from undrift.algorithms import Centralised
from undrift.algorithms.text import Written
from undrift.core import check
from undrift.core.log import notice
from undrift.data import FederatedData
from undrift.data.federated import Clients
from undrift.methods.algorithm import Algorithm
from undrift.reporting.targets import Targets, plain_targets
from undrift.simulation.callbacks import CallbackLike, as_callbacks
from undrift.simulation.comparison import Comparison, check_measures
from undrift.simulation.defaults import common_weighting
from undrift.simulation.given import Given, federations_of, labelled_algorithms, list_of_seeds, separated
from undrift.simulation.options import AUTO, Auto, plain
from undrift.simulation.prepare import find_algorithm
from undrift.simulation.progress import overall_bar
from undrift.simulation.together import Entry, named, train_all
from undrift.simulation.vary import variants
from undrift.storage import comparison as kept
from undrift.storage.comparison import folders_of


def compare(
    algorithms: Mapping[str, str | Algorithm | Written] | Sequence[str | Algorithm | Written],
    model: str | nn.Module | None = None,
    data: str | FederatedData | Clients | Callable[[int], FederatedData] | None = None,
    test: tuple[Any, Any] | Dataset[Any] | None = None,
    seeds: int | Sequence[int] = 1,
    *,
    lr: float | Sequence[float] | Auto = AUTO,
    vary: Mapping[str, Sequence[Any]] | None = None,
    targets: Targets = None,
    last_k: int | None = None,
    centralised: bool | str = False,
    callbacks: Iterable[CallbackLike] = (),
    out: str | Path | None = None,
    **options: Any,
) -> Comparison:
    """Run every algorithm with every seed (a count, or a list) and compare. Other arguments are those of `simulate`.

    `algorithms` maps labels to names or instances; a name may have settings of its own, which win over those of all,
    as in ``"fedadam(server_lr=0.01, lr=0.03)"``. All weight clients by their samples, unless `weighting` says
    otherwise; ``"paper"`` gives each what its paper uses. `data` may be a function of the seed; of several learning
    rates each makes a row of its own. Runs of one algorithm train together, as one larger cohort, where that is faster.
    With `out`, every run is kept in ``out/LABEL/seed-S``; runs that are there already are not repeated. A comparison
    that was interrupted and is repeated gives the same bits as one that was not; of a module the architecture is
    checked, and its initial weights come from `out`. A run that diverges is recorded, and the others are trained all
    the same.

    `vary` names a setting and the values that it takes in turn: an argument of `simulate`, ``{"cohort": [0.1, 0.5]}``,
    of `undrift.data.load` where data are given by name, ``{"partition": ["dirichlet:0.1", "iid"]}``, or an option of an
    algorithm, ``{"feddpc.lam": [0.1, 1]}``. Values that make different tasks have folders, ``out/VALUE/LABEL/seed-S``;
    `sensitivity` has the accuracy with each.

    The table counts the rounds and bytes to each of `targets`, which end no run (`target` does): accuracies such as
    0.6, or shares of the centralised accuracy such as ``"90%"``. By default that is the final accuracy of the first
    algorithm. `last_k` is how many rounds the mean at the end is over: 100, or all of a shorter run.

    With `centralised`, the pooled samples are trained on as well, as a reference: with the settings of the others and
    as many epochs as their clients take in all, momentum kept across epochs. ``"centralised(epochs=150, lr=0.1,
    momentum=0.9, lr_decay=cosine)"`` has settings of its own.
    """
    reference = _reference(centralised)
    check_measures(targets, last_k, centralised=reference is not None)
    labelled, chosen, watching = labelled_algorithms(algorithms), list_of_seeds(seeds), as_callbacks(callbacks)
    if reference is not None:
        if (name := Centralised.__name__) in labelled:
            raise ValueError(f"centralised adds a run {name!r}, which is the label of another")
        labelled |= {name: reference}
    rates = _rates(lr)
    if out is not None:
        out = check.path("out", out)
    objects, others = separated("compare", options)
    if others.get("weighting", AUTO) == AUTO:
        others["weighting"] = common_weighting(objects)
    federations: dict[int, dict[int, FederatedData]] = {}
    entries: list[Entry] = []
    orders: dict[Path, list[str]] = {}
    for variant in variants(vary or {}, labelled, data, others):
        if id(variant.data) not in federations:
            federations[id(variant.data)] = federations_of(variant.data, chosen)
        given = Given(model, federations[id(variant.data)], test, objects, variant.options)
        runs = [
            (name, given.resolved(label, written, rate, seed))
            for label, written in variant.algorithms.items()
            for rate, name in _named_rates(label, _rates_of(written, rates))
            for seed in chosen
        ]
        order = list(dict.fromkeys(name for name, _ in runs))
        home = None if out is None else out / variant.folder
        folders = None if home is None else {name: home / folder for name, folder in folders_of(order).items()}
        found = [
            Entry(name, run, None if folders is None else folders[name] / f"seed-{run.options.seed}")
            for name, run in runs
        ]
        if not entries:
            label, first = next(iter(variant.algorithms.items()))
            # What all have, unless their text says otherwise; of what every text says, nothing is said.
            own = {key: value for key, value in first.settings.items() if _in_all(key, variant.algorithms)}
            common = given.resolved(label, first._replace(settings=own), rates[0], chosen[0])
        entries += sorted(found, key=lambda entry: (order.index(entry.label), entry.run.options.seed))
        if home is not None:
            orders[home] = order
    tested = test is not None or all(each.test for of_seed in federations.values() for each in of_seed.values())
    if targets is not None and not tested:
        raise ValueError(f"targets={check.shown(targets)} need a test set; give test=(x, y)")
    notice(common.notice)
    with overall_bar(f"{len(entries)} runs", sum(entry.run.options.rounds for entry in entries)):
        records = train_all(entries, watching, lambda: _keep(orders, targets, last_k))
    return Comparison(records, common.options.target if targets is None else targets, last_k)


def _in_all(key: str, algorithms: Mapping[str, Written]) -> bool:
    return all(key in written.settings for written in algorithms.values())


def _keep(orders: Mapping[Path, Sequence[str]], targets: Targets, last_k: int | None) -> None:
    for home, order in orders.items():
        kept.write(home, order, plain_targets(targets), check.plain(last_k))


def _reference(centralised: Any) -> Written | None:
    """The run on the pooled data that was asked for: by True, or written with its settings."""
    if centralised is False or centralised is None:
        return None
    if centralised is not True and not isinstance(centralised, str):
        raise TypeError(
            "centralised must be True or written as 'centralised(epochs=150, momentum=0.9)', "
            f"got {check.shown(centralised)}"
        )
    with named("centralised"):
        found = find_algorithm(Centralised() if centralised is True else centralised)
    if not found.algorithm.pooled:
        raise ValueError(f"centralised is written 'centralised(epochs=150, ...)', got {check.shown(centralised)}")
    return found


def _rates(lr: Any) -> list[Any]:
    lr = plain(lr)
    if isinstance(lr, str) and lr == AUTO:
        return [AUTO]
    rates = lr if isinstance(lr, list) else [lr]
    for rate in rates:
        check.number("lr", rate, 0, open_low=True)
    if not rates or len(set(rates)) < len(rates):
        raise ValueError(f"lr must be a number or a list of different ones, got {check.shown(lr)}")
    return rates


def _rates_of(written: Written, rates: Sequence[Any]) -> Sequence[Any]:
    """One rate for an algorithm that has its own."""
    return [written.settings["lr"]] if "lr" in written.settings else rates


def _named_rates(label: str, rates: Sequence[Any]) -> list[tuple[Any, str]]:
    """Rates as they were given, with the names of runs that have them; where there are several, these tell them."""
    if len(rates) == 1:
        return [(rates[0], label)]
    short = [(rate, f"{rate:g}") for rate in rates]
    return [(rate, f"{label}, lr {text if float(text) == rate else rate}") for rate, text in short]
