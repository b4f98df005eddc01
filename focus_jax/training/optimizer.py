"""AdamW (arXiv 1711.05101) with a warm-up, a decay to the end of the run, and a learning rate for routers."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from focus_jax import config

ROUTER = "router"


def relative_schedule(run: config.Config) -> optax.Schedule:
    """The learning rate of a step (from 0) as a share of the peak."""
    return _schedule(run, run.optimizer.final_lr_fraction)


def settling_schedule(run: config.Config) -> optax.Schedule:
    """The same shape, ending at 0: the potentials' step size as a share of attention.balance_rate. Groups that go on
    moving until the end cost accuracy (EXPERIMENTS.md)."""
    return _schedule(run, 0.0)


def _schedule(run: config.Config, final_fraction: float) -> optax.Schedule:
    optimizer, steps = run.optimizer, run.training.steps
    decay_steps = optimizer.decay_steps or steps - optimizer.warmup_steps
    stable_until = steps - decay_steps

    def schedule(step: jax.Array) -> jax.Array:
        warm_up = jnp.minimum((step + 1) / max(optimizer.warmup_steps, 1), 1.0)
        progress = jnp.clip((step - stable_until) / max(decay_steps - 1, 1), 0.0, 1.0)
        fallen = (1 - jnp.cos(jnp.pi * progress)) / 2 if optimizer.decay == "cosine" else progress
        return warm_up * (1 - (1 - final_fraction) * fallen)

    return schedule


def make_optimizer(run: config.Config) -> optax.GradientTransformation:
    """Clips by the global norm (routers apart from the rest), then AdamW; weight decay on matrices and embeddings, not
    on router or vectors."""
    optimizer = run.optimizer
    schedule = relative_schedule(run)
    return optax.chain(
        optax.masked(optax.clip_by_global_norm(optimizer.clip_norm), unrouted),
        optax.masked(optax.clip_by_global_norm(optimizer.clip_norm), routed),
        optax.scale_by_adam(b1=optimizer.beta1, b2=optimizer.beta2, eps=optimizer.epsilon),
        optax.add_decayed_weights(optimizer.weight_decay, mask=decayed),
        optax.masked(optax.scale(optimizer.router_lr_multiplier), routed),
        optax.scale_by_schedule(lambda step: -optimizer.peak_lr * schedule(step)),
    )


def norms_apart(gradients: Any) -> tuple[jax.Array, jax.Array]:
    """Global norm of everything but the routers, and of the routers (0 in a dense model)."""
    squared = [jnp.zeros(()), jnp.zeros(())]
    for path, gradient in jax.tree.leaves_with_path(gradients):
        squared[_is_router(path)] += jnp.sum(jnp.square(gradient))
    return jnp.sqrt(squared[0]), jnp.sqrt(squared[1])


def at_step(opt_state: optax.OptState, step: jax.Array) -> optax.OptState:
    """The same moments with the schedule at another step: a step whose update is left out takes its turn all the same,
    so that twins have the same learning rate on the same batch."""

    def moved(part: Any) -> Any:
        return optax.ScaleByScheduleState(step) if _is_schedule(part) else part

    return jax.tree.map(moved, opt_state, is_leaf=_is_schedule)


def decayed(params: Any) -> Any:
    return jax.tree.map_with_path(lambda path, leaf: leaf.ndim > 1 and not _is_router(path), params)


def routed(params: Any) -> Any:
    return jax.tree.map_with_path(lambda path, leaf: _is_router(path), params)


def unrouted(params: Any) -> Any:
    return jax.tree.map_with_path(lambda path, leaf: not _is_router(path), params)


def _is_schedule(part: Any) -> bool:
    return isinstance(part, optax.ScaleByScheduleState)


def _is_router(path: tuple[Any, ...]) -> bool:
    return any(getattr(key, "key", None) == ROUTER for key in path)
