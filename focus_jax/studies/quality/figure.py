"""Loss against tokens and against seconds, a line for each arm.

One seed is easier than another: an arm's line is dense attention's mean over all seeds plus the arm's mean difference
to it on the arm's own seeds, in the range of these differences. Seconds are those of the least disturbed of its runs.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from focus_jax.studies.results import Row

FORMATS = (".png", ".pdf", ".svg")

TOKENS, SECONDS, LOSS, _ = range(4)
"""Columns of a curve."""


def draw(rows: Sequence[Row], path: Path) -> None:
    """The format is that of the path's ending."""
    figure = Figure(figsize=(10, 5), layout="constrained")
    FigureCanvasAgg(figure)
    by_tokens, by_seconds = figure.subplots(1, 2, sharey=True)
    for label, tokens_C, seconds_C, loss_NC in lines(rows):
        _line(by_tokens, tokens_C, loss_NC, label)
        _line(by_seconds, seconds_C, loss_NC, label)
    by_tokens.set(xlabel="training tokens", ylabel="held-out nats per token")
    by_tokens.xaxis.set_major_formatter(EngFormatter())
    by_seconds.set(xlabel="seconds of training")
    figure.legend(*by_tokens.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=150)


def lines(rows: Sequence[Row]) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """(label, tokens_C, seconds_C, loss_NC) of every arm as it was trained, on the N seeds that dense attention with
    the same changes has too; C checkpoints."""
    for name, changes in dict.fromkeys((row["name"], row["changes"]) for row in rows):
        dense = {r["seed"]: _curve(r) for r in rows if (r["name"], r["changes"]) == ("dense", changes)}
        same = [r for r in rows if (r["name"], r["changes"]) == (name, changes) and r["seed"] in dense]
        if not same:
            continue
        curves_NCX = np.array([_curve(row) for row in same])
        differences_NC = (curves_NCX - np.array([dense[row["seed"]] for row in same]))[..., LOSS]
        label = " ".join((name, changes, "" if same[0]["readings"][0]["causal"] else "(NOT CAUSAL)")).strip()
        tokens_C, seconds_C = (curves_NCX[..., column].min(axis=0) for column in (TOKENS, SECONDS))
        yield label, tokens_C, seconds_C, np.mean(list(dense.values()), axis=0)[:, LOSS] + differences_NC


def _curve(row: Row) -> np.ndarray:
    return np.array(row["readings"][0]["curve"])


def _line(axes: Axes, x_C: np.ndarray, loss_NC: np.ndarray, label: str) -> None:
    """N seeds, C checkpoints."""
    (line,) = axes.plot(x_C, loss_NC.mean(axis=0), marker=".", label=label)
    axes.fill_between(x_C, loss_NC.min(axis=0), loss_NC.max(axis=0), alpha=0.2, color=line.get_color())
    axes.grid(alpha=0.3)
