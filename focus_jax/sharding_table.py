"""How the parameters of a run lie on its devices: `train.py --shardings N`. By shapes alone; no device is needed."""

import math
from collections.abc import Iterator

import jax
from jax.sharding import AbstractMesh, AxisType

from focus_jax import config
from focus_jax.errors import UserError
from focus_jax.parallel.mesh import check_batch, check_heads, mesh_shape
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import initial_state, parameter_axes, state_shardings


def sharding_table(run: config.Config, devices: int) -> str:
    """A line for every parameter; layers that are alike are one line.

    Raises UserError where the run does not divide among that many devices.
    """
    if devices < 1:
        raise UserError(f"--shardings: there are no meshes of {devices} devices; name at least 1")
    shape = mesh_shape(run.mesh, devices)
    mesh = AbstractMesh(tuple(shape.values()), tuple(shape), axis_types=(AxisType.Auto,) * len(shape))
    check_heads(run.model, mesh)
    check_batch(run.training, mesh)
    optimizer = make_optimizer(run)
    params = jax.eval_shape(lambda: initial_state(run, optimizer)).params
    shardings = state_shardings(run, optimizer, mesh).params
    lines: dict[tuple[str, ...], list[str]] = {}
    whole = here = 0
    for (path, array), sharding, axes in zip(
        jax.tree.leaves_with_path(params),
        jax.tree.leaves(shardings),
        jax.tree.leaves(parameter_axes(run), is_leaf=lambda x: isinstance(x, tuple)),
        strict=True,
    ):
        part = sharding.shard_shape(array.shape)
        whole, here = whole + math.prod(array.shape), here + math.prod(part)
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        layer = name.split(".")[1] if name.startswith("blocks.") else ""
        cells = (
            name.replace(f".{layer}.", ".*.", 1) if layer else name,
            ", ".join(axes),
            " × ".join(map(str, array.shape)),
            ", ".join(entry or "–" for entry in sharding.spec),
            " × ".join(map(str, part)),
        )
        lines.setdefault(cells, []).append(layer)
    over = " · ".join(f"{name} {size}" for name, size in shape.items())
    rows: list[tuple[str, ...]] = [("parameter", "logical axes", "shape", "mesh axes", "on each device", "layers")]
    rows += [(*cells, _ranges(layers)) for cells, layers in lines.items()]
    total = (
        f"{devices} devices: {over}. {whole:,} parameters, {here:,} on each device, and their two moments in the same "
        "places; everything else of the state is whole on every device."
    )
    return "\n".join([*_aligned(rows), "", total])


def _ranges(layers: list[str]) -> str:
    numbers = [int(layer) for layer in layers if layer]
    if not numbers:
        return ""
    return f"{numbers[0]}…{numbers[-1]}" if len(numbers) == numbers[-1] - numbers[0] + 1 > 1 else str(numbers)[1:-1]


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
