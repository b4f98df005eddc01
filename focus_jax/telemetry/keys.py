"""What a row of metrics.jsonl is called on a dashboard. Every key that a dashboard refers to is spelt here."""

from focus_jax.telemetry.metrics import Row
from focus_jax.telemetry.readings import LoggedReading

TOKENS, SECONDS, STEP = "tokens", "seconds", "step"
"""Axes: tokens seen by each model, seconds that the model of a figure has trained for, optimizer steps."""

TRAIN = (
    "loss",
    "router_loss",
    "grad_norm",
    "lr",
    "tokens_per_second",
    "data_seconds",
    "kept_fraction",
    "mfu",
    "mfu_executed",
)
EVAL = ("loss", "perplexity", "bits_per_byte", "stderr", "kept_fraction", "loss_within_window", "loss_beyond_window")
COMPARE = ("delta_nats", "interval_low", "interval_high", "delta_within_window", "delta_beyond_window")
GROUPS = ("largest_share", "smallest_share", "dominance", "entropy", "confidence", "switch_rate")


def train(model: str, figure: str) -> str:
    return f"train/{model}/{figure}"


def evaluation(reading: LoggedReading, figure: str) -> str:
    return f"eval/{reading.key}/{figure}"


def comparison(reading: LoggedReading, figure: str) -> str:
    return f"compare/{reading.key}/{figure}"


def groups(layer: int, figure: str) -> str:
    return f"groups/layer_{layer:02}/{figure}"


def figures(row: Row) -> dict[str, float]:
    """The numbers of a row under their keys; empty for rows that are no figures. Numbers that are missing are left
    out."""
    match row["kind"]:
        case "train":
            named = {train(row["model"], figure): row.get(figure) for figure in TRAIN}
        case "eval":
            values = {**row, "perplexity": row["ppl"]}
            named = {evaluation(LoggedReading.of(row), figure): values.get(figure) for figure in EVAL}
        case "compare":
            low, high = row["delta_ci95"] or (None, None)
            values = {**row, "interval_low": low, "interval_high": high}
            named = {comparison(LoggedReading.of(row), figure): values.get(figure) for figure in COMPARE}
        case "groups":
            values = {**row, "largest_share": max(row["load"]), "smallest_share": min(row["load"])}
            named = {groups(row["layer"], figure): values.get(figure) for figure in GROUPS}
        case _:
            named = {}
    return {key: value for key, value in named.items() if value is not None}
