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
    projected_BTR: jax.Array
    """The tokens as they are compared with the centroids."""
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
        if focus.scores == "cosine":
            self.centre_R = Carried(jnp.zeros(focus.routing_width))

    def __call__(self, normed_BTD: jax.Array) -> tuple[jax.Array, jax.Array]:
        """log affinity_BTK and the projected tokens (B, T, R), float32."""
        focus = self.focus
        projected_BTR = routing.projected(normed_BTD, self.projection_DR[...])
        log_affinity_BTK = routing.log_affinities(
            self._scores(projected_BTR),
            self.potential_K[...],
            balance=focus.balance,
            sinkhorn_rounds=focus.sinkhorn_rounds,
        )
        return log_affinity_BTK, projected_BTR

    def _scores(self, projected_BTR: jax.Array) -> jax.Array:
        centroids_KR = self.centroids_KR[...]
        if self.focus.scores == "dot":
            return routing.dot_scores(projected_BTR, centroids_KR, self.focus.temperature)
        return routing.cosine_scores(projected_BTR, centroids_KR, self.centre_R[...], self.focus.score_std)
