"""From measurements to the rows of metrics.jsonl (kinds eval, compare, groups, tokens)."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from focus_jax.evaluation.evaluator import Groups, Measurement
from focus_jax.evaluation.measures import Sample, by_position, estimate, perplexity, within_window
from focus_jax.evaluation.token_classes import class_of, purity, shuffled

TOP_TOKENS = 8


def eval_row(measured: Measurement, sample: Sample, bytes_per_token: float, window: int | None) -> dict:
    """`loss` in nats per token; `bits_per_byte` at the validation split's own bytes per token."""
    loss = estimate(measured.nats_ST, sample)
    return {
        "kind": "eval",
        "model": measured.model,
        **measured.reading.labels(),
        "loss": loss.mean,
        "ppl": perplexity(loss.mean),
        "bits_per_byte": loss.mean / math.log(2) / bytes_per_token,
        "stderr": loss.stderr,
        "kept_fraction": measured.kept_fraction,
        **_around_window("loss", measured.nats_ST, sample, window),
        "loss_by_position": by_position(measured.nats_ST, sample),
        "sequences": len(sample.inputs_ST),
        "valid_tokens": int(sample.valid_ST.sum()),
    }


def compare_row(focus: Measurement, dense: Measurement, sample: Sample, window: int | None) -> dict:
    """Focus minus dense, token by token on the same text. The interval is about the sampling of text for this pair of
    models only; a claim about the method needs seeds."""
    difference_ST = focus.nats_ST - dense.nats_ST
    delta = estimate(difference_ST, sample)
    return {
        "kind": "compare",
        **focus.reading.labels(),
        "delta_nats": delta.mean,
        "delta_ci95": None if delta.ci95 is None else list(delta.ci95),
        **_around_window("delta", difference_ST, sample, window),
    }


def groups_rows(groups: Groups, layers: tuple[int, ...], previous_LST: np.ndarray | None) -> Iterator[dict]:
    """One row per Focus layer; switch_rate: share of tokens whose best group differs from `previous_LST`."""
    for index, layer in enumerate(layers):
        changed = None if previous_LST is None else float(np.mean(previous_LST[index] != groups.best_LST[index]))
        statistics = groups.statistics
        yield {
            "kind": "groups",
            "layer": layer,
            "load": statistics.load_BK[index].mean(axis=0, dtype=np.float64).tolist(),
            "dominance": float(statistics.dominance_B[index].mean()),
            "entropy": float(statistics.entropy_B[index].mean()),
            "confidence": float(statistics.confidence_B[index].mean()),
            "switch_rate": changed,
        }


def tokens_rows(
    groups: Groups, layers: tuple[int, ...], sample: Sample, decode: Callable[[Sequence[int]], str]
) -> Iterator[dict]:
    """Of every group of every Focus layer: its most frequent tokens, each with its share of the group's tokens, and its
    most frequent class (token_classes.py) likewise, beside the share in a random grouping of the same sizes."""
    group_count = groups.statistics.load_BK.shape[-1]
    token_N, number_ST = np.unique(sample.inputs_ST, return_inverse=True)
    class_ST = np.array([class_of(decode([int(token)])) for token in token_N])[number_ST]
    for layer, best_ST in zip(layers, groups.best_LST, strict=True):
        classes, shares = purity(best_ST.ravel(), class_ST.ravel(), group_count)
        _, by_chance = purity(shuffled(best_ST.ravel()), class_ST.ravel(), group_count)
        for group in range(group_count):
            yield {
                "kind": "tokens",
                "layer": layer,
                "group": group,
                "top": _most_frequent(sample.inputs_ST[best_ST == group], decode),
                "class": classes[group],
                "purity": shares[group],
                "purity_by_chance": by_chance[group],
            }


def _most_frequent(tokens_N: np.ndarray, decode: Callable[[Sequence[int]], str]) -> list[list]:
    counts_V = np.bincount(tokens_N)
    most = [int(token) for token in np.argsort(-counts_V, kind="stable")[:TOP_TOKENS] if counts_V[token]]
    return [[decode([token]), float(counts_V[token] / counts_V.sum())] for token in most]


def _around_window(name: str, values_ST: np.ndarray, sample: Sample, window: int | None) -> dict:
    """Means where every earlier token is within the window, and further on; null where there is no such token."""
    if window is None:
        return {f"{name}_within_window": None, f"{name}_beyond_window": None}
    near_T = within_window(values_ST.shape[1], window)
    within, beyond = (estimate(values_ST, sample, where_T).mean for where_T in (near_T, ~near_T))
    return {
        f"{name}_within_window": None if math.isnan(within) else within,
        f"{name}_beyond_window": None if math.isnan(beyond) else beyond,
    }
