"""Everything of one model that changes while it trains."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from focus_jax import config
from focus_jax.model import Decoder, Potential
from focus_jax.training.guard import Guard, initial_guard


class TrainState(NamedTuple):
    """Plain nested dicts of arrays, so that a checkpoint names every array by its place in the model."""

    step: jax.Array
    """Steps done, int32, with those whose update was left out."""
    params: Any
    potentials: Any
    opt_state: optax.OptState
    guard: Guard


def build(run: config.Config) -> Decoder:
    """A model with its initial values. Routers draw from a stream of their own, so twins share all other values."""
    key = jax.random.key(run.seed)
    return Decoder(run, nnx.Rngs(params=jax.random.fold_in(key, 0), router=jax.random.fold_in(key, 1)))


def graph_of(run: config.Config) -> nnx.GraphDef:
    """The structure of the model without its arrays; `merge` puts the two together."""
    return nnx.split(nnx.eval_shape(lambda: build(run)))[0]


def merge(graph: nnx.GraphDef, params: Any, potentials: Any) -> Decoder:
    return nnx.merge(graph, params, potentials)


def initial_state(run: config.Config, optimizer: optax.GradientTransformation) -> TrainState:
    model = build(run)
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        potentials=nnx.to_pure_dict(nnx.state(model, Potential)),
        opt_state=optimizer.init(params),
        guard=initial_guard(),
    )
