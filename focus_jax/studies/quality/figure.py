"""Loss against tokens and against seconds, a line for each arm: the mean over its seeds and their range, at the median
of their seconds (a run may have been paused)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from focus_jax.studies.results import Row

TOKENS, SECONDS, LOSS, _ = range(4)
"""Columns of a curve."""


def draw(rows: Sequence[Row], path: Path) -> None:
    """Every arm as it was trained. The format is that of the path's ending."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    by_tokens, by_seconds = figure.subplots(1, 2, sharey=True)
    for name, changes in dict.fromkeys((row["name"], row["changes"]) for row in rows):
        curves_NCX = np.array(
            [row["readings"][0]["curve"] for row in rows if (row["name"], row["changes"]) == (name, changes)]
        )
        label = " ".join((name, changes)).strip()
        _line(by_tokens, curves_NCX, TOKENS, label)
        _line(by_seconds, curves_NCX, SECONDS, label)
    by_tokens.set(xlabel="training tokens", ylabel="held-out nats per token")
    by_tokens.xaxis.set_major_formatter(EngFormatter())
    by_seconds.set(xlabel="seconds of training")
    by_tokens.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _line(axes: Axes, curves_NCX: np.ndarray, column: int, label: str) -> None:
    """N seeds, C checkpoints, X columns."""
    x_C, loss_NC = np.median(curves_NCX[..., column], axis=0), curves_NCX[..., LOSS]
    (line,) = axes.plot(x_C, loss_NC.mean(axis=0), marker=".", label=label)
    axes.fill_between(x_C, loss_NC.min(axis=0), loss_NC.max(axis=0), alpha=0.2, color=line.get_color())
    axes.grid(alpha=0.3)
