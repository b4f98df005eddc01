"""The mesh of devices that a run asks for: data × fsdp × tensor."""

import math
from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh

from focus_jax import config
from focus_jax.errors import UserError

DATA, FSDP, TENSOR = "data", "fsdp", "tensor"
BATCH_AXES = (DATA, FSDP)
"""Mesh axes that the sequences of a batch are divided over."""

AnyMesh = Mesh | jax.sharding.AbstractMesh


def mesh_shape(wanted: config.Mesh, devices: int) -> dict[str, int]:
    """Sizes of the mesh axes over a number of devices, −1 filled in.

    Raises UserError where they do not make up that number.
    """
    sizes = {DATA: wanted.data, FSDP: wanted.fsdp, TENSOR: wanted.tensor}
    given = math.prod(size for size in sizes.values() if size != -1)
    rest = [name for name, size in sizes.items() if size == -1]
    as_written = " · ".join(f"{name} {size}" for name, size in sizes.items() if size != -1)
    if rest and devices % given:
        raise UserError(f"mesh.{rest[0]}: {devices} devices are no multiple of {as_written}")
    if not rest and given != devices:
        raise UserError(f"mesh: {as_written} make {given} devices, and there are {devices}; -1 takes the rest")
    return {name: devices // given if size == -1 else size for name, size in sizes.items()}


def make_mesh(wanted: config.Mesh, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh over these devices (all of all processes by default). Raises UserError as `mesh_shape`."""
    devices = jax.devices() if devices is None else devices
    shape = mesh_shape(wanted, len(devices))
    # Auto: the compiler divides the work, from how its inputs lie and from the constraints in the model.
    return jax.make_mesh(
        tuple(shape.values()), tuple(shape), axis_types=(AxisType.Auto,) * len(shape), devices=list(devices)
    )


def first_devices(wanted: config.Mesh) -> Mesh:
    """A mesh of as many devices of this process as the sizes make up; others stay idle."""
    devices = jax.local_devices()
    sizes = (wanted.data, wanted.fsdp, wanted.tensor)
    return make_mesh(wanted, devices if -1 in sizes else devices[: math.prod(sizes)])


def batch_shards(mesh: AnyMesh) -> int:
    """Parts that a batch is divided into."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def check_batch(training: config.Training, mesh: AnyMesh) -> None:
    """Raises UserError where the sequences of a microbatch do not divide among the devices."""
    if training.batch_size // training.microbatches % batch_shards(mesh):
        raise UserError(
            f"training.batch_size: {training.batch_size} sequences in {training.microbatches} microbatches do not "
            f"divide among data {mesh.shape[DATA]} · fsdp {mesh.shape[FSDP]} devices of the mesh"
        )


def check_heads(model: config.Model, mesh: AnyMesh) -> None:
    """Raises UserError where heads do not divide among the devices; a head is never cut."""
    for name, heads in (("heads", model.heads), ("kv_heads", model.kv_heads)):
        if heads % mesh.shape[TENSOR]:
            raise UserError(
                f"model.{name}: {heads} do not divide among the {mesh.shape[TENSOR]} devices of mesh axis {TENSOR}"
            )
