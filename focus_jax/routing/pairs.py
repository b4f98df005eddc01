"""How many query–key pairs a hard pattern computes, counted from the assignments themselves."""

import jax
import jax.numpy as jnp

from focus_jax.accounting.pairs import local_pairs
from focus_jax.routing.membership import Membership

_BLOCK = 256


def kept_pairs(membership: Membership, *, num_groups: int, window: int) -> jax.Array:
    """Pairs kept per sequence, float32 (B,): all within the window, distant ones whose groups meet, each once.

    Exact for every membership and linear in memory; in time too where a key belongs to one group.
    """
    if membership.key_groups_BSN.shape[-1] == 1:
        return _kept_by_counting(membership, num_groups, window)
    return _kept_by_comparing(membership, num_groups, window)


def _kept_by_counting(membership: Membership, num_groups: int, window: int) -> jax.Array:
    """For every query the keys of its groups that are further away than the window."""
    query_sets_BTK = _as_sets(membership.query_groups_BTM, num_groups)
    key_sets_BSK = _as_sets(membership.key_groups_BSN, num_groups)
    tokens = key_sets_BSK.shape[1]
    so_far_BSK = jnp.cumsum(key_sets_BSK, axis=1)
    distant_BTK = jnp.pad(so_far_BSK, ((0, 0), (min(window + 1, tokens), 0), (0, 0)))[:, :tokens]
    return float(local_pairs(tokens, window)) + jnp.sum(query_sets_BTK * distant_BTK, axis=(1, 2))


def _kept_by_comparing(membership: Membership, num_groups: int, window: int) -> jax.Array:
    """Blocks of queries against all keys."""
    query_sets_BTK = _as_sets(membership.query_groups_BTM, num_groups)
    key_sets_BSK = _as_sets(membership.key_groups_BSN, num_groups)
    tokens = query_sets_BTK.shape[1]
    blocks = -(-tokens // _BLOCK)
    padded_BTK = jnp.pad(query_sets_BTK, ((0, 0), (0, blocks * _BLOCK - tokens), (0, 0)))
    keys_S = jnp.arange(tokens)

    def count(block: jax.Array) -> jax.Array:
        rows_T = block * _BLOCK + jnp.arange(_BLOCK)
        sets_BTK = jax.lax.dynamic_slice_in_dim(padded_BTK, block * _BLOCK, _BLOCK, axis=1)
        meet_BTS = jnp.einsum("btk,bsk->bts", sets_BTK, key_sets_BSK) > 0
        distance_TS = rows_T[:, None] - keys_S
        near_TS = (distance_TS >= 0) & (distance_TS <= window)
        kept_BTS = (near_TS | (meet_BTS & (distance_TS > window))) & (rows_T < tokens)[:, None]
        return jnp.sum(kept_BTS, axis=(1, 2), dtype=jnp.float32)

    return jnp.sum(jax.lax.map(count, jnp.arange(blocks)), axis=0)


def _as_sets(groups_BTM: jax.Array, num_groups: int) -> jax.Array:
    """1 where the token has the group, as float32 (B, T, K); group −1 belongs to nothing."""
    return jnp.sum(jax.nn.one_hot(groups_BTM, num_groups), axis=-2)
