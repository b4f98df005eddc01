"""Which figures the report of a run has, and the series in them."""

import statistics
from collections.abc import Callable, Iterable

import numpy as np

from focus_jax.evaluation.report.figures import SERIES_COLOURS, Line, Plot, Style
from focus_jax.evaluation.report.record import History, RunRecord
from focus_jax.telemetry.readings import LoggedReading

DENSE, FOCUS, FIRST_HARD = 0, 1, 2
POINTS_PER_LINE = 200
WARM_UP_SHARE = 0.04
"""The first part of training, whose losses may run out of the frame so that the rest can be read."""


def styles(readings: Iterable[LoggedReading]) -> dict[LoggedReading, Style]:
    """One colour per model and top_k; the gated reading of a hard pattern is dashed."""
    readings = list(readings)
    top_ks = sorted({reading.top_k for reading in readings if reading.top_k is not None})
    colours = {top_k: FIRST_HARD + number for number, top_k in enumerate(top_ks)}

    def style(reading: LoggedReading) -> Style:
        if reading.model == "dense":
            return Style(DENSE)
        if reading.top_k is None:
            return Style(FOCUS)
        return Style(colours[reading.top_k] % SERIES_COLOURS, dashed=reading.gate is not None)

    return {reading: style(reading) for reading in readings}


def of_training(run: RunRecord) -> list[Plot]:
    lines, tops = [], []
    for model, history in run.training().items():
        rows = [row for row in history if row["loss"] is not None]
        if not rows:
            continue
        tokens, losses = _averaged(_values(rows, "tokens"), _values(rows, "loss"))
        lines.append(Line(model, Style(DENSE if model == "dense" else FOCUS), tokens, losses))
        tops.append(losses[tokens >= WARM_UP_SHARE * tokens[-1]].max())
    return (
        [Plot("training-loss", "Training loss", lines, "tokens", "nats per token", y_top=1.03 * max(tops))]
        if lines
        else []
    )


def of_evaluation(run: RunRecord) -> list[Plot]:
    evaluations = _evaluations(run)
    if not evaluations:
        return []
    style = styles(evaluations)
    by_tokens = [
        Line(reading.name, style[reading], _values(rows, "tokens"), _values(rows, "ppl"), marker="o")
        for reading, rows in evaluations.items()
    ]
    figures = [Plot("perplexity-tokens", "Held-out perplexity", by_tokens, "tokens", "perplexity", log_y=True)]
    if run.comparisons():
        figures.append(_differences(run))
    if run.training():
        figures.append(_perplexity_by_time(run))
    return figures


def by_position(run: RunRecord) -> list[Plot]:
    """Loss by position at the last checkpoint, and where in the sequence each reading gains and loses on dense."""
    last = {reading: rows[-1] for reading, rows in _evaluations(run).items() if rows[-1].get("loss_by_position")}
    if not last:
        return []
    style = styles(last)
    length = run.config.training.sequence_length
    bins = {reading: _at_bin_centres(row["loss_by_position"], length) for reading, row in last.items()}
    lines = [Line(reading.name, style[reading], x, y, marker="o") for reading, (x, y) in bins.items()]
    figures = [_position_plot(run, "position-loss", "Loss by position", lines, "nats per token")]
    dense = next((y for reading, (_, y) in bins.items() if reading.model == "dense"), None)
    if dense is not None and len(bins) > 1:
        differences = [
            Line(reading.name, style[reading], x, y - dense, marker="o")
            for reading, (x, y) in bins.items()
            if reading.model != "dense"
        ]
        title = "Difference to dense by position"
        figures.append(_position_plot(run, "position-difference", title, differences, "focus − dense, nats per token"))
    return figures


def of_groups(run: RunRecord) -> list[Plot]:
    groups = run.groups()
    measures: list[tuple[str, str, str, Callable]] = [
        ("groups-load", "Largest group of each layer", "share of held-out tokens", lambda row: max(row["load"])),
        (
            "groups-switch",
            "Tokens that changed group",
            "share since the checkpoint before",
            lambda row: row.get("switch_rate"),
        ),
    ]
    return [
        Plot(name, title, lines, "tokens", y_label, with_zero=True)
        for name, title, y_label, measure in measures
        if (lines := _by_layer(groups, measure))
    ]


def _evaluations(run: RunRecord) -> dict[LoggedReading, History]:
    """As far as they are finite."""
    finite = {reading: [row for row in rows if row["loss"] is not None] for reading, rows in run.evaluations().items()}
    return {reading: rows for reading, rows in finite.items() if rows}


def _differences(run: RunRecord) -> Plot:
    """With the interval of the reading as trained; those of all readings would lie on top of each other."""
    comparisons = run.comparisons()
    style = styles(comparisons)
    lines = []
    for number, (reading, rows) in enumerate(comparisons.items()):
        x, y = _values(rows, "tokens"), _values(rows, "delta_nats")
        low, high = _bounds(rows) if number == 0 else (None, None)
        lines.append(Line(reading.name, style[reading], x, y, low, high, marker="o"))
    title = "Difference to dense"
    y_label = "focus − dense, nats per token"
    note = f"Shaded: 95 % interval of {lines[0].label}"
    return Plot("difference-tokens", title, lines, "tokens", y_label, with_zero=True, note=note)


def _bounds(rows: History) -> np.ndarray:
    return np.array([row["delta_ci95"] or [np.nan, np.nan] for row in rows], dtype=float).T


def _perplexity_by_time(run: RunRecord) -> Plot:
    evaluations = _evaluations(run)
    style = styles(evaluations)
    seconds = {
        reading: run.seconds_at(reading.model, (row["step"] for row in rows)) for reading, rows in evaluations.items()
    }
    unit, length = _unit_of_time(max(values[-1] for values in seconds.values()))
    lines = [
        Line(reading.name, style[reading], seconds[reading] / length, _values(rows, "ppl"), marker="o")
        for reading, rows in evaluations.items()
    ]
    x_label = f"{unit} of training"
    return Plot("perplexity-time", "Held-out perplexity by time", lines, x_label, "perplexity", log_y=True)


def _unit_of_time(seconds: float) -> tuple[str, int]:
    if seconds < 300:
        return "seconds", 1
    return ("minutes", 60) if seconds < 4 * 3600 else ("hours", 3600)


def _by_layer(groups: dict[int, History], measure: Callable) -> list[Line]:
    """One line a layer, or their median and range where they are too many to tell apart."""
    series = {
        layer: [(row["tokens"], measure(row)) for row in rows if measure(row) is not None]
        for layer, rows in groups.items()
    }
    series = {layer: points for layer, points in series.items() if points}
    if len(series) <= SERIES_COLOURS:
        return [
            Line(f"layer {layer}", Style(number), [x for x, _ in points], [y for _, y in points], marker="o")
            for number, (layer, points) in enumerate(series.items())
        ]
    by_tokens: dict[float, list[float]] = {}
    for points in series.values():
        for tokens, value in points:
            by_tokens.setdefault(tokens, []).append(value)
    values = list(by_tokens.values())
    label = f"median of {len(series)} layers, and their range"
    return [
        Line(
            label,
            Style(FOCUS),
            list(by_tokens),
            [statistics.median(layer_values) for layer_values in values],
            [min(layer_values) for layer_values in values],
            [max(layer_values) for layer_values in values],
            marker="o",
        )
    ]


def _position_plot(run: RunRecord, name: str, title: str, lines: list[Line], y_label: str) -> Plot:
    window = getattr(run.config.attention, "window", None)
    return Plot(
        name,
        title,
        lines,
        "position in the sequence",
        y_label,
        log_x=True,
        with_zero=name == "position-difference",
        marks=[(window + 1, "window")] if window else [],
    )


def _at_bin_centres(bins: list[list[float]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Loss of each bin over the middle of its positions, counted from 1."""
    first, loss = np.array(bins, dtype=float).T
    end = np.append(first[1:], length)
    return (first + 1 + end) / 2, loss


def _averaged(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of equal stretches of a long series."""
    parts = min(len(x), POINTS_PER_LINE)

    def averaged(values: np.ndarray) -> np.ndarray:
        return np.array([part.mean() for part in np.array_split(values, parts)])

    return averaged(x), averaged(y)


def _values(rows: History, field: str) -> np.ndarray:
    return np.array([row[field] for row in rows], dtype=float)
