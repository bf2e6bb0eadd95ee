"""Drift as gradients show it: those of training, or further ones at the server's model x."""

from __future__ import annotations

import torch
from torch import Tensor

from undrift.client.task import Observation
from undrift.core import layerwise, tree
from undrift.diagnostics.diagnostic import Diagnostic, Gradient, Seen, cosine


def _norm(seen: Seen) -> Tensor:
    means, variances, maxima = seen.reports[Observation.GRADIENT_NORMS].unbind(1)  # each [n, 1 + L], over steps
    mean = seen.mean(means)
    variance = seen.mean(variances) + seen.mean((means - mean).square())  # within clients and between them
    return torch.stack([mean, variance, maxima.amax(0)])


def _dissimilarity(seen: Seen) -> Tensor:
    full = seen.gradients[Gradient.FULL]
    squares = seen.mean(layerwise.row_squares(full, seen.layers))
    delta, norm = seen.spread(full, seen.mean_gradient).sqrt(), seen.mean_gradient_norm
    return torch.stack([delta, squares.sqrt() / norm, norm])


def _noise(seen: Seen) -> Tensor:
    difference = tree.sub(seen.gradients[Gradient.BATCH], seen.gradients[Gradient.FULL])
    return seen.mean(layerwise.row_squares(difference, seen.layers)).sqrt()[None]


def _bound(seen: Seen) -> Tensor:
    norms = layerwise.row_norms(seen.gradients[Gradient.BATCH], seen.layers)
    return torch.stack([norms.amax(0), seen.mean(norms.square()).sqrt()])


def _penalty(seen: Seen) -> Tensor:
    return layerwise.row_norms(seen.gradients[Gradient.PENALTY], seen.layers).amax(0)[None]


def _alignment(seen: Seen) -> Tensor:
    first, layers = seen.reports[Observation.FIRST_STEP], seen.layers
    gradient, correction = first["gradient"], first["correction"]
    direction = tree.add(gradient, correction)
    needed = {k: seen.mean_gradient[k] - v for k, v in seen.gradients[Gradient.FULL].items()}  # ∇f − ∇f_i

    def with_mean(rows: tree.Tree) -> Tensor:
        products = layerwise.row_products(rows, seen.mean_gradient, layers)
        return seen.mean_cosine(cosine(products, layerwise.row_norms(rows, layers), seen.mean_gradient_norm))

    norms = (layerwise.row_norms(rows, layers) for rows in (correction, needed))
    ideal = seen.mean_cosine(cosine(layerwise.pair_products(correction, needed, layers), *norms))
    return torch.stack([with_mean(direction), with_mean(gradient), with_mean(correction), ideal])


DIAGNOSTICS = (
    Diagnostic(
        "gradient_norm",
        "norm of the gradients that training computes, over clients and local steps",
        ("mean", "variance", "max"),
        _norm,
        reports=frozenset({Observation.GRADIENT_NORMS}),
    ),
    Diagnostic(
        "gradient_dissimilarity",
        "δ (also ζ) and B: how far the clients' full gradients are from their mean; with its norm ‖∇f(x)‖",
        ("delta", "B", "norm"),
        _dissimilarity,
        gradients=frozenset({Gradient.FULL}),
    ),
    Diagnostic(
        "gradient_noise",
        "σ: how far the gradient of a batch is from that of all of a client's samples",
        ("sigma",),
        _noise,
        gradients=frozenset({Gradient.FULL, Gradient.BATCH}),
    ),
    Diagnostic(
        "gradient_bound",
        "G, the largest norm of a client's batch gradient, and ζ̂, their root mean square",
        ("G", "zeta"),
        _bound,
        gradients=frozenset({Gradient.BATCH}),
    ),
    Diagnostic(
        "penalty_bound",
        "G_ρ, the largest norm of FedPGVC's penalty ρ_i = mean ℓ ∇ℓ",
        ("G_rho",),
        _penalty,
        gradients=frozenset({Gradient.PENALTY}),
    ),
    Diagnostic(
        "correction_alignment",
        "cosine with ∇f(x) of the first step's direction, of its gradient, and of the correction between them; "
        "and of the correction with what it should be, ∇f − ∇f_i",
        ("direction", "gradient", "correction", "ideal"),
        _alignment,
        reports=frozenset({Observation.FIRST_STEP}),
        gradients=frozenset({Gradient.FULL}),
        one_model=True,
    ),
)
