"""A layer's router: which groups its tokens belong to."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from focus_jax import config, routing


class Carried(nnx.Variable):
    """State that the train step moves between optimizer steps, never a gradient."""


class Routed(NamedTuple):
    """What a Focus layer's router made of a batch."""

    log_affinity_BTK: jax.Array
    probe_nats_B: jax.Array
    """The router's loss, summed over the sequence's probe rows; 0 without probes."""


class Router(nnx.Module):
    """W_g (D, R) and centroids (K, R), shared by all heads of the layer (arXiv 2604.03260, section 3)."""

    def __init__(self, focus: config.Focus, width: int, rngs: nnx.Rngs):
        self.focus = focus
        # The input is normed, so projected tokens start with unit variance per channel.
        projection_std = width**-0.5
        centroid_std = focus.routing_width**-0.5
        if focus.scores == "dot":
            centroid_std *= focus.score_std * focus.temperature
        shape_DR, shape_KR = (width, focus.routing_width), (focus.groups, focus.routing_width)
        self.projection_DR = nnx.Param(
            projection_std * jax.random.normal(rngs.router(), shape_DR), axes=("router_width", "routing")
        )
        self.centroids_KR = nnx.Param(
            centroid_std * jax.random.normal(rngs.router(), shape_KR), axes=("groups", "routing")
        )
        self.potential_K = Carried(jnp.zeros(focus.groups))

    def __call__(self, normed_BTD: jax.Array) -> jax.Array:
        """log affinity_BTK, float32."""
        return routing.log_affinities(
            self._scores(normed_BTD),
            self.potential_K[...],
            balance=self.focus.balance,
            sinkhorn_rounds=self.focus.sinkhorn_rounds,
        )

    def _scores(self, normed_BTD: jax.Array) -> jax.Array:
        focus, centroids_KR = self.focus, self.centroids_KR[...]
        projected_BTR = routing.projected(normed_BTD, self.projection_DR[...])
        if focus.scores == "dot":
            return routing.dot_scores(projected_BTR, centroids_KR, focus.temperature)
        return routing.cosine_scores(projected_BTR, centroids_KR, focus.score_std)
