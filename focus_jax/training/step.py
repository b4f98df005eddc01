"""One optimizer step of one model.

An update that is not finite, or whose loss is a spike (config.Guard), is not applied: parameters, carried state and
moments stay as they were, and the step still counts. That is decided for each model alone: of twins, the other one
applies its own update to the same batch, as it would if it were trained apart.

Letters: B batch, T tokens, K groups, P probe rows, R routing width.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from focus_jax import config, routing
from focus_jax.accounting.pairs import dense_pairs
from focus_jax.model import Reading, Routed, computed_pairs, focus_layers
from focus_jax.parallel.axes import constrained
from focus_jax.training import guard
from focus_jax.training.loss import NO_TARGET, loss_sum
from focus_jax.training.optimizer import at_step, norms_apart, relative_schedule, settling_schedule
from focus_jax.training.state import PROBES_STREAM, TrainState, merge


class StepMetrics(NamedTuple):
    """Scalars on the device, read after the next step has been dispatched."""

    loss: jax.Array
    """Nats per valid token of the whole batch."""
    router_loss: jax.Array | None
    """Nats per probe row, summed over layers; None without probes."""
    kept_fraction: jax.Array
    """Pairs computed / dense pairs, mean over all layers and sequences."""
    grad_norm: jax.Array
    """Global norm before clipping, of everything but the routers."""
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


class TokenMeans(NamedTuple):
    """Over valid tokens, of one Focus layer: what its carried state follows."""

    share_K: jax.Array
    """Part of the tokens that each group took."""
    offset_R: jax.Array | None
    """Where the tokens lie from the carried centre; None where no centre is carried."""
    squared_offset: jax.Array | None


class BatchSums(NamedTuple):
    """What microbatches add up to."""

    loss: jax.Array
    router_loss: jax.Array
    gradients: Any
    tokens: list[TokenMeans]
    """Of every Focus layer."""
    pairs: jax.Array
    """Computed by Focus layers."""


class Microbatch(NamedTuple):
    inputs_BT: jax.Array
    targets_BT: jax.Array
    probes_BP: jax.Array | None
    """Positions of the probe rows; None where the router does not learn from them."""


TrainStep = Callable[[TrainState, jax.Array, jax.Array], tuple[TrainState, StepMetrics]]


def make_train_step(
    run: config.Config, graph: nnx.GraphDef, optimizer: optax.GradientTransformation, reading: Reading | None
) -> TrainStep:
    """step(state, inputs_BT, targets_BT) → (state, metrics): a pure function, to be jitted by the caller."""
    schedule, settling = relative_schedule(run), settling_schedule(run)

    def train_step(state: TrainState, inputs_BT: jax.Array, targets_BT: jax.Array) -> tuple[TrainState, StepMetrics]:
        sums = accumulate(run, graph, reading, state, inputs_BT, targets_BT)
        grad_norm, router_norm = norms_apart(sums.gradients)
        finite = jnp.isfinite(sums.loss) & jnp.isfinite(grad_norm) & jnp.isfinite(router_norm)
        deviations = guard.deviations(state.guard, sums.loss, run.guard.spike_window)
        spike = deviations > (run.guard.spike_deviations or jnp.inf)
        applied = finite & ~spike
        updated, skipped = _updated(run, optimizer, settling, state, sums), _skipped(state)
        # A choice and not a branch, whose results would be copied.
        new_state = jax.tree.map(partial(jnp.where, applied), updated, skipped)
        return new_state, StepMetrics(
            loss=sums.loss,
            router_loss=sums.router_loss if _learns_from_probes(run.attention, reading) else None,
            kept_fraction=_kept_fraction(run, sums.pairs, *inputs_BT.shape),
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
    run: config.Config,
    graph: nnx.GraphDef,
    reading: Reading | None,
    state: TrainState,
    inputs_BT: jax.Array,
    targets_BT: jax.Array,
) -> BatchSums:
    """Loss, gradients and group shares of the batch, each divided by the valid tokens (or probe rows) of the whole
    batch up front, so that any split into microbatches sums to the same values."""
    batch = Microbatch(inputs_BT, targets_BT, probe_rows(run, reading, state.step, inputs_BT))
    valid_tokens = jnp.sum(targets_BT != NO_TARGET)
    probes = 1 if batch.probes_BP is None else max(batch.probes_BP.size, 1)
    compute = jax.value_and_grad(
        partial(_part, run, graph, reading, valid_tokens=valid_tokens, probes=probes), has_aux=True
    )
    parts = jax.tree.map(partial(_split, run.training.microbatches), batch)

    def add(sums: BatchSums, microbatch: Microbatch) -> tuple[BatchSums, None]:
        return jax.tree.map(jnp.add, sums, sums_of(microbatch)), None

    def sums_of(microbatch: Microbatch) -> BatchSums:
        (_, (loss, router_loss, tokens, pairs)), gradients = compute(state.params, state.carried, microbatch)
        return BatchSums(loss, router_loss, gradients, tokens, pairs)

    shapes = jax.eval_shape(sums_of, jax.tree.map(lambda x: x[0], parts))
    sums, _ = jax.lax.scan(add, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), parts)
    return sums


def _part(
    run: config.Config,
    graph: nnx.GraphDef,
    reading: Reading | None,
    params: Any,
    carried: Any,
    batch: Microbatch,
    *,
    valid_tokens: jax.Array,
    probes: int,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, list[TokenMeans], jax.Array]]:
    """This microbatch's part of what is minimised, and of the loss, the routers' loss, the means over tokens and the
    pairs that are computed."""
    model = merge(graph, params, carried)
    normed_BTD, layers = model.features(batch.inputs_BT, reading, batch.probes_BP)
    loss = loss_sum(run, model, normed_BTD, batch.targets_BT) / valid_tokens
    router_loss = sum((jnp.sum(routed.probe_nats_B) for routed in layers), jnp.zeros(())) / probes
    weight_BT1 = (batch.targets_BT != NO_TARGET)[..., None] / valid_tokens
    tokens = [jax.lax.stop_gradient(_token_means(weight_BT1, routed, reading)) for routed in layers]
    return loss + router_loss, (loss, router_loss, tokens, _pairs(run, reading, layers, batch.probes_BP))


def _token_means(weight_BT1: jax.Array, routed: Routed, reading: Reading | None) -> TokenMeans:
    def mean(x_BTN: jax.Array) -> jax.Array:
        return jnp.sum(x_BTN * weight_BT1, axis=(0, 1))

    share_K = mean(_assigned(routed, reading))
    if routed.offset_BTR is None:
        return TokenMeans(share_K, None, None)
    return TokenMeans(share_K, mean(routed.offset_BTR), jnp.sum(mean(jnp.square(routed.offset_BTR))))


def _pairs(
    run: config.Config, reading: Reading | None, layers: Sequence[Routed], probes_BP: jax.Array | None
) -> jax.Array:
    """Of all Focus layers."""
    if isinstance(run.attention, config.Dense) or reading is None:
        return jnp.zeros(())
    count = partial(computed_pairs, run.attention, reading, probes_BP=probes_BP)
    return sum((jnp.sum(count(jax.lax.stop_gradient(r.log_affinity_BTK))) for r in layers), jnp.zeros(()))


def _kept_fraction(run: config.Config, pairs: jax.Array, sequences: int, tokens: int) -> jax.Array:
    focus = pairs / float(sequences * dense_pairs(tokens))
    return (run.model.layers - len(focus_layers(run)) + focus) / run.model.layers


def _assigned(routed: Routed, reading: Reading | None) -> jax.Array:
    """What each token adds to the groups (B, T, K): its affinities, or itself to its best group where the pattern is
    hard; equal soft mass does not make equal counts."""
    log_affinity_BTK = routed.log_affinity_BTK
    if reading is not None and reading.routing == "hard":
        return jax.nn.one_hot(jnp.argmax(log_affinity_BTK, axis=-1), log_affinity_BTK.shape[-1])
    return jnp.exp(log_affinity_BTK)


def _learns_from_probes(attention: config.Dense | config.Focus, reading: Reading | None) -> bool:
    return (
        isinstance(attention, config.Focus)
        and attention.router == "distill"
        and reading is not None
        and reading.routing == "hard"
    )


def probe_rows(run: config.Config, reading: Reading | None, step: jax.Array, inputs_BT: jax.Array) -> jax.Array | None:
    """Positions (B, P) of the rows that teach the routers at a step, None where nothing is learned from them. Drawn for
    a sequence by its place in the batch and the step, so that microbatches and devices change nothing."""
    if not isinstance(run.attention, config.Focus) or not _learns_from_probes(run.attention, reading):
        return None
    batch, tokens = inputs_BT.shape
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(run.seed), PROBES_STREAM), step)
    keys_B = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(batch))
    return routing.probe_positions(keys_B, tokens=tokens, window=run.attention.window, probes=run.attention.probes)


def _updated(
    run: config.Config,
    optimizer: optax.GradientTransformation,
    settling: optax.Schedule,
    state: TrainState,
    sums: BatchSums,
) -> TrainState:
    updates, opt_state = optimizer.update(sums.gradients, state.opt_state, state.params)
    return TrainState(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        carried=_next_carried(run, settling(state.step), state.carried, sums.tokens),
        opt_state=opt_state,
        guard=guard.applied(state.guard, sums.loss, run.guard.spike_window),
    )


def _skipped(state: TrainState) -> TrainState:
    step = state.step + 1
    return state._replace(step=step, opt_state=at_step(state.opt_state, step), guard=guard.skipped(state.guard))


def _next_carried(run: config.Config, relative_rate: jax.Array, carried: Any, tokens: Sequence[TokenMeans]) -> Any:
    """Potentials move where they are what balances the groups; a centre follows its tokens."""
    if isinstance(run.attention, config.Dense):
        return carried
    rate = run.attention.balance_rate * relative_rate if run.attention.balance == "carried" else 0.0

    def moved(of_router: dict[str, jax.Array], means: TokenMeans) -> dict[str, jax.Array]:
        next_ = {"potential_K": routing.next_potential(of_router["potential_K"], means.share_K, rate)}
        if means.offset_R is not None and means.squared_offset is not None:
            next_["centre_R"], next_["centre_tokens"] = routing.next_centre(
                of_router["centre_R"], means.offset_R, means.squared_offset
            )
        return next_

    routers, structure = jax.tree.flatten(carried, is_leaf=lambda part: "potential_K" in part)
    return jax.tree.unflatten(structure, [moved(*layer) for layer in zip(routers, tokens, strict=True)])


def _split(microbatches: int, x_B_: jax.Array) -> jax.Array:
    return constrained(
        x_B_.reshape(microbatches, len(x_B_) // microbatches, x_B_.shape[1]), "microbatches", "batch", "tokens"
    )
