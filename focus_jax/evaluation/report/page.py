"""The pieces of a report's page: one HTML file without scripts, for phones and desktops, light and dark.

Functions that return HTML take plain text and escape it, unless an argument is named `html`.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from focus_jax.evaluation.report.figures import Plot, Style, svg

_STYLESHEET = Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def document(title: str, subtitle: str, html: Iterable[str]) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{_STYLESHEET}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="muted">{escape(subtitle)}</p>
{"".join(html)}
</body>
</html>
"""


def section(title: str, *html: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(html)}</section>\n"


def heading(text: str) -> str:
    return f"<h3>{escape(text)}</h3>\n"


def paragraph(text: str, css: str = "") -> str:
    return f'<p class="{css}">{_words(text)}</p>\n' if css else f"<p>{_words(text)}</p>\n"


def verdict(ahead: str, statement: str, *explanations: str) -> str:
    """The answer to the first question; `ahead` ("focus", "dense" or neither of them) colours it."""
    return f'<div class="verdict {escape(ahead)}">{paragraph(statement)}{"".join(map(paragraph, explanations))}</div>\n'


def warning(text: str) -> str:
    return paragraph(text, css="warning")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", css: str = "") -> str:
    """The first column names the row; the others hold numbers, and are left out where they hold nothing.

    With css="text" they hold words.
    """
    headings, *rows = _without_empty_columns([headings, *rows])
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return _table(headings, body, caption, css)


def share_table(headings: Sequence[str], rows: Iterable[tuple[str, Sequence[float]]], caption: str = "") -> str:
    """Shares of 1, each on a ground as deep as it is large beside the largest of the table."""
    rows = list(rows)
    largest = max((share for _, shares in rows for share in shares), default=1.0) or 1.0
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(
            f'<td class="share" style="--share:{55 * share / largest:.0f}">{100 * share:.0f}</td>' for share in shares
        )
        + "</tr>"
        for name, shares in rows
    )
    return _table(headings, body, caption)


def figures(plots: Iterable[Plot]) -> str:
    return f'<div class="figures">{"".join(map(_figure, plots))}</div>\n'


def fold(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>\n"


def _words(text: str) -> str:
    """Escaped; `code` in backticks; a number stays with its percent sign."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text)).replace(" %", "&nbsp;%")


def _table(headings: Sequence[str], html: str, caption: str, css: str = "") -> str:
    """The caption stands outside the part that scrolls, and so wraps at the width of the page."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    inner = f'<table class="{css}"><thead><tr>{head}</tr></thead><tbody>{html}</tbody></table>'
    return f'{paragraph(caption, css="caption") if caption else ""}<div class="scroll" tabindex="0">{inner}</div>\n'


def _without_empty_columns(lines: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    columns = list(zip(*lines, strict=True))
    return list(zip(columns[0], *(column for column in columns[1:] if any(column[1:])), strict=True))


def _figure(plot: Plot) -> str:
    labels: dict[str, Style] = {line.label: line.style for line in plot.lines}
    legend = "".join(_legend_entry(label, style) for label, style in labels.items())
    description = f"{plot.title}: {plot.y_label} over {plot.x_label} for {', '.join(labels)}"
    return (
        f'<figure role="group" aria-label="{escape(description)}"><h3>{escape(plot.title)}</h3>'
        f'<ul class="legend">{legend}</ul>{svg(plot)}{paragraph(plot.note, css="muted") if plot.note else ""}</figure>'
    )


def _legend_entry(label: str, style: Style) -> str:
    css = ' class="dashed"' if style.dashed else ""
    return f'<li{css} style="--colour:var(--series-{style.colour})">{escape(label)}</li>'
