"""Attention within a narrow window: every block of queries against its own and the few previous blocks of keys at once.

T, S, H, J, C as in attention.py, one batch row · A steps of N blocks of X tokens · E previous blocks of keys that a
query block may see · Y = (E + 1)·X keys of those and of its own · P slots of keys, V of them in the L = N + E blocks
that a step sees · G = H/J · R = G·X rows of one key/value head in a query block. Logits are in units of log 2.
"""

import functools
import operator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from focus_jax.ops.blockwise.numerics import (
    FLOOR,
    LN_2,
    add_slices,
    exp2,
    fold_heads,
    matmul,
    pad_to,
    scaled,
    unfold_heads,
)
from focus_jax.ops.blockwise.pairs import STEP_LOGITS, blocks_of

WIDEST = 512
"""Wider windows are cut into ranges of blocks."""
NARROWEST_BLOCK = 64
"""Half a window where that is more: with blocks as long as the window half of the pairs of a step do not count, with
blocks of half its length a third."""


@dataclass(frozen=True)
class _Grid:
    """How queries and keys are cut."""

    queries: int
    keys: int
    query_offset: int
    farthest: int
    steps: int
    """A"""
    blocks: int
    """N"""
    block: int
    """X"""
    earlier: int
    """E"""

    @classmethod
    def of(cls, q_THC: jax.Array, k_SJC: jax.Array, farthest: int, query_offset: int) -> "_Grid":
        T, H, _ = q_THC.shape
        block = max(NARROWEST_BLOCK, blocks_of(farthest, 2))
        earlier = blocks_of(farthest, block)
        blocks = blocks_of(T, block)
        steps = blocks_of(blocks, max(1, STEP_LOGITS // (H * block * (earlier + 1) * block)))
        return cls(T, len(k_SJC), query_offset, farthest, steps, blocks_of(blocks, steps), block, earlier)

    def query_steps(self, rows_T_: jax.Array) -> jax.Array:
        """(T, …) to (A, N, X, …), padded with zeros."""
        A, N, X = self.steps, self.blocks, self.block
        return pad_to(rows_T_, A * N * X).reshape(A, N, X, *rows_T_.shape[1:])

    def tokens(self, rows_ANX_: jax.Array) -> jax.Array:
        """The inverse of query_steps."""
        return rows_ANX_.reshape(-1, *rows_ANX_.shape[3:])[: self.queries]

    @property
    def first_key(self) -> int:
        """The first that a query reads. Those before may hold anything."""
        return min(self.keys, max(0, self.query_offset - self.farthest))

    @property
    def around_keys(self) -> tuple[int, int]:
        """Slots before the first key and after the last one, where slots are E blocks and then those of the queries;
        less than none where keys have no slot."""
        first_slot = self.query_offset - self.earlier * self.block
        end_slot = self.query_offset + self.steps * self.blocks * self.block
        return self.first_key - first_slot, end_slot - self.keys

    def key_slots(self, x_SJC: jax.Array) -> jax.Array:
        """(S, J, C) to (P, J, C), zeros where there is no key."""
        before, after = self.around_keys
        return _padded(x_SJC[self.first_key :], before, after)

    def keys_of_slots(self, x_PJC: jax.Array) -> jax.Array:
        """The transpose of key_slots."""
        before, after = self.around_keys
        return _padded(_padded(x_PJC, -before, -after), self.first_key, 0)

    def visible(self, x_PJC: jax.Array, step: jax.Array) -> jax.Array:
        """What each query block of a step sees, N J Y C."""
        N, X, E = self.blocks, self.block, self.earlier
        x_VJC = lax.dynamic_slice_in_dim(x_PJC, step * N * X, (N + E) * X)
        x_LJXC = x_VJC.reshape(N + E, X, *x_VJC.shape[1:]).swapaxes(1, 2)
        return jnp.concatenate([x_LJXC[e : e + N] for e in range(E + 1)], axis=2)

    def add_visible(self, sum_PJC: jax.Array, part_NJCY: jax.Array, step: jax.Array) -> jax.Array:
        """The transpose of visible, added up."""
        N, X, E = self.blocks, self.block, self.earlier
        part_ENXJC = part_NJCY.reshape(*part_NJCY.shape[:3], E + 1, X).transpose(3, 0, 4, 1, 2)
        part_LXJC = functools.reduce(operator.add, (_padded(part_ENXJC[e], e, E - e) for e in range(E + 1)))
        part_VJC = part_LXJC.reshape(-1, *sum_PJC.shape[1:])
        return add_slices(sum_PJC, part_VJC[None], step[None] * N * X)

    def logits(self, q_NJRC: jax.Array, k_NJYC: jax.Array, step: jax.Array) -> jax.Array:
        """−∞ outside the window."""
        N, X = self.blocks, self.block
        s_NJRY = matmul("njrc,njyc->njry", q_NJRC, k_NJYC)
        earlier_slots = self.earlier * X
        distance_XY = earlier_slots + jnp.arange(X)[:, None] - jnp.arange(earlier_slots + X)
        near_XY = (distance_XY >= 0) & (distance_XY <= self.farthest)
        first_N = self.query_offset - earlier_slots + (step * N + jnp.arange(N)) * X
        position_NY = first_N[:, None] + jnp.arange(earlier_slots + X)
        exists_NY = (position_NY >= 0) & (position_NY < self.keys)
        keep_NXY = near_XY & exists_NY[:, None, :]
        s_NJGXY = s_NJRY.reshape(*s_NJRY.shape[:2], -1, *keep_NXY.shape[1:])
        return jnp.where(keep_NXY[:, None, None], s_NJGXY, -jnp.inf).reshape(s_NJRY.shape)


def attend(
    q_THC: jax.Array, k_SJC: jax.Array, v_SJC: jax.Array, *, farthest: int, query_offset: int, scale: float
) -> tuple[jax.Array, jax.Array]:
    """Softmax over the keys at distance 0 … farthest: o_THC in float32, and lse_TH."""
    grid = _Grid.of(q_THC, k_SJC, farthest, query_offset)
    J = k_SJC.shape[1]
    k_PJC, v_PJC = grid.key_slots(k_SJC), grid.key_slots(v_SJC)

    def attend_step(arguments: tuple) -> tuple[jax.Array, jax.Array]:
        step, q_NXHC = arguments
        s_NJRY = grid.logits(scaled(fold_heads(q_NXHC, J), scale), grid.visible(k_PJC, step), step)
        peak_NJR1 = jnp.maximum(s_NJRY.max(axis=3, keepdims=True), FLOOR)
        p_NJRY = exp2(s_NJRY - peak_NJR1)
        total_NJR1 = p_NJRY.sum(axis=3, keepdims=True)
        o_NJRC = matmul("njry,njyc->njrc", p_NJRY, grid.visible(v_PJC, step))
        o_NJRC /= jnp.where(total_NJR1 > 0, total_NJR1, 1.0)
        lse_NJR1 = jnp.where(total_NJR1 > 0, peak_NJR1 + jnp.log2(total_NJR1), -jnp.inf)
        return unfold_heads(o_NJRC, grid.block), unfold_heads(lse_NJR1, grid.block)[..., 0]

    o_ANXHC, lse_ANXH = lax.map(attend_step, (jnp.arange(grid.steps), grid.query_steps(q_THC)))
    return grid.tokens(o_ANXHC), grid.tokens(lse_ANXH)


def attend_backward(
    q_THC: jax.Array,
    k_SJC: jax.Array,
    v_SJC: jax.Array,
    do_THC: jax.Array,
    lse_TH: jax.Array,
    delta_TH: jax.Array,
    *,
    farthest: int,
    query_offset: int,
    scale: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """dq_THC, dk_SJC, dv_SJC in float32, given log-sum-exp and do · o of the merged output."""
    grid = _Grid.of(q_THC, k_SJC, farthest, query_offset)
    J = k_SJC.shape[1]
    k_PJC, v_PJC = grid.key_slots(k_SJC), grid.key_slots(v_SJC)

    def differentiate_step(sums: tuple, arguments: tuple) -> tuple[tuple, jax.Array]:
        dk_PJC, dv_PJC = sums
        step, q_NXHC, do_NXHC, lse_NXH, delta_NXH = arguments
        q_NJRC, do_NJRC = scaled(fold_heads(q_NXHC, J), scale), fold_heads(do_NXHC, J)
        q_NJCR, do_NJCR = q_NJRC.swapaxes(2, 3), do_NJRC.swapaxes(2, 3)
        k_NJYC, v_NJYC = grid.visible(k_PJC, step), grid.visible(v_PJC, step)
        p_NJRY = exp2(grid.logits(q_NJRC, k_NJYC, step) - fold_heads(lse_NXH[..., None], J))
        ds_NJRY = p_NJRY * (matmul("njrc,njyc->njry", do_NJRC, v_NJYC) - fold_heads(delta_NXH[..., None], J))
        dk_PJC = grid.add_visible(dk_PJC, matmul("njcr,njry->njcy", q_NJCR, ds_NJRY), step)
        dv_PJC = grid.add_visible(dv_PJC, matmul("njcr,njry->njcy", do_NJCR, p_NJRY), step)
        return (dk_PJC, dv_PJC), unfold_heads(matmul("njry,njyc->njrc", ds_NJRY, k_NJYC), grid.block)

    nothing_PJC = jnp.zeros(k_PJC.shape)
    rows = [grid.query_steps(rows_T_) for rows_T_ in (q_THC, do_THC, lse_TH, delta_TH)]
    (dk_PJC, dv_PJC), dq_ANXHC = lax.scan(
        differentiate_step, (nothing_PJC, nothing_PJC), (jnp.arange(grid.steps), *rows)
    )
    return grid.tokens(dq_ANXHC) * scale, grid.keys_of_slots(dk_PJC) * LN_2, grid.keys_of_slots(dv_PJC)


def _padded(rows_X_: jax.Array, before: int, after: int) -> jax.Array:
    """With so many rows of zeros, or without so many of its own where they are less than none."""
    around = [(before, after, 0), *[(0, 0, 0)] * (rows_X_.ndim - 1)]
    return lax.pad(rows_X_, jnp.zeros((), rows_X_.dtype), around)
