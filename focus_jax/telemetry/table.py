"""The comparison of a checkpoint as a table of plain text."""

from collections.abc import Iterable, Sequence

from focus_jax.telemetry.metrics import Row
from focus_jax.telemetry.readings import LoggedReading

LEGEND = """\
loss: nats per token on held-out text; ±: one standard error; pairs: query-key pairs computed, of those of dense
attention; ≤ window: loss where every earlier token is within the window, > window: further on; focus − dense: on the
same sequences, below 0 Focus is better; the interval is for this pair of models only, not for the method."""

_HEADINGS = (
    "",
    "loss",
    "±",
    "ppl",
    "bits/byte",
    "pairs",
    "≤ window",
    "> window",
    "focus − dense",
    "95 % interval",
)


def comparison_table(rows: Iterable[Row]) -> str:
    """Models and readings beside each other, from the `eval` and `compare` rows of one checkpoint, in their order."""
    evaluated = {LoggedReading.of(row): row for row in rows if row["kind"] == "eval"}
    compared = {LoggedReading.of(row): row for row in rows if row["kind"] == "compare"}
    lines = [_cells(reading, row, compared.get(reading)) for reading, row in evaluated.items()]
    return _aligned([_HEADINGS, *lines])


def interval(bounds: Sequence[float] | None) -> str:
    """ "−0.0123 … +0.0045", or what is missing for one."""
    if bounds is None:
        return "too few documents"
    low, high = bounds
    return f"{signed(low)} … {signed(high)}"


def signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    """Whole percents, one decimal where that would hide the figure."""
    if share is None:
        return ""
    digits = 0 if share == 1 or share >= 0.1 else 1
    return f"{100 * share:.{digits}f} %"


def _cells(reading: LoggedReading, row: Row, compared: Row | None) -> tuple[str, ...]:
    return (
        reading.name,
        number(row["loss"], 3),
        number(row.get("stderr"), 3),
        number(row.get("ppl"), 2),
        number(row.get("bits_per_byte"), 3),
        percent(row.get("kept_fraction")),
        number(row.get("loss_within_window"), 3),
        number(row.get("loss_beyond_window"), 3),
        signed(compared["delta_nats"]) if compared else "",
        interval(compared["delta_ci95"]) if compared else "",
    )


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """First column to the left, numbers to the right, columns without any entry left out."""
    columns = [column for column in zip(*lines, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    text = []
    for cells in zip(*columns, strict=True):
        first, *numbers = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        text.append("  ".join([first.strip().ljust(widths[0]), *numbers]).rstrip())
    return "\n".join(text)
