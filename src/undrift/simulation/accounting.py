"""How private a model is after so many rounds: (ε, δ) by Rényi differential privacy, from the package dp-accounting.

Neighbouring federations differ in one client, whose data are replaced by any others (`REPLACE_ONE`). Cohorts of a
fixed size are drawn without replacement and accounted as such: a client's chance to be absent counts, though less than
if each took part by a coin of its own (Poisson sampling), which would claim too small an ε here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from undrift.core.extras import needs
from undrift.methods.private import Privacy
from undrift.simulation import cohort
from undrift.simulation.setup import Setup

if TYPE_CHECKING:
    from dp_accounting.rdp import RdpAccountant


def epsilon(privacy: Privacy, clients: int | None, population: int, rounds: int) -> float:
    """ε after so many rounds of cohorts of `clients`; None: of cohorts that were given, which hides nobody."""
    of_a_round = _round(privacy.noise, clients or population, population)
    with needs("privacy"):
        from dp_accounting.rdp import compute_epsilon

    return float(compute_epsilon(of_a_round.orders, rounds * of_a_round.rdp, privacy.delta)[0])  # RDP adds up


@lru_cache(maxsize=64)
def _round(noise: float, clients: int, population: int) -> RdpAccountant:
    """The Rényi divergences of one round, which take seconds."""
    with needs("privacy"):
        import dp_accounting
        from dp_accounting.rdp import RdpAccountant

    event = dp_accounting.GaussianDpEvent(noise)
    if clients < population:
        event = dp_accounting.SampledWithoutReplacementDpEvent(population, clients, event)
    return RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE).compose(event)


def spent(setup: Setup, rounds: int) -> dict[str, float]:
    """The columns of the history that say how private the model is; none where privacy is not asked for."""
    privacy = setup.objects.privacy
    if not isinstance(privacy, Privacy):
        return {}
    population = len(setup.data)
    return {
        "epsilon": epsilon(privacy, cohort.size(setup.options, population), population, rounds),
        "delta": privacy.delta,
    }
