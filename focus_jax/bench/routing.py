"""Random routing for benchmarks. Letters as in ops/attention.py."""

import numpy as np


def balanced_groups(B: int, T: int, num_groups: int, top_k: int, seed: int = 0) -> np.ndarray:
    """groups_BTM: first entries in equal shares and random order, then other groups at random, all different."""
    rng = np.random.default_rng(seed)
    first_BT = rng.permuted(np.broadcast_to(np.arange(T) % num_groups, (B, T)), axis=1)
    return with_further_groups(first_BT, num_groups, top_k, rng)


def with_further_groups(first_BT: np.ndarray, num_groups: int, top_k: int, rng: np.random.Generator) -> np.ndarray:
    """groups_BTM: the given group, then the next ones round a circle from a random start, skipping the given one."""
    start_BT = rng.integers(0, num_groups - 1, first_BT.shape) if num_groups > 1 else np.zeros_like(first_BT)
    steps_M = np.arange(top_k - 1)
    further_BTM = (start_BT[..., None] + steps_M) % max(num_groups - 1, 1) + 1
    return np.concatenate([first_BT[..., None], (first_BT[..., None] + further_BTM) % num_groups], axis=2).astype(
        np.int32
    )
