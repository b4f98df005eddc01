"""Attention within a narrow window: every block of queries against its own and the previous block of keys at once.

T, S, H, J, C as in attention.py, one batch row · A steps of N blocks of X tokens · G = H/J · R = G·X rows of one
key/value head in a query block · Y = 2·X keys that a query block may see. Logits are in units of log 2.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from focus_jax.ops.blockwise.numerics import FLOOR, LN_2, exp2, fold_heads, matmul, pad_to, scaled, unfold_heads
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
        steps = blocks_of(blocks, max(1, STEP_LOGITS // (H * block * 2 * block)))
        return cls(T, len(k_SJC), query_offset, farthest, steps, blocks_of(blocks, steps), block)

    def query_steps(self, rows_T_: jax.Array) -> jax.Array:
        """(T, …) to (A, N, X, …), padded with zeros."""
        A, N, X = self.steps, self.blocks, self.block
        return pad_to(rows_T_, A * N * X).reshape(A, N, X, *rows_T_.shape[1:])

    def tokens(self, rows_ANX_: jax.Array) -> jax.Array:
        """The inverse of query_steps."""
        return rows_ANX_.reshape(-1, *rows_ANX_.shape[3:])[: self.queries]

    @property
    def before(self) -> slice:
        """Keys before the first query that some query reads."""
        start = min(self.keys, max(0, self.query_offset - self.farthest))
        return slice(start, max(start, min(self.keys, self.query_offset)))

    @property
    def own(self) -> slice:
        """Keys at the positions of queries."""
        return slice(min(self.keys, self.query_offset), min(self.keys, self.query_offset + self.queries))

    @property
    def around_before(self) -> tuple[int, int]:
        """Slots before and after those keys in the block before the first query."""
        after = min(self.block, self.query_offset - self.before.stop)
        return self.block - after - (self.before.stop - self.before.start), after

    def key_steps(self, x_SJC: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The keys at the positions of each step's queries, and the block before them."""
        before_XJC = jnp.pad(x_SJC[self.before], (self.around_before, (0, 0), (0, 0)))
        own_ANXJC = self.query_steps(x_SJC[self.own])
        return own_ANXJC, jnp.concatenate([before_XJC[None], own_ANXJC[:-1, -1]])

    def keys_of_steps(self, own_ANXJC: jax.Array, before_XJC: jax.Array) -> jax.Array:
        """The transpose of key_steps, given what is left of the block before the first step."""
        leading, after = self.around_before
        own = self.tokens(own_ANXJC)[: self.own.stop - self.own.start]
        x_SJC = jnp.concatenate([before_XJC[leading : self.block - after], own])
        return jnp.pad(x_SJC, ((self.before.start, self.keys - self.own.stop), (0, 0), (0, 0)))

    def logits(self, q_NJRC: jax.Array, k_NJYC: jax.Array, step: jax.Array) -> jax.Array:
        """−∞ outside the window."""
        N, X = self.blocks, self.block
        s_NJRY = matmul("njrc,njyc->njry", q_NJRC, k_NJYC)
        distance_XY = X + jnp.arange(X)[:, None] - jnp.arange(2 * X)
        near_XY = (distance_XY >= 0) & (distance_XY <= self.farthest)
        position_NY = self.query_offset - X + ((step * N + jnp.arange(N)) * X)[:, None] + jnp.arange(2 * X)
        exists_NY = (position_NY >= 0) & (position_NY < self.keys)
        keep_NXY = near_XY & exists_NY[:, None, :]
        s_NJGXY = s_NJRY.reshape(*s_NJRY.shape[:2], -1, X, 2 * X)
        return jnp.where(keep_NXY[:, None, None], s_NJGXY, -jnp.inf).reshape(s_NJRY.shape)


def attend(
    q_THC: jax.Array, k_SJC: jax.Array, v_SJC: jax.Array, *, farthest: int, query_offset: int, scale: float
) -> tuple[jax.Array, jax.Array]:
    """Softmax over the keys at distance 0 … farthest: o_THC in float32, and lse_TH."""
    grid = _Grid.of(q_THC, k_SJC, farthest, query_offset)
    J = k_SJC.shape[1]

    def attend_step(arguments: tuple) -> tuple[jax.Array, jax.Array]:
        step, q_NXHC, k, v = arguments
        s_NJRY = grid.logits(scaled(fold_heads(q_NXHC, J), scale), _visible(*k), step)
        peak_NJR1 = jnp.maximum(s_NJRY.max(axis=3, keepdims=True), FLOOR)
        p_NJRY = exp2(s_NJRY - peak_NJR1)
        total_NJR1 = p_NJRY.sum(axis=3, keepdims=True)
        o_NJRC = matmul("njry,njyc->njrc", p_NJRY, _visible(*v)) / jnp.where(total_NJR1 > 0, total_NJR1, 1.0)
        lse_NJR1 = jnp.where(total_NJR1 > 0, peak_NJR1 + jnp.log2(total_NJR1), -jnp.inf)
        return unfold_heads(o_NJRC, grid.block), unfold_heads(lse_NJR1, grid.block)[..., 0]

    steps = (jnp.arange(grid.steps), grid.query_steps(q_THC), grid.key_steps(k_SJC), grid.key_steps(v_SJC))
    o_ANXHC, lse_ANXH = lax.map(attend_step, steps)
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

    def differentiate_step(later: tuple, arguments: tuple) -> tuple[tuple, tuple]:
        dk_later_XJC, dv_later_XJC = later
        step, q_NXHC, do_NXHC, lse_NXH, delta_NXH, k, v = arguments
        q_NJRC, do_NJRC = scaled(fold_heads(q_NXHC, J), scale), fold_heads(do_NXHC, J)
        q_NJCR, do_NJCR = q_NJRC.swapaxes(2, 3), do_NJRC.swapaxes(2, 3)
        k_NJYC, v_NJYC = _visible(*k), _visible(*v)
        p_NJRY = exp2(grid.logits(q_NJRC, k_NJYC, step) - fold_heads(lse_NXH[..., None], J))
        ds_NJRY = p_NJRY * (matmul("njrc,njyc->njry", do_NJRC, v_NJYC) - fold_heads(delta_NXH[..., None], J))
        dk_NXJC, dk_earlier_XJC = _scatter(matmul("njcr,njry->njcy", q_NJCR, ds_NJRY), dk_later_XJC)
        dv_NXJC, dv_earlier_XJC = _scatter(matmul("njcr,njry->njcy", do_NJCR, p_NJRY), dv_later_XJC)
        dq_NXHC = unfold_heads(matmul("njry,njyc->njrc", ds_NJRY, k_NJYC), grid.block)
        return (dk_earlier_XJC, dv_earlier_XJC), (dq_NXHC, dk_NXJC, dv_NXJC)

    nothing_XJC = jnp.zeros((grid.block, *k_SJC.shape[1:]))
    rows = [grid.query_steps(rows_T_) for rows_T_ in (q_THC, do_THC, lse_TH, delta_TH)]
    steps = (jnp.arange(grid.steps), *rows, grid.key_steps(k_SJC), grid.key_steps(v_SJC))
    (dk_before_XJC, dv_before_XJC), (dq_ANXHC, dk_ANXJC, dv_ANXJC) = lax.scan(
        differentiate_step, (nothing_XJC, nothing_XJC), steps, reverse=True
    )
    dk_SJC, dv_SJC = grid.keys_of_steps(dk_ANXJC, dk_before_XJC), grid.keys_of_steps(dv_ANXJC, dv_before_XJC)
    return grid.tokens(dq_ANXHC) * scale, dk_SJC * LN_2, dv_SJC


def _visible(own_NXJC: jax.Array, before_XJC: jax.Array) -> jax.Array:
    """The previous and the own block of every block, N J Y C."""
    x_NJXC = jnp.concatenate([before_XJC[None], own_NXJC]).swapaxes(1, 2)
    return jnp.concatenate([x_NJXC[:-1], x_NJXC[1:]], axis=2)


def _scatter(part_NJCY: jax.Array, later_XJC: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The transpose of _visible, given what the next step adds to the last block."""
    X = len(later_XJC)
    previous_NXJC, own_NXJC = (half.transpose(0, 3, 1, 2) for half in (part_NJCY[..., :X], part_NJCY[..., X:]))
    return own_NXJC + jnp.concatenate([previous_NXJC[1:], later_XJC[None]]), previous_NXJC[0]
