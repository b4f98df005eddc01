"""Line figures as SVG that takes its colours and font from the page around it, and so follows light and dark."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator

SERIES_COLOURS = 7
"""Colours for series, that the page defines as --series-0 and so on; further series begin again."""

# Matplotlib draws in these colours; the page's variables take their place.
_INK, _MUTED, _GRID = "#000001", "#000002", "#000003"
_PAGE_COLOURS = {_INK: "--ink", _MUTED: "--muted", _GRID: "--line"}
_SERIES_COLOURS = [f"#0000{10 + number}" for number in range(SERIES_COLOURS)]
_PAGE_COLOURS |= {colour: f"--series-{number}" for number, colour in enumerate(_SERIES_COLOURS)}

_STYLE: Any = {
    "svg.fonttype": "none",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _MUTED,
    "axes.edgecolor": _GRID,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "xtick.color": _GRID,
    "ytick.color": _GRID,
    "xtick.labelcolor": _MUTED,
    "ytick.labelcolor": _MUTED,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
}
_WIDTH_INCHES, _HEIGHT_INCHES = 5.0, 3.5


@dataclass(frozen=True)
class Style:
    """How one subject is drawn everywhere on a page; `colour` is the number of its colour."""

    colour: int
    dashed: bool = False


@dataclass(frozen=True)
class Line:
    """A series, with an interval around it where `low` and `high` are given."""

    label: str
    style: Style
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    low: Sequence[float] | np.ndarray | None = None
    high: Sequence[float] | np.ndarray | None = None
    marker: str = ""


@dataclass(frozen=True)
class Plot:
    """A figure of lines; the page shows its legend. `name` is unique on the page, `marks` are labelled verticals,
    `note` a line below."""

    name: str
    title: str
    lines: Sequence[Line]
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    with_zero: bool = False
    y_top: float | None = None
    marks: Sequence[tuple[float, str]] = ()
    note: str = ""


def svg(plot: Plot) -> str:
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": plot.name}):
        figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), layout="constrained")
        axes = figure.add_subplot()
        for line in plot.lines:
            _draw_line(axes, line)
        _draw_references(axes, plot)
        _set_axes(axes, plot)
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        FigureCanvasSVG(figure).print_svg(file, metadata=nothing)
    return _for_the_page(file.getvalue(), plot.name)


def _draw_line(axes: Axes, line: Line) -> None:
    colour = _SERIES_COLOURS[line.style.colour % SERIES_COLOURS]
    dashes = "--" if line.style.dashed else "-"
    axes.plot(line.x, line.y, color=colour, linestyle=dashes, marker=line.marker, markersize=4)
    if line.low is not None and line.high is not None:
        axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)


def _draw_references(axes: Axes, plot: Plot) -> None:
    if plot.with_zero:
        axes.axhline(0, color=_MUTED, linewidth=1)
    for position, label in plot.marks:
        axes.axvline(position, color=_MUTED, linewidth=1, linestyle=":")
        axes.annotate(
            label,
            (position, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-3, 0),
            textcoords="offset points",
            ha="right",
            va="top",
            rotation=90,
            color=_MUTED,
            fontsize=9,
        )


def _set_axes(axes: Axes, plot: Plot) -> None:
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    if plot.log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if plot.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: "")
    if plot.y_top is not None:
        axes.set_ylim(top=plot.y_top)


def _for_the_page(text: str, name: str) -> str:
    """An inline element: no prolog, size left to the page, ids of its own, the page's colours and font."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r" font-family: [^;]*;", "", text)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d{3,}", _two_decimals, tag.group()), text)
    for colour, variable in _PAGE_COLOURS.items():
        text = text.replace(colour, f"var({variable})")
    return text.replace("<svg ", '<svg role="img" aria-hidden="true" ', 1)


def _two_decimals(digits: re.Match) -> str:
    return f"{float(digits.group()):.2f}"
