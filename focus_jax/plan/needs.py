"""What one model of a run needs on every device: compiled for its target, or by shapes alone.

Letters as in focus_jax.config.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from focus_jax import config
from focus_jax.accounting import flops
from focus_jax.accounting.memory import activation_bytes
from focus_jax.model import as_trained
from focus_jax.parallel.mesh import TENSOR, AnyMesh, batch_shards, check_heads
from focus_jax.plan.collectives import Moved, collectives
from focus_jax.training.learner import Learner
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import TrainState, abstract_state, state_shardings


class Needs(NamedTuple):
    """Bytes are those of one device."""

    model: config.ModelName
    parameters: int
    state_bytes: int
    """Parameters, moments and the rest of the train state."""
    temporary_bytes: int
    """Everything else during a step: gradients, activations, gathered parameters."""
    collectives: Mapping[str, Moved] | None
    """Of a step; None where nothing was compiled."""
    flops_executed: float
    """Of a token, forward and backward, with the pairs of even groups."""
    flops_dense_equivalent: float


def compiled_needs(name: config.ModelName, run: config.Config, mesh: Mesh) -> Needs:
    """From the real train step, compiled for the mesh; the one of the run's last step, where there are several."""
    learner = Learner(name, run, mesh)
    compiled = learner.lowered(as_trained(run.attention, run.training.steps)).compile()
    memory, program = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None
    assert program is not None
    written = memory.output_size_in_bytes - memory.alias_size_in_bytes
    temporaries = memory.temp_size_in_bytes + written
    return _needs(name, run, learner.abstract_state(), temporaries, collectives(program))


def estimated_needs(name: config.ModelName, run: config.Config, mesh: AnyMesh) -> Needs:
    """By arithmetic: the state is exact, temporaries are what a step cannot do without."""
    check_heads(run.model, mesh)
    optimizer = make_optimizer(run)
    state = abstract_state(run, optimizer, state_shardings(run, optimizer, mesh))
    activations = activation_bytes(run, batch_shards=batch_shards(mesh), tensor_shards=mesh.shape[TENSOR])
    return _needs(name, run, state, _bytes_per_device(state.params) + activations, None)


def _needs(
    name: config.ModelName,
    run: config.Config,
    state: TrainState,
    temporary_bytes: int,
    moved: Mapping[str, Moved] | None,
) -> Needs:
    return Needs(
        model=name,
        parameters=sum(math.prod(x.shape) for x in jax.tree.leaves(state.params)),
        state_bytes=_bytes_per_device(state),
        temporary_bytes=temporary_bytes,
        collectives=moved,
        flops_executed=flops.executed(run, flops.even_fraction(run)),
        flops_dense_equivalent=flops.dense_equivalent(run),
    )


def _bytes_per_device(tree: object) -> int:
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))
