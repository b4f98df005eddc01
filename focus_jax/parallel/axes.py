"""One table from logical axes to mesh axes, for parameters and activations alike.

A parameter carries the names of its axes as NNX metadata: nnx.Param(value, axes=("width", "mlp")).
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from focus_jax.errors import UserError
from focus_jax.parallel.mesh import BATCH_AXES, FSDP, TENSOR, AnyMesh

Axes = tuple[str, ...]
"""A logical name for every dimension of an array."""

TABLE: Mapping[str, tuple[str, ...]] = {
    "microbatches": (),
    "batch": BATCH_AXES,
    "tokens": (),
    # Of parameters: matrices are divided twice, along the residual stream and across it.
    "width": (FSDP,),
    "heads": (TENSOR,),
    "kv_heads": (TENSOR,),
    "mlp": (TENSOR,),
    "vocab": (TENSOR,),
    # Small: gathering them would cost more than holding them whole.
    "positions": (),
    "vector_width": (),
    "head_channels": (),
    "router_width": (),
    "routing": (),
    "groups": (),
    # Of activations: every device has the whole residual stream of its sequences.
    "residual": (),
}


def axes_of(state: nnx.State) -> Any:
    """The axes of every parameter, as a plain nested dict like that of their values."""
    named = jax.tree.map(lambda v: v.get_metadata("axes"), state, is_leaf=_is_variable)
    return nnx.to_pure_dict(named)


def spec(axes: Axes, table: Mapping[str, tuple[str, ...]] = TABLE) -> PartitionSpec:
    return PartitionSpec(*(table[name] or None for name in axes))


def constrained(x: jax.Array, *axes: str) -> jax.Array:
    """x, told how it lies on the mesh that the program is traced for; x itself where there is none."""
    return x if jax.sharding.get_abstract_mesh().empty else jax.lax.with_sharding_constraint(x, spec(axes))


def constrain_parameters(model: nnx.Module) -> None:
    """Tells how the parameters of a model lie, and with them their gradients, where a program is traced for a mesh."""
    if not jax.sharding.get_abstract_mesh().empty:
        for parameter in jax.tree.leaves(nnx.state(model, nnx.Param), is_leaf=_is_variable):
            parameter[...] = constrained(parameter[...], *parameter.get_metadata("axes"))


def parameter_shardings(mesh: AnyMesh, shapes: Any, axes: Any, table: Mapping[str, tuple[str, ...]] = TABLE) -> Any:
    """How every parameter lies on the mesh. `shapes` and `axes`: trees of arrays (or their shapes) and of their Axes.

    Raises UserError naming parameter, dimension and mesh axis where one cannot be divided as the table says.
    """

    def of_one(path: tuple[Any, ...], array: Any, names: Axes) -> NamedSharding:
        _check(jax.tree_util.keystr(path, simple=True, separator="."), array.shape, names, mesh, table)
        return NamedSharding(mesh, spec(names, table))

    return jax.tree.map_with_path(of_one, shapes, axes)


def _is_variable(x: Any) -> bool:
    return isinstance(x, nnx.Variable)


def _check(
    parameter: str, shape: tuple[int, ...], axes: Axes, mesh: AnyMesh, table: Mapping[str, tuple[str, ...]]
) -> None:
    taken: dict[str, str] = {}
    for dimension, (name, size) in enumerate(zip(axes, shape, strict=True)):
        here = f"{parameter}: dimension {dimension} ({name}, {size})"
        for axis in table[name]:
            if axis in taken:
                raise UserError(f"{here} is mapped to mesh axis {axis}, which {taken[axis]} has; see parallel/axes.py")
            taken[axis] = f"dimension {dimension} ({name})"
        parts = math.prod(mesh.shape[axis] for axis in table[name])
        if size % parts:
            over = " · ".join(f"{axis} ({mesh.shape[axis]})" for axis in table[name])
            raise UserError(f"{here} does not divide among mesh axis {over}; change it, or mesh.{table[name][0]}")
