"""Attention within a narrow window: every block of queries against its own and the previous block of keys at once.

T, S, H, J, C as in attention.py, one batch row · A steps of N blocks of X tokens · G = H/J · R = G·X rows of one
key/value head in a query block · Y = 2·X keys that a query block may see · E key slots: a block before the first query,
and all blocks of the queries.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from focus_jax.ops.blockwise.numerics import FLOOR, LOG2_E, add_at, exp2, fold_heads, matmul, pad_to, unfold_heads
from focus_jax.ops.blockwise.pairs import STEP_LOGITS, blocks_of

WIDEST = 512
"""Wider windows are cut into ranges of blocks."""
NARROWEST_BLOCK = 64


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

    @classmethod
    def of(cls, q_THC: jax.Array, k_SJC: jax.Array, farthest: int, query_offset: int) -> "_Grid":
        T, H, _ = q_THC.shape
        block = max(NARROWEST_BLOCK, farthest)
        blocks = blocks_of(T, block)
        steps = blocks_of(blocks, max(1, STEP_LOGITS // 2 // (H * block * 2 * block)))
        return cls(T, len(k_SJC), query_offset, farthest, steps, blocks_of(blocks, steps), block)

    @property
    def first_read(self) -> int:
        return max(0, self.query_offset - self.farthest)

    @property
    def first_slot(self) -> int:
        """Position of the first key slot."""
        return self.query_offset - self.block

    def query_steps(self, rows_T_: jax.Array) -> jax.Array:
        A, N, X = self.steps, self.blocks, self.block
        return pad_to(rows_T_, A * N * X).reshape(A, N, X, *rows_T_.shape[1:])

    def tokens(self, rows_ANX_: jax.Array) -> jax.Array:
        return rows_ANX_.reshape(-1, *rows_ANX_.shape[3:])[: self.queries]

    def key_slots(self, x_SJC: jax.Array) -> jax.Array:
        """Keys that some query reads, zeros elsewhere."""
        read_SJC = x_SJC[self.first_read : self.query_offset + self.queries]
        before = self.first_read - self.first_slot
        length = (self.steps * self.blocks + 1) * self.block
        return pad_to(jnp.pad(read_SJC, ((before, 0), (0, 0), (0, 0))), length)

    def keys_of_slots(self, x_EJC: jax.Array) -> jax.Array:
        """The inverse of key_slots, zeros for keys that no query reads."""
        before = self.first_read - self.first_slot
        read = max(0, min(self.keys, self.query_offset + self.queries) - self.first_read)
        x_SJC = jnp.pad(x_EJC[before : before + read], ((self.first_read, 0), (0, 0), (0, 0)))
        return pad_to(x_SJC[: self.keys], self.keys)

    def step_keys(self, x_EJC: jax.Array, step: jax.Array) -> jax.Array:
        """What each block of queries may see."""
        N, X = self.blocks, self.block
        slots = lax.dynamic_slice_in_dim(x_EJC, step * N * X, (N + 1) * X)
        x_NJXC = slots.reshape(N + 1, X, *slots.shape[1:]).swapaxes(1, 2)
        return jnp.concatenate([x_NJXC[:-1], x_NJXC[1:]], axis=2)

    def add_step_keys(self, sums_EJC: jax.Array, part_NJYC: jax.Array, step: jax.Array) -> jax.Array:
        """The transpose of step_keys."""
        N, X = self.blocks, self.block
        before, own = part_NJYC[:, :, :X], part_NJYC[:, :, X:]
        one_block = ((0, 0), (0, 0), (0, 0))
        part = jnp.pad(before, ((0, 1), *one_block)) + jnp.pad(own, ((1, 0), *one_block))
        return add_at(sums_EJC, part.swapaxes(1, 2).reshape((N + 1) * X, *sums_EJC.shape[1:]), step * N * X, axis=0)

    def logits(self, q_NJRC: jax.Array, k_NJYC: jax.Array, step: jax.Array, scale: float) -> jax.Array:
        """In units of log 2, −∞ outside the window."""
        N, X = self.blocks, self.block
        s_NJRY = matmul("njrc,njyc->njry", q_NJRC, k_NJYC) * (scale * LOG2_E)
        distance_XY = X + jnp.arange(X)[:, None] - jnp.arange(2 * X)
        near_XY = (distance_XY >= 0) & (distance_XY <= self.farthest)
        position_NY = self.first_slot + ((step * N + jnp.arange(N)) * X)[:, None] + jnp.arange(2 * X)
        exists_NY = (position_NY >= 0) & (position_NY < self.keys)
        keep_NXY = near_XY & exists_NY[:, None, :]
        s_NJGXY = s_NJRY.reshape(*s_NJRY.shape[:2], -1, X, 2 * X)
        return jnp.where(keep_NXY[:, None, None], s_NJGXY, -jnp.inf).reshape(s_NJRY.shape)


def attend(
    q_THC: jax.Array, k_SJC: jax.Array, v_SJC: jax.Array, *, farthest: int, query_offset: int, scale: float
) -> tuple[jax.Array, jax.Array]:
    """Softmax over the keys at distance 0 … farthest: o_THC in float32, lse_TH in units of log 2."""
    grid = _Grid.of(q_THC, k_SJC, farthest, query_offset)
    J = k_SJC.shape[1]
    k_EJC, v_EJC = grid.key_slots(k_SJC), grid.key_slots(v_SJC)

    def attend_blocks(blocks: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        step, q_NXHC = blocks
        s_NJRY = grid.logits(_fold(q_NXHC, J), grid.step_keys(k_EJC, step), step, scale)
        peak_NJR1 = jnp.maximum(s_NJRY.max(axis=3, keepdims=True), FLOOR)
        p_NJRY = exp2(s_NJRY - peak_NJR1)
        total_NJR1 = p_NJRY.sum(axis=3, keepdims=True)
        o_NJRC = matmul("njry,njyc->njrc", p_NJRY, grid.step_keys(v_EJC, step))
        o_NJRC /= jnp.where(total_NJR1 > 0, total_NJR1, 1.0)
        lse_NJR1 = jnp.where(total_NJR1 > 0, peak_NJR1 + jnp.log2(total_NJR1), -jnp.inf)
        return _unfold(o_NJRC, grid.block), _unfold(lse_NJR1, grid.block)[..., 0]

    o_ANXHC, lse_ANXH = lax.map(attend_blocks, (jnp.arange(grid.steps), grid.query_steps(q_THC)))
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
    """dq_THC, dk_SJC, dv_SJC in float32, given log-sum-exp (units of log 2) and do · o of the merged output."""
    grid = _Grid.of(q_THC, k_SJC, farthest, query_offset)
    J = k_SJC.shape[1]
    k_EJC, v_EJC = grid.key_slots(k_SJC), grid.key_slots(v_SJC)

    def differentiate_blocks(sums: tuple, blocks: tuple) -> tuple[tuple, jax.Array]:
        dk_EJC, dv_EJC = sums
        step, q_NXHC, do_NXHC, lse_NXH, delta_NXH = blocks
        q_NJRC, do_NJRC = _fold(q_NXHC, J), _fold(do_NXHC, J)
        k_NJYC, v_NJYC = grid.step_keys(k_EJC, step), grid.step_keys(v_EJC, step)
        p_NJRY = exp2(grid.logits(q_NJRC, k_NJYC, step, scale) - _fold(lse_NXH[..., None], J))
        ds_NJRY = p_NJRY * (matmul("njrc,njyc->njry", do_NJRC, v_NJYC) - _fold(delta_NXH[..., None], J))
        dk_EJC = grid.add_step_keys(dk_EJC, matmul("njry,njrc->njyc", ds_NJRY, q_NJRC), step)
        dv_EJC = grid.add_step_keys(dv_EJC, matmul("njry,njrc->njyc", p_NJRY, do_NJRC), step)
        return (dk_EJC, dv_EJC), _unfold(matmul("njry,njyc->njrc", ds_NJRY, k_NJYC), grid.block)

    nothing = (jnp.zeros(k_EJC.shape), jnp.zeros(v_EJC.shape))
    rows = [grid.query_steps(rows_T_) for rows_T_ in (q_THC, do_THC, lse_TH, delta_TH)]
    (dk_EJC, dv_EJC), dq_ANXHC = lax.scan(differentiate_blocks, nothing, (jnp.arange(grid.steps), *rows))
    return grid.tokens(dq_ANXHC) * scale, grid.keys_of_slots(dk_EJC) * scale, grid.keys_of_slots(dv_EJC)


def _fold(rows_NXHC: jax.Array, J: int) -> jax.Array:
    return jax.vmap(lambda rows_XHC: fold_heads(rows_XHC, J))(rows_NXHC)


def _unfold(rows_NJRC: jax.Array, X: int) -> jax.Array:
    return jax.vmap(lambda rows_JRC: unfold_heads(rows_JRC, X))(rows_NJRC)
