"""One model of a run while it trains: its state, its compiled step and the device time spent on it.

Letters: B batch, T tokens.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from focus_jax import config
from focus_jax.model import Reading, as_trained
from focus_jax.parallel.batches import batch_sharding
from focus_jax.parallel.mesh import check_heads
from focus_jax.training.checkpoints import Checkpoints
from focus_jax.training.loss import chunked_nats
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import TrainState, abstract_state, graph_of, initial_state, merge, state_shardings
from focus_jax.training.step import StepMetrics, accumulate, make_train_step, probe_rows


class Dispatched(NamedTuple):
    """A step that has been handed to the device."""

    learner: "Learner"
    step: int
    metrics: StepMetrics
    at: float


class Inspection(NamedTuple):
    """What a step consists of."""

    nats_BT: jax.Array
    """Loss of every target, before the update."""
    gradient_norms: dict[str, jax.Array]
    """Of every array, by its name."""


class Learner:
    """`run` is the config that this model is built from (the twin's own for the twin).

    Raises UserError where the model does not divide among the devices of the mesh.
    """

    def __init__(self, name: config.ModelName, run: config.Config, mesh: Mesh):
        check_heads(run.model, mesh)
        self.name = name
        self.run = run
        self.mesh = mesh
        self.graph = graph_of(run)
        self.seconds = 0.0
        """Device time of this model's steps so far, from ready to ready."""
        self._optimizer = make_optimizer(run)
        self._shardings = state_shardings(run, self._optimizer, mesh)
        self.state: TrainState

    def initialise(self) -> None:
        self.state = jax.jit(self._initial_state, out_shardings=self._shardings)()

    def abstract_state(self) -> TrainState:
        """Shapes and types, and where on the mesh."""
        return abstract_state(self.run, self._optimizer, self._shardings)

    def compile(self) -> None:
        """Compiles for the one batch shape of the run ahead of time, so that no later step can recompile."""
        readings = {as_trained(self.run.attention, done) for done in (0, self.run.training.steps)}
        self._steps = {reading: self.lowered(reading).compile() for reading in readings}

    def lowered(self, reading: Reading | None) -> jax.stages.Lowered:
        """The train step for the learner's mesh, whose devices need not be of this machine."""
        shape = (self.run.training.batch_size, self.run.training.sequence_length)
        tokens_BT = jax.ShapeDtypeStruct(shape, "int32", sharding=batch_sharding(self.mesh))
        step = jax.jit(
            make_train_step(self.run, self.graph, self._optimizer, reading),
            donate_argnums=0,
            out_shardings=(self._shardings, NamedSharding(self.mesh, PartitionSpec())),
        )
        with jax.set_mesh(self.mesh):
            return step.lower(self.abstract_state(), tokens_BT, tokens_BT)

    def dispatch(self, step: int, inputs_BT: jax.Array, targets_BT: jax.Array) -> Dispatched:
        """Hands step number `step` (from 1) to the device and returns without waiting for it."""
        at = time.perf_counter()
        compiled = self._steps[as_trained(self.run.attention, step - 1)]
        self.state, metrics = compiled(self.state, inputs_BT, targets_BT)
        return Dispatched(self, step, metrics, at)

    def inspect(self, step: int, inputs_BT: jax.Array, targets_BT: jax.Array) -> Inspection:
        """Looks at what step number `step` on a batch would be made of, without making it."""
        reading = as_trained(self.run.attention, step - 1)

        def look(state: TrainState, inputs_BT: jax.Array, targets_BT: jax.Array) -> Inspection:
            gradients = accumulate(self.run, self.graph, reading, state, inputs_BT, targets_BT).gradients
            model = merge(self.graph, state.params, state.carried)
            probes_BP = probe_rows(self.run, reading, state.step, inputs_BT)
            normed_BTD, _ = model.features(inputs_BT, reading, probes_BP)
            nats_BT = chunked_nats(self.run, model, normed_BTD, targets_BT)
            norms = {
                jax.tree_util.keystr(path, simple=True, separator="."): optax.tree.norm(gradient)
                for path, gradient in jax.tree.leaves_with_path(gradients)
            }
            return Inspection(nats_BT, norms)

        with jax.set_mesh(self.mesh):
            whole = NamedSharding(self.mesh, PartitionSpec())
            return jax.jit(look, out_shardings=whole)(self.state, inputs_BT, targets_BT)

    def _initial_state(self) -> TrainState:
        return initial_state(self.run, self._optimizer)


def restore(checkpoints: Checkpoints, step: int, learners: Sequence[Learner]) -> dict[str, Any]:
    """Sets learners to the state of a usable checkpoint; returns the progress stored with it."""
    abstract = {learner.name: learner.abstract_state() for learner in learners}
    states, progress = checkpoints.restore(step, abstract)
    for learner in learners:
        learner.state = states[learner.name]
        learner.seconds = progress["seconds"][learner.name]
    return progress
