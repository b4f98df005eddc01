"""Everything of one model that changes while it trains."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from focus_jax import config
from focus_jax.model import Carried, Decoder
from focus_jax.parallel.axes import axes_of, constrain_parameters, parameter_shardings
from focus_jax.parallel.mesh import AnyMesh
from focus_jax.training.guard import Guard, initial_guard

PARAMS_STREAM, ROUTER_STREAM, PROBES_STREAM = range(3)
"""Random streams of a run, apart from its data order."""


class TrainState(NamedTuple):
    """Plain nested dicts of arrays, so that a checkpoint names every array by its place in the model."""

    step: jax.Array
    """Steps done, int32, with those whose update was left out."""
    params: Any
    carried: Any
    """Of every router: potentials, and the centre of its tokens where scores="cosine"."""
    opt_state: optax.OptState
    guard: Guard


def build(run: config.Config) -> Decoder:
    """A model with its initial values. Routers draw from a stream of their own, so twins share all other values."""
    key = jax.random.key(run.seed)
    return Decoder(
        run, nnx.Rngs(params=jax.random.fold_in(key, PARAMS_STREAM), router=jax.random.fold_in(key, ROUTER_STREAM))
    )


def graph_of(run: config.Config) -> nnx.GraphDef:
    """The structure of the model without its arrays; `merge` puts the two together."""
    return nnx.split(nnx.eval_shape(lambda: build(run)))[0]


def merge(graph: nnx.GraphDef, params: Any, carried: Any) -> Decoder:
    model = nnx.merge(graph, params, carried)
    constrain_parameters(model)
    return model


def initial_state(run: config.Config, optimizer: optax.GradientTransformation) -> TrainState:
    model = build(run)
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        carried=nnx.to_pure_dict(nnx.state(model, Carried)),
        opt_state=optimizer.init(params),
        guard=initial_guard(),
    )


def parameter_axes(run: config.Config) -> Any:
    """Logical axes of every parameter, nested as TrainState.params."""
    return axes_of(nnx.state(nnx.eval_shape(lambda: build(run)), nnx.Param))


def state_shardings(run: config.Config, optimizer: optax.GradientTransformation, mesh: AnyMesh) -> Any:
    """How every array of the state lies on the mesh, a TrainState of shardings: moments as their parameters, everything
    else whole on every device.

    Raises UserError where a parameter cannot be divided.
    """
    abstract = jax.eval_shape(lambda: initial_state(run, optimizer))
    whole = NamedSharding(mesh, PartitionSpec())
    params = parameter_shardings(mesh, abstract.params, parameter_axes(run))
    return jax.tree.map(lambda _: whole, abstract)._replace(
        params=params,
        opt_state=optax.tree.map_params(
            optimizer,
            lambda _, sharding: sharding,
            abstract.opt_state,
            params,
            transform_non_params=lambda _: whole,
        ),
    )


def abstract_state(run: config.Config, optimizer: optax.GradientTransformation, shardings: Any) -> TrainState:
    """Shapes and types of the state, and where its arrays lie."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        jax.eval_shape(lambda: initial_state(run, optimizer)),
        shardings,
    )
