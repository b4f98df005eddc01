"""One optimizer step of one model.

An update that is not finite, or whose loss is a spike (config.Guard), is not applied: parameters, potentials and
moments stay as they were, and the step still counts. That is decided for each model alone: of twins, the other one
applies its own update to the same batch, as it would if it were trained apart.

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
from focus_jax.parallel.axes import constrained
from focus_jax.training import guard
from focus_jax.training.loss import NO_TARGET, loss_sum
from focus_jax.training.optimizer import at_step, relative_schedule
from focus_jax.training.state import TrainState, merge


class StepMetrics(NamedTuple):
    """Scalars on the device, read after the next step has been dispatched."""

    loss: jax.Array
    """Nats per valid token of the whole batch."""
    grad_norm: jax.Array
    """Global norm before clipping."""
    lr: jax.Array
    applied: jax.Array
    """False where the update was left out."""
    finite: jax.Array
    """Both loss and gradient norm."""
    deviations: jax.Array
    """Standard deviations of the loss above the recent mean; 0 before there is one."""
    skipped: jax.Array
    """Updates left out so far, this one included."""
    skipped_in_a_row: jax.Array


class BatchSums(NamedTuple):
    """What microbatches add up to."""

    loss: jax.Array
    gradients: Any
    share_LK: jax.Array


TrainStep = Callable[[TrainState, jax.Array, jax.Array], tuple[TrainState, StepMetrics]]


def make_train_step(run: config.Config, graph: nnx.GraphDef, optimizer: optax.GradientTransformation) -> TrainStep:
    """step(state, inputs_BT, targets_BT) → (state, metrics): a pure function, to be jitted by the caller."""
    schedule = relative_schedule(run)

    def train_step(state: TrainState, inputs_BT: jax.Array, targets_BT: jax.Array) -> tuple[TrainState, StepMetrics]:
        sums = accumulate(run, graph, state, inputs_BT, targets_BT)
        grad_norm = optax.tree.norm(sums.gradients)
        finite = jnp.isfinite(sums.loss) & jnp.isfinite(grad_norm)
        deviations = guard.deviations(state.guard, sums.loss, run.guard.spike_window)
        spike = deviations > (run.guard.spike_deviations or jnp.inf)
        applied = finite & ~spike
        new_state = jax.lax.cond(applied, partial(_updated, run, optimizer, schedule), _skipped, state, sums)
        return new_state, StepMetrics(
            loss=sums.loss,
            grad_norm=grad_norm,
            lr=run.optimizer.peak_lr * schedule(state.step),
            applied=applied,
            finite=finite,
            deviations=deviations,
            skipped=new_state.guard.skipped,
            skipped_in_a_row=new_state.guard.skipped_in_a_row,
        )

    return train_step


def accumulate(
    run: config.Config, graph: nnx.GraphDef, state: TrainState, inputs_BT: jax.Array, targets_BT: jax.Array
) -> BatchSums:
    """Loss, gradients and group shares of the batch, each divided by the valid tokens of the whole batch up front, so
    that any split into microbatches sums to the same values."""
    valid_tokens = jnp.sum(targets_BT != NO_TARGET)
    inputs_GBT, targets_GBT = (_split(x, run.training.microbatches) for x in (inputs_BT, targets_BT))
    compute = jax.value_and_grad(partial(_part, run, graph), has_aux=True)

    def add(sums: BatchSums, microbatch: tuple[jax.Array, jax.Array]) -> tuple[BatchSums, None]:
        (loss, share_LK), gradients = compute(state.params, state.potentials, *microbatch, valid_tokens)
        return jax.tree.map(jnp.add, sums, BatchSums(loss, gradients, share_LK)), None

    shapes = jax.eval_shape(compute, state.params, state.potentials, inputs_GBT[0], targets_GBT[0], valid_tokens)
    (loss, share_LK), gradients = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    sums, _ = jax.lax.scan(add, BatchSums(loss, gradients, share_LK), (inputs_GBT, targets_GBT))
    return sums


def _part(
    run: config.Config,
    graph: nnx.GraphDef,
    params: Any,
    potentials: Any,
    inputs_BT: jax.Array,
    targets_BT: jax.Array,
    valid_tokens: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """This microbatch's part of the loss and of the groups' shares."""
    model = merge(graph, params, potentials)
    normed_BTD, log_affinities = model.features(inputs_BT)
    loss = loss_sum(run, model, normed_BTD, targets_BT) / valid_tokens
    weight_BT1 = (targets_BT != NO_TARGET)[..., None] / valid_tokens
    shares = [jnp.sum(jnp.exp(log_affinity_BTK) * weight_BT1, axis=(0, 1)) for log_affinity_BTK in log_affinities]
    return loss, jax.lax.stop_gradient(jnp.stack(shares) if shares else jnp.zeros((0, 0)))


def _updated(
    run: config.Config,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    state: TrainState,
    sums: BatchSums,
) -> TrainState:
    updates, opt_state = optimizer.update(sums.gradients, state.opt_state, state.params)
    return TrainState(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        potentials=_next_potentials(run, schedule(state.step), state.potentials, sums.share_LK),
        opt_state=opt_state,
        guard=guard.applied(state.guard, sums.loss, run.guard.spike_window),
    )


def _skipped(state: TrainState, sums: BatchSums) -> TrainState:
    step = state.step + 1
    return state._replace(step=step, opt_state=at_step(state.opt_state, step), guard=guard.skipped(state.guard))


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
    return constrained(x_BT.reshape(microbatches, -1, *x_BT.shape[1:]), "microbatches", "batch", "tokens")
