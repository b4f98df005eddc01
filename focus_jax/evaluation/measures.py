"""Figures made from the losses of single tokens, with the uncertainty that the sampling of text leaves.

Tokens of one document are not independent, so documents are the sampling unit everywhere (clustered standard errors).
S sequences · T positions.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from scipy import stats


class Sample(NamedTuple):
    """The held-out tokens that losses belong to."""

    inputs_ST: np.ndarray
    targets_ST: np.ndarray
    """−1 where there is none."""
    documents_ST: np.ndarray
    """Number of the document that each target is from."""

    @property
    def valid_ST(self) -> np.ndarray:
        return self.targets_ST >= 0


class Estimate(NamedTuple):
    mean: float
    stderr: float | None
    """None where all tokens are of one document."""
    ci95: tuple[float, float] | None
    """Student's t with one degree of freedom fewer than documents."""


def estimate(values_ST: np.ndarray, sample: Sample, where_T: np.ndarray | None = None) -> Estimate:
    """Mean over the valid tokens (at the positions `where_T`), standard error clustered by document.

    The linearised ratio estimator: Σ over documents of (Σ of the document's residuals)², times G/(G−1) for G documents.
    """
    chosen_ST = sample.valid_ST if where_T is None else sample.valid_ST & where_T
    values = values_ST[chosen_ST].astype(np.float64)
    if not values.size:
        return Estimate(math.nan, None, None)
    mean = values.mean()
    _, cluster = np.unique(sample.documents_ST[chosen_ST], return_inverse=True)
    residuals = np.bincount(cluster, weights=values - mean)
    clusters = residuals.size
    if clusters < 2:
        return Estimate(mean, None, None)
    stderr = math.sqrt(np.sum(residuals**2) * clusters / (clusters - 1)) / values.size
    half_width = stats.t.ppf(0.975, clusters - 1) * stderr
    return Estimate(mean, stderr, (mean - half_width, mean + half_width))


def perplexity(nats: float) -> float:
    """exp(nats), infinite where that is more than a float can hold."""
    with np.errstate(over="ignore"):
        return float(np.exp(nats))


def within_window(tokens: int, window: int) -> np.ndarray:
    """Positions (T,) from which every earlier token is within the window."""
    return np.arange(tokens) <= window


def by_position(nats_ST: np.ndarray, sample: Sample) -> list[list[float]]:
    """[first position, mean loss] of bins that double in width: 0…15, 16…31, 32…63, …"""
    tokens = nats_ST.shape[1]
    edges = [0, *(16 * 2**n for n in range(32) if 16 * 2**n < tokens), tokens]
    positions_T = np.arange(tokens)
    bins = []
    for first, end in itertools.pairwise(edges):
        inside_ST = sample.valid_ST & (positions_T >= first) & (positions_T < end)
        if inside_ST.any():
            bins.append([first, float(nats_ST[inside_ST].astype(np.float64).mean())])
    return bins
