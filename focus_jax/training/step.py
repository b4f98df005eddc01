"""One optimizer step of one model.

Letters: B batch, T tokens, G microbatches, K groups, L Focus layers.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from focus_jax import config, routing
from focus_jax.training.loss import NO_TARGET, token_nats
from focus_jax.training.optimizer import relative_schedule
from focus_jax.training.state import TrainState, merge


class StepMetrics(NamedTuple):
    """Scalars on the device, read after the next step has been dispatched."""

    loss: jax.Array
    """Nats per valid token of the whole batch."""
    grad_norm: jax.Array
    """Global norm before clipping."""
    lr: jax.Array
    applied: jax.Array
    """False where loss or gradient was not finite; the state is then the one before the step."""


class _Sums(NamedTuple):
    """What microbatches add up to."""

    loss: jax.Array
    gradients: Any
    share_LK: jax.Array


TrainStep = Callable[[TrainState, jax.Array, jax.Array], tuple[TrainState, StepMetrics]]


def make_train_step(run: config.Config, graph: nnx.GraphDef, optimizer: optax.GradientTransformation) -> TrainStep:
    """step(state, inputs_BT, targets_BT) → (state, metrics): a pure function, to be jitted by the caller."""
    schedule = relative_schedule(run)

    def train_step(state: TrainState, inputs_BT: jax.Array, targets_BT: jax.Array) -> tuple[TrainState, StepMetrics]:
        sums = _accumulate(run, graph, state, inputs_BT, targets_BT)
        grad_norm = optax.tree.norm(sums.gradients)
        finite = jnp.isfinite(sums.loss) & jnp.isfinite(grad_norm)
        update = partial(_updated, run, optimizer, schedule)
        new_state = jax.lax.cond(finite, update, lambda state, sums: state, state, sums)
        lr = run.optimizer.peak_lr * schedule(state.step)
        return new_state, StepMetrics(sums.loss, grad_norm, lr, finite)

    return train_step


def _accumulate(
    run: config.Config, graph: nnx.GraphDef, state: TrainState, inputs_BT: jax.Array, targets_BT: jax.Array
) -> _Sums:
    """Loss, gradients and group shares of the batch, each divided by the valid tokens of the whole batch up front, so
    that any split into microbatches sums to the same values."""
    valid_tokens = jnp.sum(targets_BT != NO_TARGET)
    inputs_GBT, targets_GBT = (_split(x, run.training.microbatches) for x in (inputs_BT, targets_BT))
    compute = jax.value_and_grad(partial(_part, graph), has_aux=True)

    def add(sums: _Sums, microbatch: tuple[jax.Array, jax.Array]) -> tuple[_Sums, None]:
        (loss, share_LK), gradients = compute(state.params, state.potentials, *microbatch, valid_tokens)
        return jax.tree.map(jnp.add, sums, _Sums(loss, gradients, share_LK)), None

    shapes = jax.eval_shape(compute, state.params, state.potentials, inputs_GBT[0], targets_GBT[0], valid_tokens)
    (loss, share_LK), gradients = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    sums, _ = jax.lax.scan(add, _Sums(loss, gradients, share_LK), (inputs_GBT, targets_GBT))
    return sums


def _part(
    graph: nnx.GraphDef,
    params: Any,
    potentials: Any,
    inputs_BT: jax.Array,
    targets_BT: jax.Array,
    valid_tokens: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """This microbatch's part of the loss and of the groups' shares."""
    logits_BTV, log_affinities = merge(graph, params, potentials)(inputs_BT)
    loss = jnp.sum(token_nats(logits_BTV, targets_BT)) / valid_tokens
    weight_BT1 = (targets_BT != NO_TARGET)[..., None] / valid_tokens
    shares = [jnp.sum(jnp.exp(log_affinity_BTK) * weight_BT1, axis=(0, 1)) for log_affinity_BTK in log_affinities]
    return loss, jax.lax.stop_gradient(jnp.stack(shares) if shares else jnp.zeros((0, 0)))


def _updated(
    run: config.Config,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    state: TrainState,
    sums: _Sums,
) -> TrainState:
    updates, opt_state = optimizer.update(sums.gradients, state.opt_state, state.params)
    return TrainState(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        potentials=_next_potentials(run, schedule(state.step), state.potentials, sums.share_LK),
        opt_state=opt_state,
    )


def _next_potentials(run: config.Config, relative_lr: jax.Array, potentials: Any, share_LK: jax.Array) -> Any:
    """Only the balance `carried` keeps potentials; they settle as the learning rate falls."""
    if isinstance(run.attention, config.Dense) or run.attention.balance != "carried":
        return potentials
    potentials_of_layers, structure = jax.tree.flatten(potentials)
    rate = run.attention.balance_rate * relative_lr
    moved = [
        routing.next_potential(v_K, share_K, rate) for v_K, share_K in zip(potentials_of_layers, share_LK, strict=True)
    ]
    return jax.tree.unflatten(structure, moved)


def _split(x_BT: jax.Array, microbatches: int) -> jax.Array:
    return x_BT.reshape(microbatches, -1, *x_BT.shape[1:])
