"""The hard pattern: which groups a query reads and which groups a key belongs to."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

MembershipKind = Literal["query", "shared"]


class Membership(NamedTuple):
    """A distant pair is kept if the two sets of groups meet; int32, as `focus_jax.ops.routed_attention` takes them."""

    query_groups_BTM: jax.Array
    key_groups_BSN: jax.Array


def memberships(log_affinity_BTK: jax.Array, *, top_k: int, kind: MembershipKind) -> Membership:
    """`query`: a key belongs to its best group, a query reads its best top_k. `shared`: both have their best top_k.

    Of equal affinities the group with the lower number comes first. top_k = 0 joins no distant pair.
    """
    if top_k == 0:
        nothing_BT0 = jnp.zeros((*log_affinity_BTK.shape[:2], 0), jnp.int32)
        nowhere_BT1 = jnp.full((*log_affinity_BTK.shape[:2], 1), -1, jnp.int32)
        return Membership(nothing_BT0, nothing_BT0 if kind == "shared" else nowhere_BT1)
    _, groups_BTM = jax.lax.top_k(log_affinity_BTK, top_k)
    return Membership(groups_BTM, groups_BTM if kind == "shared" else groups_BTM[..., :1])


def gates(log_affinity_BTK: jax.Array, membership: Membership) -> tuple[jax.Array, jax.Array]:
    """(query_gate_BTM, key_gate_BS) for membership `query`: log-affinities for the groups that join a pair."""
    query_gate_BTM = jnp.take_along_axis(log_affinity_BTK, membership.query_groups_BTM, axis=-1)
    # Not the maximum: its gradient looks for the entry that equals it, and a compiler that computes the affinities
    # twice, rounded in two ways, finds none (0/0).
    key_gate_BS1 = jnp.take_along_axis(log_affinity_BTK, membership.key_groups_BSN, axis=-1)
    return query_gate_BTM, key_gate_BS1[..., 0]
