"""Runs models over the held-out sample.

B batch · S sequences · T tokens · K groups · L Focus layers.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from focus_jax import config, routing
from focus_jax.accounting.pairs import dense_pairs
from focus_jax.evaluation.measures import Sample
from focus_jax.evaluation.readings import NamedReading
from focus_jax.model import Reading, computed_pairs, focus_layers
from focus_jax.parallel.batches import part_of_process, placed
from focus_jax.parallel.mesh import batch_shards
from focus_jax.training.loss import chunked_nats
from focus_jax.training.state import graph_of, merge


class Groups(NamedTuple):
    """What the layers' groups look like over the sample; the first axis of every array is the Focus layer."""

    statistics: routing.GroupStatistics
    best_LST: np.ndarray
    """Best group of every token."""


class Measurement(NamedTuple):
    model: config.ModelName
    reading: NamedReading
    nats_ST: np.ndarray
    kept_fraction: float
    """Query–key pairs computed, as a share of those of dense attention, mean over all layers."""
    groups: Groups | None
    """None for a dense model."""


class Evaluator:
    """One model of a run, compiled once per reading."""

    def __init__(self, name: config.ModelName, run: config.Config, sample: Sample, batch_size: int, mesh: Mesh):
        """`batch_size` is rounded up to what divides among the devices of the mesh."""
        self._name = name
        self._run = run
        self._graph = graph_of(run)
        self._sample = sample
        self._mesh = mesh
        shards = batch_shards(mesh)
        self._batch_size = math.ceil(batch_size / shards) * shards
        self._forward = jax.jit(
            partial(_forward, self._run, self._graph),
            static_argnames="reading",
            # Whole on every device, so that every process can read them.
            out_shardings=NamedSharding(mesh, PartitionSpec()),
        )

    def measure(self, params: Any, carried: Any, reading: NamedReading) -> Measurement:
        with jax.set_mesh(self._mesh):
            parts = [
                jax.device_get(self._forward(params, carried, inputs_BT, targets_BT, reading=reading.reading))
                for inputs_BT, targets_BT in self._batches()
            ]
        sequences = self._sample.inputs_ST.shape[0]
        nats_ST = np.concatenate([part.nats_BT for part in parts])[:sequences]
        layers = focus_layers(self._run)
        if not layers:
            return Measurement(self._name, reading, nats_ST, 1.0, None)
        layered = jax.tree.map(lambda *xs: np.concatenate(xs, axis=1)[:, :sequences], *(p.layered for p in parts))
        kept_fraction = self._kept_fraction(layered.kept_LB, nats_ST.shape[1])
        return Measurement(self._name, reading, nats_ST, kept_fraction, Groups(layered.statistics, layered.best_LBT))

    def _batches(self) -> Iterator[tuple[jax.Array, ...]]:
        """Batches of one shape; the last is filled up with sequences without targets."""
        part = part_of_process(self._mesh, self._batch_size)
        rows_here = self._batch_size // part.parts
        inputs_ST, targets_ST, _ = self._sample
        missing = -len(inputs_ST) % self._batch_size
        inputs_ST = np.pad(inputs_ST, ((0, missing), (0, 0)))
        targets_ST = np.pad(targets_ST, ((0, missing), (0, 0)), constant_values=-1)
        for first in range(0, len(inputs_ST), self._batch_size):
            start = first + part.number * rows_here
            rows = slice(start, start + rows_here)
            yield placed(self._mesh, (inputs_ST[rows], targets_ST[rows]))

    def _kept_fraction(self, kept_LS: np.ndarray, tokens: int) -> float:
        dense = dense_pairs(tokens)
        dense_layers = self._run.model.layers - len(kept_LS)
        return float((dense_layers + np.sum(np.mean(kept_LS, axis=1)) / dense) / self._run.model.layers)


class _Layered(NamedTuple):
    kept_LB: jax.Array
    statistics: routing.GroupStatistics
    best_LBT: jax.Array


class _Part(NamedTuple):
    nats_BT: jax.Array
    layered: _Layered | None


def _forward(
    run: config.Config,
    graph: nnx.GraphDef,
    params: Any,
    carried: Any,
    inputs_BT: jax.Array,
    targets_BT: jax.Array,
    *,
    reading: Reading | None,
) -> _Part:
    model = merge(graph, params, carried)
    normed_BTD, routed_layers = model.features(inputs_BT, reading)
    nats_BT = chunked_nats(run, model, normed_BTD, targets_BT)
    if not routed_layers:
        return _Part(nats_BT, None)
    assert isinstance(run.attention, config.Focus)
    assert reading is not None
    log_affinity_LBTK = jnp.stack([routed.log_affinity_BTK for routed in routed_layers])
    return _Part(
        nats_BT,
        _Layered(
            kept_LB=jax.lax.map(partial(computed_pairs, run.attention, reading), log_affinity_LBTK),
            statistics=jax.vmap(routing.group_statistics)(log_affinity_LBTK),
            best_LBT=jnp.argmax(log_affinity_LBTK, axis=-1).astype(jnp.uint8),
        ),
    )
