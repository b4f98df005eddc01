"""Sorts queries and keys by group into whole blocks, so that distant attention touches only blocks that it keeps.

B batch · T query positions · S key positions · K groups · M groups that a query reads · N groups a key belongs to ·
E entries of one side: a query is M entries, e = t·M + m, a key N entries, e = s·N + n · P slots of one side, a whole
number of blocks · Q query blocks · U key blocks · W words of 32 groups.
"""

import dataclasses
import functools
import operator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

UNSEEN = 2**30
"""Position of an empty key slot: after every query."""
UNSEEING = -1
"""Position of an empty query slot: before every key."""
WORD = 32


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Side:
    """Entries of the queries or of the keys in slots: stable order by group, every group padded to whole blocks.

    A slot is filled or empty. Filled slots of a group are contiguous, ascending in position, from the start of its
    first block; so a block has one group, and only a group's last block has empty slots. Blocks past the last group
    are empty. Entries that name no group (−1, or anything outside 0…K−1), repeat one of their token's earlier entries,
    or, on the side of the keys, are read by no query, have no slot.
    """

    entry_BP: jax.Array
    """Entry in each slot, E where empty. Its token is entry // copies."""
    position_BP: jax.Array
    """Position of the token in each slot; UNSEEING (queries) or UNSEEN (keys) where empty."""
    slot_BE: jax.Array
    """Slot of each entry, P where it has none."""
    copies: int = dataclasses.field(metadata={"static": True})
    """Entries of one token: M or N."""
    block: int = dataclasses.field(metadata={"static": True})
    """Slots of one block."""

    @property
    def slot_BTM(self) -> jax.Array:
        B, E = self.slot_BE.shape
        return self.slot_BE.reshape(B, E // self.copies, self.copies)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layout:
    """Which blocks of queries meet which blocks of keys in the distant pass. Shapes depend on shapes alone.

    A filled query slot and a filled key slot are a pair of the pass exactly when they lie in blocks that meet,

        position of the query − position of the key > window,

    and, if `query_below_BWP` is there, query_below & key_groups == 0 in every word. The test fails by itself for empty
    key slots and for empty query slots. Block numbers count from the first slot of the batch row.
    """

    query: Side
    key: Side

    key_begin_BQ: jax.Array
    """First key block that a query block meets."""
    key_full_BQ: jax.Array
    """Key blocks [begin, full) are all filled and before the window of every query of the block: the position test
    holds for all pairs with a filled query slot. In [full, end) it has to be made."""
    key_end_BQ: jax.Array
    """Past the last key block that a query block meets; begin = full = end where it meets none."""

    query_begin_BU: jax.Array
    """First query block that a key block meets."""
    query_full_BU: jax.Array
    """Query blocks [full, end) need no position test; those of [begin, full) do. A key block with empty slots has
    full = end."""
    query_end_BU: jax.Array
    """Past the last query block that a key block meets; begin = full = end where it meets none."""

    query_below_BWP: jax.Array | None
    """uint32 bits of the query's groups below the one of its slot: a pair that shares several groups belongs to their
    lowest. None where pairs share one group at most (M = 1 or N = 1)."""
    key_groups_BWP: jax.Array | None
    """uint32 bits of all groups of the key; None with query_below_BWP."""


def block_count(entries: int, num_groups: int, block: int) -> int:
    """The most blocks that any grouping of so many entries fills."""
    return (entries + min(entries, num_groups) * (block - 1)) // block


def build_layout(
    query_groups_BTM: jax.Array,
    key_groups_BSN: jax.Array,
    *,
    num_groups: int,
    window: int,
    query_offset: int,
    query_block: int,
    key_block: int,
) -> Layout:
    """Sorts both sides and bounds the key blocks of every query block and the query blocks of every key block.

    Args:
      query_groups_BTM, key_groups_BSN: int32 as in `routed_attention`, with M and N at least 1.
      num_groups, window, query_offset: as there.
      query_block, key_block: slots of a block, any size from 1.

    The work is two sorts, and gathers linear in T·M + S·N; nothing has the size of query blocks × key blocks.
    """
    build = partial(
        _layout_of_row,
        num_groups=num_groups,
        window=window,
        query_offset=query_offset,
        query_block=query_block,
        key_block=key_block,
    )
    return jax.vmap(build)(query_groups_BTM, key_groups_BSN)


def rows_to_slots(rows_BT_: jax.Array, side: Side) -> jax.Array:
    """The row of its token in every slot, zeros where empty: (B, T, …) to (B, P, …)."""
    return _gather_rows(rows_BT_, side.entry_BP // side.copies)


def entries_to_slots(values_BTM: jax.Array, side: Side) -> jax.Array:
    """The value of its entry in every slot, zero where empty: (B, T, M) to (B, P)."""
    return _gather_rows(values_BTM.reshape(values_BTM.shape[0], -1), side.entry_BP)


def slots_to_entries(rows_BP_: jax.Array, side: Side, fill_value: float = 0) -> jax.Array:
    """The row of its slot for every entry, the fill value where it has none: (B, P, …) to (B, T, M, …)."""
    return _gather_rows(rows_BP_, side.slot_BTM, fill_value)


def slots_to_tokens(rows_BP_: jax.Array, side: Side, weight_BTM_: jax.Array | None = None) -> jax.Array:
    """Σ over the entries of a token of the rows of their slots, each by its weight: (B, P, …) to (B, T, …), in float32.

    One entry after the other, so that no array has all of them.
    """
    parts = []
    for m in range(side.copies):
        rows_BT_ = _gather_rows(rows_BP_, side.slot_BTM[:, :, m]).astype(jnp.float32)
        parts.append(rows_BT_ if weight_BTM_ is None else weight_BTM_[:, :, m] * rows_BT_)
    return functools.reduce(operator.add, parts)


def _gather_rows(rows_BX_: jax.Array, index_BY_: jax.Array, fill_value: float = 0) -> jax.Array:
    """The fill value where the index is past the end."""
    return jax.vmap(partial(jnp.take, axis=0, mode="fill", fill_value=fill_value))(rows_BX_, index_BY_)


def _layout_of_row(
    query_groups_TM: jax.Array,
    key_groups_SN: jax.Array,
    *,
    num_groups: int,
    window: int,
    query_offset: int,
    query_block: int,
    key_block: int,
) -> Layout:
    queries = _Sorted.of(query_groups_TM, num_groups)
    keys = _Sorted.of(key_groups_SN, num_groups)
    groups_K = jnp.arange(num_groups)
    last_query_K = query_offset + queries.last_token()
    keys = dataclasses.replace(keys, count_K=keys.count_before(groups_K, last_query_K - window))

    query_start_K, group_Q, query = _fill(queries, query_block, query_offset, UNSEEING)
    key_start_K, group_U, key = _fill(keys, key_block, 0, UNSEEN)

    position_QX = query.position_BP.reshape(-1, query_block)
    seen_by_any_Q = keys.count_before(group_Q, position_QX.max(axis=1) - window)
    seen_by_all_Q = keys.count_before(group_Q, position_QX[:, 0] - window)
    first_Q = key_start_K.at[group_Q].get(mode="fill", fill_value=0)

    position_UX = key.position_BP.reshape(-1, key_block)
    seeing_none_U = queries.count_before(group_U, position_UX[:, 0] + window + 1 - query_offset)
    not_seeing_all_U = queries.count_before(group_U, position_UX[:, -1] + window + 1 - query_offset)
    first_U = query_start_K.at[group_U].get(mode="fill", fill_value=0)
    blocks_U = _blocks(queries.count_K, query_block).at[group_U].get(mode="fill", fill_value=0)

    query_below_WP, key_groups_WP = None, None
    if query.copies > 1 and key.copies > 1:
        below_WK = _below(groups_K, num_groups)
        group_P = jnp.minimum(jnp.repeat(group_Q, query_block), num_groups - 1)
        query_below_WP = _slot_bits(query_groups_TM, query, num_groups) & below_WK[:, group_P]
        key_groups_WP = _slot_bits(key_groups_SN, key, num_groups)
    return Layout(
        query=query,
        key=key,
        key_begin_BQ=first_Q,
        key_full_BQ=first_Q + seen_by_all_Q // key_block,
        key_end_BQ=first_Q + _blocks(seen_by_any_Q, key_block),
        query_begin_BU=first_U + seeing_none_U // query_block,
        query_full_BU=first_U + jnp.minimum(_blocks(not_seeing_all_U, query_block), blocks_U),
        query_end_BU=first_U + blocks_U,
        query_below_BWP=query_below_WP,
        key_groups_BWP=key_groups_WP,
    )


@dataclass(frozen=True)
class _Sorted:
    """Entries of one side in stable order by group."""

    key_E: jax.Array
    """group · E + entry, ascending; group K holds the entries without a group."""
    start_K: jax.Array
    """First entry of each group in that order."""
    count_K: jax.Array
    """Entries of each group that take part."""
    copies: int

    @classmethod
    def of(cls, groups_TM: jax.Array, num_groups: int) -> "_Sorted":
        E = groups_TM.size
        groups_E = jnp.where(_names_group(groups_TM, num_groups), groups_TM, num_groups).reshape(-1)
        key_E = jnp.sort(groups_E * E + jnp.arange(E))
        bound_K1 = searchsorted(key_E, jnp.arange(num_groups + 1) * E)
        return cls(key_E, bound_K1[:-1], bound_K1[1:] - bound_K1[:-1], groups_TM.shape[1])

    def last_token(self) -> jax.Array:
        """The last token of each group, far before all tokens where the group has none."""
        K, E = self.start_K.size, self.key_E.size
        last_K = self.key_E.at[self.start_K + self.count_K - 1].get(mode="clip") - jnp.arange(K) * E
        return jnp.where(self.count_K > 0, last_K // self.copies, -UNSEEN)

    def count_before(self, group_X: jax.Array, token_X: jax.Array) -> jax.Array:
        """How many entries of a group that take part belong to tokens before the given one; 0 for group K."""
        E = self.key_E.size
        entry_X = jnp.clip(token_X, 0, E // self.copies) * self.copies
        below_X = searchsorted(self.key_E, group_X * E + entry_X)
        below_X -= self.start_K.at[group_X].get(mode="fill", fill_value=0)
        return jnp.minimum(below_X, self.count_K.at[group_X].get(mode="fill", fill_value=0))


def _fill(entries: _Sorted, block: int, offset: int, empty_position: int) -> tuple[jax.Array, jax.Array, Side]:
    """First block of every group, group of every block (K where empty), and the slots."""
    K, E = entries.start_K.size, entries.key_E.size
    blocks_K = _blocks(entries.count_K, block)
    end_K = jnp.cumsum(blocks_K)
    start_K = end_K - blocks_K
    number_Q = jnp.arange(block_count(E, K, block))
    group_Q = searchsorted(end_K, number_Q, side="right")

    rank_QX = ((number_Q - start_K.at[group_Q].get(mode="clip")) * block)[:, None] + jnp.arange(block)
    filled_QX = rank_QX < entries.count_K.at[group_Q].get(mode="fill", fill_value=0)[:, None]
    first_Q = entries.start_K.at[group_Q].get(mode="clip")
    key_QX = entries.key_E.at[first_Q[:, None] + rank_QX].get(mode="clip")
    entry_P = jnp.where(filled_QX, key_QX - group_Q[:, None] * E, E).reshape(-1)
    position_P = jnp.where(entry_P < E, offset + entry_P // entries.copies, empty_position)
    P = entry_P.size
    slot_E = jnp.full(E, P, jnp.int32).at[entry_P].set(jnp.arange(P, dtype=jnp.int32), mode="drop", unique_indices=True)
    return start_K, group_Q, Side(entry_P, position_P, slot_E, entries.copies, block)


def searchsorted(sorted_E: jax.Array, values_X: jax.Array, side: str = "left") -> jax.Array:
    """As jnp.searchsorted; int32.

    On a GPU as one kernel, where a loop would start every step anew, which takes longer than the attention; on a CPU as
    a loop, where the compiler takes time exponential in the unrolled steps (33 s for a layout of 4,096 tokens).
    """
    loop, unrolled = (partial(jnp.searchsorted, side=side, method=method) for method in ("scan", "scan_unrolled"))
    return lax.platform_dependent(sorted_E, values_X, cuda=unrolled, rocm=unrolled, default=loop).astype(jnp.int32)


def _blocks(count_X: jax.Array, block: int) -> jax.Array:
    return (count_X + block - 1) // block


def _names_group(groups_TM: jax.Array, num_groups: int) -> jax.Array:
    """Whether an entry names a group that none of its token's earlier entries names."""
    M = groups_TM.shape[1]
    earlier_MM = jnp.tri(M, k=-1, dtype=bool)
    repeats_TM = ((groups_TM[:, :, None] == groups_TM[:, None, :]) & earlier_MM).any(axis=2)
    return (groups_TM >= 0) & (groups_TM < num_groups) & ~repeats_TM


def _slot_bits(groups_TM: jax.Array, side: Side, num_groups: int) -> jax.Array:
    """All groups of the token in each slot as bits; 0 where empty."""
    bits_WTM = jnp.where(_names_group(groups_TM, num_groups), _bit(groups_TM, num_groups), 0)
    bits_WT = bits_WTM.sum(axis=-1, dtype=jnp.uint32)
    return bits_WT.at[:, side.entry_BP // side.copies].get(mode="fill", fill_value=0)


def _bit(groups_X: jax.Array, num_groups: int) -> jax.Array:
    """The bit of each group, by word."""
    return jnp.stack(
        [
            jnp.where(groups_X // WORD == w, jnp.uint32(1) << (groups_X % WORD).astype(jnp.uint32), 0)
            for w in _words(num_groups)
        ]
    )


def _below(groups_X: jax.Array, num_groups: int) -> jax.Array:
    """The bits of all groups below each group, by word."""
    inside_WX = _bit(groups_X, num_groups) - jnp.uint32(1)
    word_W1 = jnp.arange(len(_words(num_groups)))[:, None]
    return jnp.where(word_W1 == groups_X // WORD, inside_WX, jnp.where(word_W1 < groups_X // WORD, ~jnp.uint32(0), 0))


def _words(num_groups: int) -> range:
    return range(-(-num_groups // WORD))
