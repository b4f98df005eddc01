"""The plan of a run: what its models need together, whether that fits, and how long a step takes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jax.sharding import AbstractMesh, AxisType

from focus_jax import config, h200
from focus_jax.accounting.peaks import published_peak
from focus_jax.parallel.mesh import check_batch, make_mesh, mesh_shape
from focus_jax.plan.collectives import Moved
from focus_jax.plan.needs import Needs, compiled_needs, estimated_needs

USABLE = 0.92
"""Of a device's memory: the driver and NCCL need the rest. JAX takes that share where it is told to
(XLA_PYTHON_CLIENT_MEM_FRACTION=0.92)."""


@dataclass(frozen=True)
class Plan:
    """Bytes are those of one device."""

    path: Path
    run: config.Config
    mesh: Mapping[str, int]
    compiled: bool
    models: Sequence[Needs]

    @property
    def devices(self) -> int:
        return math.prod(self.mesh.values())

    @property
    def state_bytes(self) -> int:
        """Of all models of the run, which are trained in one process."""
        return sum(needs.state_bytes for needs in self.models)

    @property
    def temporary_bytes(self) -> int:
        """Models step in turn."""
        return max(needs.temporary_bytes for needs in self.models)

    @property
    def peak_bytes(self) -> int:
        return self.state_bytes + self.temporary_bytes

    @property
    def usable_bytes(self) -> int:
        return int(USABLE * h200.MEMORY_BYTES)

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.usable_bytes

    @property
    def tokens_per_step(self) -> int:
        return self.run.training.batch_size * self.run.training.sequence_length

    def collectives(self) -> dict[str, Moved] | None:
        """By kind, of a step of every model; None where nothing was compiled."""
        totals: dict[str, Moved] = {}
        for needs in self.models:
            if needs.collectives is None:
                return None
            for kind, moved in needs.collectives.items():
                before = totals.get(kind, Moved(0, 0))
                totals[kind] = Moved(before.times + moved.times, before.bytes + moved.bytes)
        return totals

    def seconds_per_step(self, needs: Needs, utilisation: float) -> float:
        """Of one model, if what it computes ran at this share of the devices' peak."""
        peak = published_peak(h200.DEVICE_KIND)
        assert peak is not None
        return self.tokens_per_step * needs.flops_executed / (utilisation * peak * self.devices)


def make_plan(path: Path, run: config.Config, devices: int, *, compiled: bool) -> Plan:
    """For so many H200s of one host. Raises UserError where the run does not divide among them."""
    shape = mesh_shape(run.mesh, devices)
    twins = [(name, config.of_model(run, name)) for name in run.models]
    if compiled:
        mesh = make_mesh(run.mesh, h200.devices(devices))
        check_batch(run.training, mesh)
        return Plan(path, run, shape, compiled, [compiled_needs(*twin, mesh) for twin in twins])
    abstract = AbstractMesh(tuple(shape.values()), tuple(shape), axis_types=(AxisType.Auto,) * len(shape))
    check_batch(run.training, abstract)
    return Plan(path, run, shape, compiled, [estimated_needs(*twin, abstract) for twin in twins])
