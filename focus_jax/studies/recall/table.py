"""The table of a recall study: a line per arm, over its seeds."""

import statistics
from collections import defaultdict
from collections.abc import Sequence

from focus_jax.studies.results import Row

SHARE_OF_DENSE = 0.9
MEASURED = ("accuracy", "accuracy_curve", "dominance", "kept_fraction", "tokens_between")


def table(rows: Sequence[Row]) -> str:
    """Accuracy read hard, mean and range over seeds; tokens to 90 % of dense, median (a seed may not get there)."""
    lines = [
        f"{'form':6} {'arm':34} {'K':>2} {'M':>2} {'seeds':>5}  {'accuracy':>8}  {'lowest':>6} {'highest':>7}  "
        f"{'kept':>5}  {'largest group':>13}  {'tokens to 90 % of dense':>23}"
    ]
    by_arm = defaultdict(list)
    for row in rows:
        by_arm[row["form"], row["name"], row["changes"], row["groups"], row["top_k"]].append(row)
    forms = {row["form"] for row in rows if row["name"] == "dense"}
    dense = {form: _mean_accuracy(rows, form=form, name="dense") for form in forms}
    for (form, name, changes, groups, top_k), same in by_arm.items():
        accuracies = [row["accuracy"] for row in same]
        reached = sorted(_tokens_to(row, SHARE_OF_DENSE * dense.get(form, 1.0)) for row in same)
        typical = reached[len(reached) // 2]
        lines.append(
            f"{form:6} {' '.join((name, changes)).strip():34} {groups:2} {top_k:2} {len(same):5}  "
            f"{statistics.mean(accuracies):8.3f}  {min(accuracies):6.3f} {max(accuracies):7.3f}  "
            f"{statistics.mean(row['kept_fraction'] for row in same):5.0%}  "
            f"{statistics.mean(row['dominance'] for row in same):13.0%}  "
            f"{'not reached' if typical == float('inf') else f'{typical:,.0f}':>23}"
        )
    return "\n".join(lines)


def _mean_accuracy(rows: Sequence[Row], **fields: str) -> float:
    return statistics.mean(row["accuracy"] for row in rows if all(row[name] == want for name, want in fields.items()))


def _tokens_to(row: Row, accuracy: float) -> float:
    """Training tokens after which the accuracy was first reached."""
    for number, reached in enumerate(row["accuracy_curve"], start=1):
        if reached >= accuracy:
            return number * row["tokens_between"]
    return float("inf")
