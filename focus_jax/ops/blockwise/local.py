"""The local pass, row by row of the batch; dense attention where the window has no end. Letters as in attention.py."""

from functools import partial

import jax
import jax.numpy as jnp

from focus_jax.ops.blockwise import unsorted
from focus_jax.ops.blockwise.numerics import FLOOR, map_rows
from focus_jax.ops.merged import NO_END, Statics


def attend(q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, statics: Statics) -> tuple[jax.Array, jax.Array]:
    """o_BTHC in float32, lse_BTH."""
    S = _read_keys(q_BTHC, k_BSJC, statics)
    attend_row = partial(unsorted.attend, **_options(statics))
    return map_rows(lambda row: attend_row(*row), (q_BTHC, k_BSJC[:, :S], v_BSJC[:, :S]))


def attend_backward(
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    do_BTHC: jax.Array,
    lse_BTH: jax.Array,
    delta_BTH: jax.Array,
    statics: Statics,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """In float32."""
    S = _read_keys(q_BTHC, k_BSJC, statics)
    rows = q_BTHC, k_BSJC[:, :S], v_BSJC[:, :S], do_BTHC, jnp.maximum(lse_BTH, FLOOR), delta_BTH
    differentiate_row = partial(unsorted.attend_backward, **_options(statics))
    dq_BTHC, *dkv = map_rows(lambda row: differentiate_row(*row), rows)
    unread = k_BSJC.shape[1] - S
    dk_BSJC, dv_BSJC = (jnp.pad(dx_BSJC, ((0, 0), (0, unread), (0, 0), (0, 0))) for dx_BSJC in dkv)
    return dq_BTHC, dk_BSJC, dv_BSJC


def _read_keys(q_BTHC: jax.Array, k_BSJC: jax.Array, statics: Statics) -> int:
    """Keys up to the last query."""
    return min(k_BSJC.shape[1], statics.query_offset + q_BTHC.shape[1])


def _options(statics: Statics) -> dict:
    farthest = None if statics.window == NO_END else statics.window
    return {"farthest": farthest, "query_offset": statics.query_offset, "scale": statics.scale}
