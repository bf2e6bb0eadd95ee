"""Drift as the clients' updates show it: no gradient is computed for them."""

from __future__ import annotations

import torch
from torch import Tensor

from undrift.client.task import Observation
from undrift.core import layerwise
from undrift.diagnostics.diagnostic import Diagnostic, Seen, cosine, lowest

_DISPLACEMENT = frozenset({Observation.DISPLACEMENT})


def _distance(seen: Seen) -> Tensor:
    return torch.stack([seen.mean_of_update_norms, seen.update_norms.amax(0)])


def _cosine(seen: Seen) -> Tensor:
    products = layerwise.row_products(seen.updates, seen.mean_update, seen.layers)
    return _over_clients(seen, cosine(products, seen.update_norms, seen.mean_update_norm))


def _previous_cosine(seen: Seen) -> Tensor:
    products = layerwise.row_products(seen.updates, seen.previous, seen.layers)
    return _over_clients(seen, cosine(products, seen.update_norms, seen.previous_norm))


def _over_clients(seen: Seen, cosines: Tensor) -> Tensor:
    return torch.stack([seen.mean_cosine(cosines), lowest(cosines)])


def _global_cosine(seen: Seen) -> Tensor:
    product = layerwise.products(seen.step, seen.previous, seen.layers)
    return cosine(product, layerwise.norms(seen.step, seen.layers), seen.previous_norm)[None]


def _variance(seen: Seen) -> Tensor:
    return seen.spread(seen.updates, seen.mean_update)[None]


def _ratio(seen: Seen) -> Tensor:
    return (seen.mean_update_norm / seen.mean_of_update_norms)[None]


DIAGNOSTICS = (
    Diagnostic(
        "client_distance",
        "‖y_i − x‖, the distance of the clients' models from the server's",
        ("mean", "max"),
        _distance,
        reports=_DISPLACEMENT,
    ),
    Diagnostic(
        "update_cosine",
        "cosine of the clients' updates with their mean; 1: all clients agree",
        ("mean", "min"),
        _cosine,
        reports=_DISPLACEMENT,
    ),
    Diagnostic(
        "update_variance",
        "Σ p_i ‖Δ_i − Δ̄‖², the variance of the clients' updates",
        ("value",),
        _variance,
        reports=_DISPLACEMENT,
    ),
    Diagnostic(
        "update_ratio",
        "‖Δ̄‖ / Σ p_i ‖Δ_i‖, what averaging leaves of the clients' updates; 1: all of them",
        ("value",),
        _ratio,
        reports=_DISPLACEMENT,
    ),
    Diagnostic(
        "previous_cosine",
        "cosine of the clients' updates with the server's last step",
        ("mean", "min"),
        _previous_cosine,
        reports=_DISPLACEMENT,
        previous=True,
        one_model=True,
    ),
    Diagnostic(
        "global_cosine",
        "cosine of the server's step with its last one; below 0: it turns back",
        ("value",),
        _global_cosine,
        previous=True,
        one_model=True,
    ),
)
