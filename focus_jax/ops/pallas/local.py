"""The local pass, in the tokens' own order; dense attention where the window has no end. Letters as in kernels.py."""

import jax

from focus_jax.ops.merged import NO_END, Statics
from focus_jax.ops.pallas import passes
from focus_jax.ops.pallas.band import Band


def attend(q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, statics: Statics) -> tuple[jax.Array, jax.Array]:
    """o_BTHC and lse_BTH."""
    o_BTHC, lse_BHT = passes.forward(_band(q_BTHC, k_BSJC, statics), statics.scale, q_BTHC, k_BSJC, v_BSJC)
    return o_BTHC, lse_BHT.swapaxes(1, 2)


def attend_backward(
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    do_BTHC: jax.Array,
    lse_BTH: jax.Array,
    delta_BTH: jax.Array,
    statics: Statics,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    rows_BHT = lse_BTH.swapaxes(1, 2), delta_BTH.swapaxes(1, 2)
    band = _band(q_BTHC, k_BSJC, statics)
    part = passes.backward(band, statics.scale, q_BTHC, k_BSJC, v_BSJC, do_BTHC, *rows_BHT)
    return part.dq_BTHC, part.dk_BSJC, part.dv_BSJC


def _band(q_BTHC: jax.Array, k_BSJC: jax.Array, statics: Statics) -> Band:
    window = None if statics.window == NO_END else statics.window
    return Band(q_BTHC.shape[1], k_BSJC.shape[1], statics.query_offset, window)
