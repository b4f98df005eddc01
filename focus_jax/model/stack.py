"""The blocks of a decoder, one after another: as one loop or one by one, and what the backward pass keeps of them.

Parameters stay apart, each under the name of its layer; a loop stacks those of its layers for as long as it runs.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from focus_jax import config
from focus_jax.ops import KEPT_OF_ATTENTION
from focus_jax.parallel.axes import constrain_parameters

Call = Callable[[Any, jax.Array], tuple[jax.Array, Any]]
"""(block, residual_BTD) → (residual_BTD, what the block tells beside it)."""

_KEEP_ATTENTION = jax.checkpoint_policies.save_only_these_names(KEPT_OF_ATTENTION)
_KEPT = {
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable, _KEEP_ATTENTION
    ),
    "attention": _KEEP_ATTENTION,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def run_blocks(
    blocks: Sequence[nnx.Module],
    kinds: Sequence[object],
    residual_BTD: jax.Array,
    call: Call,
    training: config.Training,
    dtype: jnp.dtype,
) -> tuple[jax.Array, list[Any]]:
    """Calls every block in order; returns the residual and what each block told, in order.

    kinds: equal for blocks that have the same structure. With `scan_layers` consecutive ones are one loop, so a single
    dense layer among Focus layers ends one loop and begins another.
    dtype: matrices are cast to it before they are stacked, as their layer would cast them.
    """
    told: list[Any] = []
    for _, group in itertools.groupby(range(len(blocks)), key=lambda layer: kinds[layer]):
        same = [blocks[layer] for layer in group]
        if training.scan_layers and len(same) > 1:
            residual_BTD, of_layers = _scan(same, residual_BTD, call, training.remat, dtype)
            told += of_layers
            continue
        for block in same:
            structure, arrays = _split(block)
            residual_BTD, of_layer = _rematerialised(structure, call, training.remat, in_loop=False)(
                residual_BTD, arrays
            )
            told.append(of_layer)
    return residual_BTD, told


def _scan(
    blocks: Sequence[nnx.Module], residual_BTD: jax.Array, call: Call, remat: str, dtype: jnp.dtype
) -> tuple[jax.Array, list[Any]]:
    structure, _ = _split(blocks[0])
    layers = [_matrices_as(_split(block)[1], dtype) for block in blocks]
    stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *layers)
    residual_BTD, told = jax.lax.scan(_rematerialised(structure, call, remat, in_loop=True), residual_BTD, stacked)
    return residual_BTD, [jax.tree.map(lambda array, layer=layer: array[layer], told) for layer in range(len(blocks))]


def _rematerialised(structure: nnx.GraphDef, call: Call, remat: str, *, in_loop: bool) -> Callable:
    """(residual_BTD, arrays of a block) → what `call` makes of that block."""

    def apply(residual_BTD: jax.Array, arrays: Any) -> tuple[jax.Array, Any]:
        block = nnx.merge(structure, arrays)
        constrain_parameters(block)
        return call(block, residual_BTD)

    if remat == "none":
        return apply
    # A loop's body is compiled apart from its backward pass, so nothing could undo the second computation there.
    return jax.checkpoint(apply, policy=_KEPT[remat], prevent_cse=not in_loop)


def _split(block: nnx.Module) -> tuple[nnx.GraphDef, Any]:
    structure, state = nnx.split(block)
    return structure, nnx.to_pure_dict(state)


def _matrices_as(arrays: Any, dtype: jnp.dtype) -> Any:
    """Other arrays (norms, routers) are used in float32."""

    def cast(path: tuple[Any, ...], array: jax.Array) -> jax.Array:
        return array.astype(dtype) if path[-1].key == "kernel" else array

    return jax.tree.map_with_path(cast, arrays)
