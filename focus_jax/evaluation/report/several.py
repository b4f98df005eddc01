"""The sections of a report of several runs: twins trained apart, seeds, other settings."""

import statistics
from collections.abc import Sequence

from focus_jax.evaluation.report import page, sections
from focus_jax.evaluation.report.figures import SERIES_COLOURS, Line, Plot, Style
from focus_jax.evaluation.report.outcome import Outcome
from focus_jax.evaluation.report.pairs import Experiment, over_seeds
from focus_jax.evaluation.report.record import RunRecord
from focus_jax.telemetry.metrics import Row
from focus_jax.telemetry.readings import LoggedReading
from focus_jax.telemetry.table import interval, number, percent, signed


def subtitle(runs: Sequence[RunRecord], experiments: Sequence[Experiment]) -> str:
    pairs = sum(len(experiment.pairs) for experiment in experiments)
    return f"{_count(len(runs), 'run')} · {_count(pairs, 'pair')} of twins · {_count(len(experiments), 'setting')}"


def who_is_ahead(experiments: Sequence[Experiment], names: Sequence[str], unpaired: Sequence[RunRecord]) -> str:
    parts = [_experiment(experiment, name) for experiment, name in zip(experiments, names, strict=True)]
    if not experiments:
        parts.append(page.verdict("nobody", "No two of these runs are twins: there is nothing to compare."))
    if unpaired:
        names_of_runs = ", ".join(run.name for run in unpaired)
        parts.append(
            page.warning(
                f"Without a twin here, and left out of the comparison: {names_of_runs}. Twins have the same seed and "
                "differ in nothing but the attention."
            )
        )
    return page.section("Who is ahead, and how certain is it?", *parts)


def cost(runs: Sequence[RunRecord]) -> str:
    rows = [
        (
            f"{run.name}, {model}",
            f"{history[-1]['step']:,} of {run.config.training.steps:,}",
            sections.duration(history[-1]["seconds"]),
            f"{history[-1]['tokens'] / history[-1]['seconds']:,.0f}" if history[-1]["seconds"] else "",
            percent(history[-1].get("mfu")),
        )
        for run in runs
        for model, history in run.training().items()
    ]
    headings = ["", "steps", "time", "tokens/s", "MFU"]
    return page.section("At which cost?", page.table(headings, rows, caption="Training alone, without evaluation."))


def how_it_got_there(experiments: Sequence[Experiment], names: Sequence[str]) -> str:
    plots = [
        plot
        for number, (experiment, name) in enumerate(zip(experiments, names, strict=True))
        for plot in _plots(experiment, name, number)
    ]
    return page.section("How did it get there?", page.figures(plots)) if plots else ""


def what_the_groups_hold(runs: Sequence[RunRecord]) -> str:
    rows = []
    for run in runs:
        last = [history[-1] for history in run.groups().values()]
        if last:
            rows.append(
                (
                    run.name,
                    percent(max(max(row["load"]) for row in last)),
                    percent(min(min(row["load"]) for row in last)),
                    number(max(row["dominance"] for row in last), 2),
                    percent(max((row["switch_rate"] for row in last if row["switch_rate"] is not None), default=None)),
                )
            )
    headings = ["", "largest group", "smallest group", "highest dominance", "most switched"]
    caption = "Over all layers, at the last checkpoint."
    return page.section("What do the groups hold?", page.table(headings, rows, caption=caption)) if rows else ""


def what_went_wrong(runs: Sequence[RunRecord]) -> str:
    rows = [(f"{run.name}, {row[0]}", *row[1:]) for run in runs for row in sections.troubles(run)]
    return sections.troubles_section(rows)


def _experiment(experiment: Experiment, name: str) -> str:
    last = experiment.last_comparisons()
    title = page.heading(name) if name else ""
    if any(not reading.causal for reading in last):
        title += page.warning(sections.NOT_CAUSAL)
    if not last:
        return title + page.paragraph("Not yet evaluated at a step that all of these runs have reached.")
    seeds = len(experiment.pairs)
    step = next(iter(last.values()))[0]["step"]
    rows = [
        (
            reading.name,
            signed(outcome.delta_nats),
            interval(outcome.interval),
            outcome.ahead,
            percent(_kept_fraction(experiment, reading, compared[0]["step"])),
            *(signed(row["delta_nats"]) for row in compared),
        )
        for reading, compared in last.items()
        for outcome in [_outcome(compared)]
    ]
    over = "Student’s t over seeds" if seeds > 1 else "sampling of held-out text, for this pair of models only"
    caption = f"focus − dense in nats per token at step {step:,}; 95 % interval: {over}."
    headings = [
        "",
        "focus − dense",
        "95 % interval",
        "ahead",
        "pairs",
        *(f"seed {pair.seed}" for pair in experiment.pairs),
    ]
    return title + _verdict(experiment, last) + page.table(headings, rows, caption=caption)


def _verdict(experiment: Experiment, last: dict) -> str:
    reading, compared = next(iter(last.items()))
    outcome, seeds = _outcome(compared), len(experiment.pairs)
    statement = {
        "focus": "Focus is ahead of its dense twin",
        "dense": "Focus is behind its dense twin",
        "unclear": "Focus and its dense twin cannot be told apart",
        "unknown": "Too little to say who is ahead",
    }[outcome.ahead]
    change = f"{signed(outcome.delta_nats)} nats per token, {sections.relation(outcome.delta_nats)} perplexity"
    if seeds > 1:
        explanation = (
            f"Mean of {seeds} seeds, read as trained ({reading.name}); the interval says what another seed would give."
        )
    else:
        explanation = (
            f"One pair, read as trained ({reading.name}): the interval says what other held-out text would give for "
            "these two models, not what another seed would give."
        )
    if seeds == 2:
        explanation += " Two seeds give a very wide interval; three or more are worth their cost."
    return page.verdict(
        outcome.ahead if reading.causal else "nobody",
        f"{'' if reading.causal else 'NOT CAUSAL. '}{statement}: {change}.",
        f"95 % interval {interval(outcome.interval)}. {explanation}",
    )


def _outcome(compared: Sequence[Row]) -> Outcome:
    if len(compared) == 1:
        return Outcome.of(compared[0])
    return over_seeds([row["delta_nats"] for row in compared])


def _kept_fraction(experiment: Experiment, reading: LoggedReading, step: int) -> float | None:
    """Mean over the pairs."""
    histories = [pair.focus.evaluations()[reading] for pair in experiment.pairs]
    shares = [row.get("kept_fraction") for history in histories for row in history if row["step"] == step]
    known = [share for share in shares if share is not None]
    return statistics.fmean(known) if known else None


def _plots(experiment: Experiment, name: str, number: int) -> list[Plot]:
    lines = []
    for index, pair in enumerate(experiment.pairs):
        for reading, history in list(pair.comparisons().items())[:1]:
            tokens, deltas = ([row[field] for row in history] for field in ("tokens", "delta_nats"))
            lines.append(
                Line(f"seed {pair.seed}, {reading.name}", Style(index % SERIES_COLOURS), tokens, deltas, marker="o")
            )
    title = f"Difference to dense: {name}" if name else "Difference to dense"
    difference = Plot(f"difference-{number}", title, lines, "tokens", "focus − dense, nats per token", with_zero=True)
    return [difference, _perplexities(experiment, name, number)] if lines else []


def _perplexities(experiment: Experiment, name: str, number: int) -> Plot:
    lines = []
    for pair in experiment.pairs:
        for model, run in (("dense", pair.dense), ("focus", pair.focus)):
            reading, history = next((r, h) for r, h in run.evaluations().items() if r.model == model)
            tokens, perplexities = ([row[field] for row in history] for field in ("tokens", "ppl"))
            label = f"{reading.name}, every seed" if len(experiment.pairs) > 1 else reading.name
            lines.append(Line(label, Style(0 if model == "dense" else 1), tokens, perplexities, marker="o"))
    title = f"Held-out perplexity: {name}" if name else "Held-out perplexity"
    return Plot(f"perplexity-{number}", title, lines, "tokens", "perplexity", log_y=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
