"""Builds the W&B workspace that compares Focus with dense.

    python -m focus_jax.telemetry.dashboard --entity E --project P [--top-k 1,2]

Prints its address. It needs WANDB_API_KEY or `wandb login`.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

from focus_jax.errors import UserError, exit_code
from focus_jax.telemetry import keys
from focus_jax.telemetry.readings import LoggedReading
from focus_jax.telemetry.weights_and_biases import require_key

DENSE = LoggedReading("dense", "none", None, None, causal=True)
SOFT = LoggedReading("focus", "soft", None, "log", causal=True)
_LAYERS = r"groups/layer_\d+/"


def workspace(entity: str, project: str, top_ks: Sequence[int]) -> ws.Workspace:
    """Runs of one model or of both, at any size; hard readings with and without the log gate for each top_k."""
    focus = [*_hard(top_ks), SOFT]
    return ws.Workspace(
        entity=entity,
        project=project,
        name="Focus and dense",
        sections=[
            _section("Who is ahead", _who_is_ahead(focus)),
            _section("Training", _training()),
            _section("Inside and beyond the window", _windows(focus)),
            _section("Groups", _groups()),
        ],
        settings=ws.WorkspaceSettings(x_axis=keys.TOKENS),
    )


def _hard(top_ks: Sequence[int]) -> Iterator[LoggedReading]:
    for top_k in top_ks:
        for gate in ("log", None) if top_k else (None,):
            yield LoggedReading("focus", "hard", top_k, gate, causal=True)


def _section(name: str, panels: Iterator[wr.LinePlot]) -> ws.Section:
    return ws.Section(name=name, panels=list(panels), is_open=True)


def _who_is_ahead(focus: Sequence[LoggedReading]) -> Iterator[wr.LinePlot]:
    perplexities = [keys.evaluation(reading, "perplexity") for reading in (DENSE, *focus)]
    yield _plot("Held-out perplexity over tokens", perplexities, log_y=True)
    yield _plot("Held-out perplexity over seconds of training", perplexities, x=keys.SECONDS, log_y=True)
    for reading in focus:
        bounds = [keys.comparison(reading, figure) for figure in ("delta_nats", "interval_low", "interval_high")]
        yield _plot(f"{reading.name} − dense, nats per token, with its 95 % interval", bounds)
    yield _plot("Pairs computed, of those of dense attention", [keys.evaluation(r, "kept_fraction") for r in focus])


def _training() -> Iterator[wr.LinePlot]:
    titles = {
        "loss": "Training loss, nats per token",
        "tokens_per_second": "Tokens per second",
        "data_seconds": "Seconds that each step waited for data",
        "mfu": "Model FLOP utilisation",
        "grad_norm": "Gradient norm before clipping",
        "lr": "Learning rate",
    }
    for figure, title in titles.items():
        yield _plot(title, [keys.train(model, figure) for model in ("dense", "focus")])
    yield _plot("What the routers learn from: loss of probe rows, nats", [keys.train("focus", "router_loss")])


def _windows(focus: Sequence[LoggedReading]) -> Iterator[wr.LinePlot]:
    for figure, title in (("loss_within_window", "Loss inside the window"), ("loss_beyond_window", "Loss beyond it")):
        yield _plot(title, [keys.evaluation(reading, figure) for reading in (DENSE, *focus)])


def _groups() -> Iterator[wr.LinePlot]:
    titles = {
        "largest_share": "Largest group of each layer",
        "smallest_share": "Smallest group of each layer",
        "dominance": "Dominance: largest group of a sequence",
        "switch_rate": "Tokens that changed group",
        "entropy": "Entropy of affinities, nats",
        "confidence": "Affinity of the best group",
    }
    for figure, title in titles.items():
        yield wr.LinePlot(title=title, x=keys.TOKENS, metric_regex=_LAYERS + figure)


def _plot(title: str, y: Sequence[str], x: str = keys.TOKENS, log_y: bool = False) -> wr.LinePlot:
    return wr.LinePlot(title=title, x=x, y=list(y), log_y=log_y)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m focus_jax.telemetry.dashboard",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--entity", required=True, help="user or team")
    parser.add_argument("--project", required=True, help="project that the runs are in")
    parser.add_argument("--top-k", default="1,2", help="groups that a query reads in the hard readings shown, e.g. 1,2")
    options = parser.parse_args()
    built = workspace(options.entity, options.project, _numbers(options.top_k))
    require_key("--entity: a dashboard")
    try:
        built.save()
    except (wandb.errors.CommError, wandb.errors.UsageError, ValueError) as error:
        raise UserError(
            f"--entity {options.entity} --project {options.project}: W&B did not save it: {error}"
        ) from None
    print(built.url)
    return 0


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise UserError(f"--top-k {text}: numbers with commas between them are needed, such as 1,2")
    return [int(part) for part in parts]


if __name__ == "__main__":
    sys.exit(exit_code(main))
