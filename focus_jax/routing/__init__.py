"""Who may look at whom: scores, balance, membership, probes, counts. Pure functions on arrays.

Letters: B batch, T query positions, S key positions, D model width, R routing width, K groups, M groups a query reads,
N groups a key belongs to, P probe rows.
"""

from focus_jax.routing.balance import log_affinities, next_centre, next_potential
from focus_jax.routing.membership import Membership, gates, memberships
from focus_jax.routing.pairs import kept_pairs
from focus_jax.routing.probes import probe_positions, router_nats
from focus_jax.routing.scores import cosine_scores, dot_scores, projected
from focus_jax.routing.statistics import GroupStatistics, group_statistics

__all__ = [
    "GroupStatistics",
    "Membership",
    "cosine_scores",
    "dot_scores",
    "gates",
    "group_statistics",
    "kept_pairs",
    "log_affinities",
    "memberships",
    "next_centre",
    "next_potential",
    "probe_positions",
    "projected",
    "router_nats",
]
