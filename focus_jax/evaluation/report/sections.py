"""The sections of the report of one run, in the order in which its questions are asked."""

import math
import statistics

from focus_jax import config_loading
from focus_jax.config import Focus
from focus_jax.evaluation.measures import perplexity
from focus_jax.evaluation.report import page, plots
from focus_jax.evaluation.report.outcome import Outcome
from focus_jax.evaluation.report.record import History, RunRecord
from focus_jax.telemetry.metrics import Row
from focus_jax.telemetry.table import interval, number, percent, signed

SEVERAL_RUNS = "`python -m focus_jax.evaluation.report RUN RUN …`"
STARTED = "started"
"""The event that every run begins with."""

EVENTS_SHOWN = 50

NOT_CAUSAL = (
    "NOT CAUSAL: the routing of this model reads later tokens (balance=“sinkhorn”), so its figures are not those of a "
    "language model and cannot be compared with them."
)

NOT_FINITE = (
    "At the last checkpoint some losses are not finite: these models have diverged. A verdict below is of an earlier "
    "checkpoint."
)


def subtitle(run: RunRecord) -> str:
    model, attention = run.config.model, run.config.attention
    parts = [
        f"{model.layers} layers, width {model.width}",
        f"sequences of {run.config.training.sequence_length:,} tokens",
        f"seed {run.config.seed}",
        f"step {run.step:,} of {run.config.training.steps:,}",
        f"{run.tokens:,} tokens",
    ]
    if isinstance(attention, Focus):
        parts.insert(0, f"Focus with {attention.groups} groups and a window of {attention.window}")
    return " · ".join(parts)


def who_is_ahead(run: RunRecord) -> str:
    title = "Who is ahead, and how certain is it?"
    evaluations, comparisons = run.evaluations(), run.comparisons()
    if not evaluations:
        return page.section(
            title, page.paragraph("Nothing has been evaluated yet: the first checkpoint is still to come.")
        )
    parts = [_unfinished(run)] if not run.finished else []
    if any(not reading.causal for reading in evaluations):
        parts.append(page.warning(NOT_CAUSAL))
    if any(history[-1]["loss"] is None for history in evaluations.values()):
        parts.append(page.warning(NOT_FINITE))
    if comparisons:
        parts.append(_verdict(run))
    elif len(run.config.models) == 1:
        parts.append(
            page.verdict(
                "nobody",
                f"Only {run.config.models[0]} was trained in this run, so there is nothing to compare it with here.",
                f"Beside its twin: {SEVERAL_RUNS}",
            )
        )
    parts.append(_evaluation_table(run))
    return page.section(title, *parts)


def cost(run: RunRecord) -> str:
    last = {model: history[-1] for model, history in run.training().items()}
    if not last:
        return ""
    rows = [
        (
            model,
            duration(row["seconds"]),
            f"{row['tokens'] / row['seconds']:,.0f}" if row["seconds"] else "",
            f"{row['seconds'] / last['dense']['seconds']:.2f}" if "dense" in last and last["dense"]["seconds"] else "",
            percent(row.get("mfu")),
        )
        for model, row in last.items()
    ]
    caption = f"Training alone, without evaluation, up to step {max(row['step'] for row in last.values()):,}"
    headings = ["", "time", "tokens/s", "× dense", "MFU"]
    return page.section(
        "At which cost?",
        page.table(headings, rows, caption=caption),
        page.paragraph(f"{_pairs_in_words(run)} {_wait_in_words(run)}", css="muted"),
        *(
            page.paragraph(f"This run {row['message']}.", css="muted")
            for row in run.of_kind("event")
            if row["name"] == STARTED
        ),
    )


def how_it_got_there(run: RunRecord) -> str:
    figures = plots.of_training(run) + plots.of_evaluation(run) + plots.by_position(run)
    return page.section("How did it get there?", page.figures(figures), _window_table(run)) if figures else ""


def what_the_groups_hold(run: RunRecord) -> str:
    groups = run.groups()
    if not groups:
        return ""
    last = {layer: history[-1] for layer, history in groups.items()}
    count = max(len(row["load"]) for row in last.values())
    return page.section(
        "What do the groups hold?",
        page.share_table(
            ["group", *map(str, range(count))],
            [(f"layer {layer}", row["load"]) for layer, row in last.items()],
            caption=f"Percent of held-out tokens in each group; {100 / count:.3g} each would be even",
        ),
        _group_statistics(last, count),
        page.figures(plots.of_groups(run)),
        _top_tokens(run),
    )


def what_went_wrong(run: RunRecord) -> str:
    return troubles_section(troubles(run))


def troubles(run: RunRecord) -> list[tuple[str, str, str]]:
    """When, what and the message of every event but the start."""
    return [
        (f"step {row['step']:,}", row["name"].replace("_", " "), row["message"])
        for row in run.of_kind("event")
        if row["name"] != STARTED
    ]


def troubles_section(rows: list[tuple[str, str, str]]) -> str:
    if not rows:
        body = page.paragraph("Nothing: no resumes, skipped updates or warnings.")
    else:
        caption = f"The last {EVENTS_SHOWN} of {len(rows):,}." if len(rows) > EVENTS_SHOWN else ""
        body = page.table(["", "what", "message"], rows[-EVENTS_SHOWN:], caption=caption, css="text")
    return page.section("What went wrong during the run?", body)


def configuration(run: RunRecord) -> str:
    return page.fold("Config of this run", config_loading.to_json(run.config))


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s"


def relation(delta_nats: float) -> str:
    """A difference in nats as one in perplexity: "3.8 % lower"."""
    change = perplexity(delta_nats) - 1
    return f"{abs(100 * change):.1f} % {'lower' if change < 0 else 'higher'}"


def _unfinished(run: RunRecord) -> str:
    return page.warning(f"This run is not finished: step {run.step:,} of {run.config.training.steps:,}.")


def _verdict(run: RunRecord) -> str:
    reading, history = next(iter(run.comparisons().items()))
    compared = history[-1]
    evaluated = _at(run.evaluations()[reading], compared["step"])
    assert evaluated is not None
    outcome = Outcome.of(compared)
    ours, theirs = (perplexity(evaluated["loss"] - delta) for delta in (0, compared["delta_nats"]))
    figures = f"perplexity {ours:,.2f} against {theirs:,.2f} ({relation(compared['delta_nats'])})"
    size = f"{abs(compared['delta_nats']):.4f} nats per token"
    statement = {
        "focus": f"Focus is ahead of its dense twin by {size}: {figures}.",
        "dense": f"Focus is behind its dense twin by {size}: {figures}.",
        "unclear": f"Focus and its dense twin cannot be told apart: {figures}.",
        "unknown": f"Too little text to say who is ahead: {figures}.",
    }[outcome.ahead]
    return page.verdict(
        outcome.ahead if reading.causal else "nobody",
        statement if reading.causal else f"NOT CAUSAL. {statement}",
        f"Read as trained ({reading.name}) after {compared['tokens']:,} tokens. {_certainty(outcome, evaluated)}",
        "What one run cannot show: the interval says what other held-out text would give for these two models, not "
        f"what another seed would give. A claim about the method needs several seeds: {SEVERAL_RUNS}",
    )


def _certainty(outcome: Outcome, evaluated: Row) -> str:
    text = f"{evaluated['sequences']:,} held-out sequences, {evaluated['valid_tokens']:,} tokens"
    if outcome.interval is None:
        return f"No interval: the {text} come from too few documents."
    return (
        f"95 % interval of the difference: {interval(outcome.interval)} nats per token ({text}, clustered by document)."
    )


def _evaluation_table(run: RunRecord) -> str:
    step = max(history[-1]["step"] for history in run.evaluations().values())
    comparisons = run.comparisons()
    rows = []
    for reading, history in run.evaluations().items():
        row = history[-1]
        compared = _at(comparisons.get(reading, []), row["step"])
        rows.append(
            (
                reading.name,
                number(row["ppl"], 2),
                signed(compared["delta_nats"]) if compared else "",
                interval(compared["delta_ci95"]) if compared else "",
                Outcome.of(compared).ahead if compared else "",
                percent(row.get("kept_fraction")),
                _loss(row),
                number(row.get("bits_per_byte"), 3),
            )
        )
    headings = ["", "perplexity", "focus − dense", "95 % interval", "ahead", "pairs", "loss ± s.e.", "bits/byte"]
    caption = (
        f"Held-out text at step {step:,}. Loss and difference in nats per token; pairs: query-key pairs computed, of "
        "those of dense attention."
    )
    return page.table(headings, rows, caption=caption)


def _window_table(run: RunRecord) -> str:
    """What the distant tokens are worth: before the window is full every reading sees the same keys."""
    comparisons = run.comparisons()
    rows = []
    for reading, history in run.evaluations().items():
        row = history[-1]
        compared = _at(comparisons.get(reading, []), row["step"]) or {}
        cells = (
            number(row.get("loss_within_window"), 3),
            _signed(compared.get("delta_within_window")),
            number(row.get("loss_beyond_window"), 3),
            _signed(compared.get("delta_beyond_window")),
        )
        if any(cells):
            rows.append((reading.name, *cells))
    headings = ["", "loss, in window", "focus − dense", "loss, beyond", "focus − dense"]
    caption = "In window: positions where every earlier token is within the window. Beyond: later positions."
    return page.table(headings, rows, caption=caption) if rows else ""


def _signed(value: float | None) -> str:
    return "" if value is None else signed(value)


def _pairs_in_words(run: RunRecord) -> str:
    shares = [
        f"{reading.name} {percent(history[-1]['kept_fraction'])}"
        for reading, history in run.evaluations().items()
        if reading.model == "focus" and history[-1].get("kept_fraction") is not None
    ]
    return f"Pairs computed in evaluation, of those of dense attention: {'; '.join(shares)}." if shares else ""


def _wait_in_words(run: RunRecord) -> str:
    waits = [row["data_seconds"] for row in run.of_kind("train") if "data_seconds" in row]
    return f"Waiting for data: {1000 * statistics.fmean(waits):.1f} ms a step." if waits else ""


def _group_statistics(last: dict[int, Row], count: int) -> str:
    undecided = math.log(count) or 1.0
    rows = [
        (
            f"layer {layer}",
            percent(max(row["load"])),
            percent(min(row["load"])),
            number(row.get("dominance"), 2),
            percent(row["entropy"] / undecided),
            number(row.get("confidence"), 2),
            percent(row.get("switch_rate")),
        )
        for layer, row in last.items()
    ]
    return page.table(
        ["", "largest", "smallest", "dominance", "entropy", "confidence", "switched"],
        rows,
        caption="Dominance: mean share of a sequence’s largest group, 1 is collapse. Entropy: of a token’s affinities, "
        "100 % is undecided. Confidence: mean affinity of the best group. Switched: tokens whose best group changed "
        "since the checkpoint before.",
    )


def _top_tokens(run: RunRecord) -> str:
    rows = run.of_kind("tokens")
    step = max((row["step"] for row in rows), default=0)
    cells = [
        (
            f"layer {row['layer']}, group {row['group']}",
            _purity(row),
            "  ".join(f"{token!r} {percent(share)}" for token, share in row["top"]),
        )
        for row in rows
        if row["step"] == step
    ]
    caption = (
        f"At step {step:,}. Classes are told from a token’s letters alone; in brackets, the largest share of one class "
        "in a random group of the same size."
    )
    headings = ["", "most frequent class", "most frequent tokens"]
    return page.table(headings, cells, caption=caption, css="text") if cells else ""


def _purity(row: Row) -> str:
    if row.get("purity") is None:
        return ""
    return f"{row['class']} {percent(row['purity'])} ({percent(row['purity_by_chance'])})"


def _at(history: History, step: int) -> Row | None:
    return next((row for row in history if row["step"] == step), None)


def _loss(row: Row) -> str:
    if row["loss"] is None:
        return "not finite"
    return f"{row['loss']:.3f}" + (f" ± {row['stderr']:.3f}" if row.get("stderr") is not None else "")
