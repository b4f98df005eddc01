"""Query–key pairs of causal attention, and the FLOPs of one. Needs numpy only; letters as in ops/attention.py."""

import math

import numpy as np

FORWARD = 4
"""FLOPs of a pair in each channel of each head: two matrix products."""
FORWARD_AND_BACKWARD = 12
"""Without the logits that the backward pass computes again: what the model asks for."""
EXECUTED = 14
"""With them: what a kernel does that never holds T×S."""


def dense_pairs(T: int) -> int:
    """Of one sequence."""
    return T * (T + 1) // 2


def local_pairs(T: int, window: int) -> int:
    """Pairs at a distance of at most `window`, of one sequence."""
    return dense_pairs(T) - dense_pairs(max(0, T - 1 - window))


def kept_pairs(query_groups_TM: np.ndarray, key_groups_T: np.ndarray, window: int) -> int:
    """Of one sequence with one group per key: local pairs, and distant ones in the groups that a query reads."""
    T = len(key_groups_T)
    kept = local_pairs(T, window)
    for group in np.unique(key_groups_T):
        [keys] = np.nonzero(key_groups_T == group)
        [queries] = np.nonzero((query_groups_TM == group).any(axis=1))
        kept += int(np.searchsorted(keys, queries - window).sum())
    return kept


def joined_share(groups: int, top_k: int, membership: str) -> float:
    """Share of the distant pairs that a hard pattern keeps where groups are equally large and independent of position:
    M/K for `query`; for `shared` the chance that two random sets of M meet."""
    if membership == "query":
        return top_k / groups
    return 1 - math.comb(groups - top_k, top_k) / math.comb(groups, top_k)


def kept_fraction(T: int, window: int, joined: float) -> float:
    """Kept pairs as a share of all where `joined` of the distant ones are kept."""
    local = local_pairs(T, window)
    return (local + joined * (dense_pairs(T) - local)) / dense_pairs(T)
