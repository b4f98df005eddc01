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
    offset_BTR: jax.Array | None
    """The projected tokens less the carried centre; None where no centre is carried."""
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
            self.centre_tokens = Carried(jnp.ones(()))

    def __call__(self, normed_BTD: jax.Array) -> Routed:
        """In float32, without probe rows."""
        focus, centroids_KR = self.focus, self.centroids_KR[...]
        projected_BTR = routing.projected(normed_BTD, self.projection_DR[...])
        if focus.scores == "dot":
            offset_BTR = None
            score_BTK = routing.dot_scores(projected_BTR, centroids_KR, focus.temperature)
        else:
            offset_BTR = projected_BTR - self.centre_R[...]
            score_BTK = routing.cosine_scores(
                projected_BTR, centroids_KR, self.centre_R[...], self.centre_tokens[...], focus.score_std
            )
        log_affinity_BTK = routing.log_affinities(
            score_BTK, self.potential_K[...], balance=focus.balance, sinkhorn_rounds=focus.sinkhorn_rounds
        )
        return Routed(log_affinity_BTK, offset_BTR, jnp.zeros(len(normed_BTD)))
