"""What server and clients must agree on before round 1, in plain values that both compute and compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from undrift.core import check
from undrift.core.version import __version__
from undrift.flower.samples import Samples
from undrift.simulation.setup import Setup
from undrift.storage import fingerprint

Facts = dict[str, Any]


def facts(setup: Setup, samples: Samples) -> Facts:
    """Of one machine: version, algorithm with its options, initial model, kind of samples."""
    learner, given = setup.learner, setup.description
    found = {"undrift version": __version__, "algorithm": given["algorithm"], "model": given["model"]}
    found |= {"initial weights": fingerprint.of_tree(learner.parameters | learner.buffers)["fingerprint"][:16]}
    found |= {part: given[part] for part in ("loss", "augment", "plugins", "compress", "privacy")}
    found |= samples.kind
    return dict(json.loads(json.dumps(found)))


def difference(mine: Mapping[str, Any], theirs: Mapping[str, Any], me: str, them: str) -> str:
    """The first thing that two machines do not have in common, in words; empty if they fit."""
    for name in {**mine, **theirs}:
        if mine.get(name) != theirs.get(name):
            return f"{name}: {check.shown(mine.get(name))} {me}, {check.shown(theirs.get(name))} {them}"
    return ""


def digest(found: Facts) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]
