"""A layer's router: which groups its tokens belong to."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from focus_jax import config, routing


class Potential(nnx.Variable):
    """State of the balance `carried`: moved by the train step between optimizer steps, never by a gradient."""


class Routed(NamedTuple):
    """What a Focus layer's router made of a batch."""

    log_affinity_BTK: jax.Array
    probe_nats_B: jax.Array
    """The router's loss, summed over the sequence's probe rows; 0 without probes."""


class Router(nnx.Module):
    """W_g (D, R) and centroids (K, R), shared by all heads of the layer (arXiv 2604.03260, section 3)."""

    def __init__(self, focus: config.Focus, width: int, rngs: nnx.Rngs):
        self.focus = focus
        # The input is normed, so projected tokens have unit variance per channel and scores the wanted deviation.
        projection_std = width**-0.5
        centroid_std = focus.score_std * focus.temperature * focus.routing_width**-0.5
        shape_DR, shape_KR = (width, focus.routing_width), (focus.groups, focus.routing_width)
        self.projection_DR = nnx.Param(
            projection_std * jax.random.normal(rngs.router(), shape_DR), axes=("router_width", "routing")
        )
        self.centroids_KR = nnx.Param(
            centroid_std * jax.random.normal(rngs.router(), shape_KR), axes=("groups", "routing")
        )
        self.potential_K = Potential(jnp.zeros(focus.groups))

    def __call__(self, normed_BTD: jax.Array) -> jax.Array:
        """log affinity_BTK, float32."""
        score_BTK = routing.scores(
            normed_BTD, self.projection_DR[...], self.centroids_KR[...], temperature=self.focus.temperature
        )
        return routing.log_affinities(
            score_BTK,
            self.potential_K[...],
            balance=self.focus.balance,
            sinkhorn_rounds=self.focus.sinkhorn_rounds,
        )
