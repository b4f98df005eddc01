"""Batches on a mesh: sequences are divided over data and fsdp, and a process brings those of its own devices."""

from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from focus_jax.errors import UserError
from focus_jax.parallel.axes import spec


class Part(NamedTuple):
    """Part `number` of `parts` equal ones: rows [number·B/parts, (number + 1)·B/parts) of a batch of B rows."""

    number: int
    parts: int


def batch_sharding(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, spec(("batch",)))


def part_of_process(mesh: Mesh, batch_size: int) -> Part:
    """The rows of a batch that this process has to bring; processes that share them (mesh axis tensor) bring the same.

    Raises UserError where they are not one even stretch.
    """
    places = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    rows = sorted({row for place in places if place for row in range(*place[0].indices(batch_size))})
    if rows[-1] - rows[0] + 1 != len(rows) or batch_size % len(rows) or rows[0] % len(rows):
        raise UserError(f"mesh: rows {rows} of a batch fall to one process; choose sizes that multiples of hosts fit")
    return Part(rows[0] // len(rows), batch_size // len(rows))


def placed(mesh: Mesh, rows: tuple[np.ndarray, ...]) -> tuple[jax.Array, ...]:
    """Whole batches on the mesh, from the rows that each process brings."""
    sharding = batch_sharding(mesh)
    # The transfer is meant; JAX takes it for an implicit one where there are several processes.
    with jax.transfer_guard("allow"):
        return tuple(jax.make_array_from_process_local_data(sharding, part) for part in rows)
