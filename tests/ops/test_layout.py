"""The layout against its contract: every kept pair in exactly one pair of slots of blocks that meet."""

import jax
import numpy as np
import pytest

from focus_jax.ops.layout import Layout, block_count, build_layout, entries_to_slots, rows_to_slots, slots_to_entries

BATCH = 2
SIZES = ("num_groups", "window", "query_offset", "query_block", "key_block")
compiled_layout = jax.jit(build_layout, static_argnames=SIZES)


def kept_pairs(query_groups_TM: np.ndarray, key_groups_SN: np.ndarray, K: int, window: int, offset: int) -> np.ndarray:
    query_sets = [{group for group in row if 0 <= group < K} for row in query_groups_TM.tolist()]
    key_sets = [{group for group in row if 0 <= group < K} for row in key_groups_SN.tolist()]
    return np.array(
        [
            [offset + t - s > window and bool(query_set & key_set) for s, key_set in enumerate(key_sets)]
            for t, query_set in enumerate(query_sets)
        ]
    )


def count_pairs(layout: Layout, row: int, T: int, S: int, window: int) -> np.ndarray:
    """How often each pair occurs, following the contract to the letter; what needs no test is checked to pass it."""
    query, key = layout.query, layout.key
    query_position_P, key_position_P = query.position_BP[row], key.position_BP[row]
    passes_PP = query_position_P[:, None] - key_position_P[None, :] > window
    filled_P = query.entry_BP[row] < query.slot_BE.shape[1]
    counted_PP = np.zeros_like(passes_PP)
    by_key_PP = np.zeros_like(passes_PP)
    for block in range(len(query_position_P) // query.block):
        begin, full, end = (bound[row, block] for bound in (layout.key_begin_BQ, layout.key_full_BQ, layout.key_end_BQ))
        assert begin <= full <= end
        rows = slice(block * query.block, (block + 1) * query.block)
        counted_PP[rows, begin * key.block : end * key.block] = True
        assert passes_PP[rows, begin * key.block : full * key.block][filled_P[rows]].all()
    for block in range(len(key_position_P) // key.block):
        bounds = layout.query_begin_BU, layout.query_full_BU, layout.query_end_BU
        begin, full, end = (bound[row, block] for bound in bounds)
        assert begin <= full <= end
        columns = slice(block * key.block, (block + 1) * key.block)
        by_key_PP[begin * query.block : end * query.block, columns] = True
        after = slice(full * query.block, end * query.block)
        assert passes_PP[after, columns][filled_P[after]].all()
    np.testing.assert_array_equal(by_key_PP & passes_PP, counted_PP & passes_PP)
    counted_PP &= passes_PP
    if layout.query_below_BWP is not None:
        shared_WPP = layout.query_below_BWP[row][:, :, None] & layout.key_groups_BWP[row][:, None, :]
        counted_PP &= (shared_WPP == 0).all(axis=0)
    times_TS = np.zeros((T, S), int)
    slots = np.nonzero(counted_PP)
    np.add.at(times_TS, (query.entry_BP[row][slots[0]] // query.copies, key.entry_BP[row][slots[1]] // key.copies), 1)
    return times_TS


@pytest.mark.parametrize("seed", range(10))
def test_holds_every_kept_pair_once(seed: int):
    rng = np.random.default_rng(seed)
    T, S, K = int(rng.integers(1, 60)), int(rng.integers(1, 90)), int(rng.choice([1, 2, 5, 40, 64]))
    M, N = (int(entries) for entries in rng.integers(1, min(K, 5) + 1, 2))
    window, offset = int(rng.integers(0, 25)), int(rng.integers(0, 40))
    blocks = [int(block) for block in rng.choice([1, 4, 8, 16], 2)]
    used = rng.integers(1, K + 1)
    query_groups_BTM = rng.integers(-1, used, (BATCH, T, M), dtype=np.int32)
    key_groups_BSN = rng.integers(-1, used, (BATCH, S, N), dtype=np.int32)
    options = {"num_groups": K, "window": window, "query_offset": offset}
    layout = compiled_layout(query_groups_BTM, key_groups_BSN, query_block=blocks[0], key_block=blocks[1], **options)
    layout = jax.tree.map(np.asarray, layout)
    assert layout.query.position_BP.shape[1] == blocks[0] * block_count(T * M, K, blocks[0])
    for row in range(BATCH):
        expected_TS = kept_pairs(query_groups_BTM[row], key_groups_BSN[row], K, window, offset)
        np.testing.assert_array_equal(count_pairs(layout, row, T, S, window), expected_TS)


def test_moves_rows_to_slots_and_back():
    rng = np.random.default_rng(0)
    groups_BTM = np.array([[[0, 1], [1, -1], [2, 2], [0, 2], [-1, -1]]], np.int32)
    keys_BSN = np.zeros((1, 5, 1), np.int32) + np.arange(3, dtype=np.int32)[None, [0, 1, 2, 0, 1], None]
    layout = compiled_layout(groups_BTM, keys_BSN, num_groups=3, window=0, query_offset=5, query_block=4, key_block=4)
    rows_BTC = rng.normal(size=(1, 5, 3)).astype(np.float32)
    values_BTM = rng.normal(size=(1, 5, 2)).astype(np.float32)
    has_slot_TM = np.array([[1, 1], [1, 0], [1, 0], [1, 1], [0, 0]])
    back_BTMC = slots_to_entries(rows_to_slots(rows_BTC, layout.query), layout.query)
    np.testing.assert_array_equal(back_BTMC[0], rows_BTC[0][:, None] * has_slot_TM[..., None])
    back_BTM = slots_to_entries(entries_to_slots(values_BTM, layout.query), layout.query)
    np.testing.assert_array_equal(back_BTM[0], values_BTM[0] * has_slot_TM)
