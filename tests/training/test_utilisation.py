"""What training rows say about utilisation, against a count by hand."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from focus_jax.accounting import pairs, peaks
from focus_jax.config import Config, of_model
from focus_jax.model import as_trained
from focus_jax.routing import memberships
from focus_jax.training.optimizer import make_optimizer
from focus_jax.training.state import graph_of, initial_state, merge
from focus_jax.training.step import make_train_step
from tests.changes import changed
from tests.training.runs import start

FLOPS = {
    # 6 · weights + 12 · width · layers · pairs / tokens; routers on top.
    "dense": 6 * (32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48 + 32 * 384) + 12 * 32 * (48 * 49 / 2) / 48,
    "router": 6 * 8 * (32 + 4),
}


def test_rows_state_both_against_the_peak_of_the_start(run, text, monkeypatch):
    monkeypatch.setitem(peaks.MATMUL_SIZE, "cpu", 256)
    # Soft training, which computes every pair.
    run = changed(
        run,
        model={"layers": 1},
        training={"steps": 4},
        evaluation={"top_k": (1,)},
    )
    assert start(run) == 0
    rows = [json.loads(line) for line in (Path(run.run) / "metrics.jsonl").read_text().splitlines()]
    [started] = [row for row in rows if row.get("name") == "started"]
    peak = started["peak_flops_per_second"]
    assert "measured with a float32 matrix product" in started["message"]
    trained = [row for row in rows if row["kind"] == "train"]
    assert len(trained) == 4
    for row in trained:
        assert row["mfu"] == pytest.approx(row["tokens_per_second"] * FLOPS["dense"] / peak)
        assert row["kept_fraction"] == 1
        more = FLOPS["router"] if row["model"] == "focus" else 0
        assert row["mfu_executed"] == pytest.approx(row["tokens_per_second"] * (FLOPS["dense"] + more) / peak)


@pytest.mark.parametrize("router", ["gate", "distill"])
def test_the_pairs_of_a_hard_step_are_counted(run: Config, router):
    """From the groups themselves, one layer of two, with the rows that the probes read on top."""
    run = changed(
        run,
        attention={"training": "hard", "router": router, "probes": 6, "dense_layers": (1,)},
        training={"microbatches": 2},
    )
    state, reading = initial_state(run, make_optimizer(run)), as_trained(run.attention, 0)
    tokens_BT = jax.random.randint(jax.random.key(0), (4, 49), 0, 257)
    step = jax.jit(make_train_step(run, graph_of(run), make_optimizer(run), reading))
    found = step(state, tokens_BT[:, :-1], tokens_BT[:, 1:])[1].kept_fraction

    _, [routed] = merge(graph_of(run), state.params, state.carried).features(tokens_BT[:, :-1], reading)
    groups = memberships(routed.log_affinity_BTK, top_k=2, kind="query")
    kept = [
        pairs.kept_pairs(queries_TM, keys_T1[:, 0], window=5)
        for queries_TM, keys_T1 in zip(*map(np.asarray, groups), strict=True)
    ]
    dense = pairs.dense_pairs(48)
    without_probes = (1 + np.mean(kept) / dense) / 2
    # Six rows of every sequence, one in each of six equal stretches of the 42 with distant keys.
    fewest, most = (sum(6 + 7 * n + last + 1 for n in range(6)) / dense / 2 for last in (0, 6))
    if router == "gate":
        assert found == pytest.approx(without_probes)
    else:
        assert without_probes + fewest <= found <= without_probes + most


def test_a_dense_step_computes_every_pair(run: Config):
    dense = of_model(run, "dense")
    state = initial_state(dense, make_optimizer(dense))
    tokens_BT = jax.random.randint(jax.random.key(0), (4, 49), 0, 257)
    step = jax.jit(make_train_step(dense, graph_of(dense), make_optimizer(dense), None))
    assert step(state, tokens_BT[:, :-1], tokens_BT[:, 1:])[1].kept_fraction == 1
