"""FLOPs and pairs against a count by hand, and against the model's own parameters."""

import dataclasses
import math

import jax
import pytest
from flax import nnx

from focus_jax.accounting import flops, pairs, peaks
from focus_jax.config import Focus, dense_twin, gpt2
from focus_jax.training.state import build
from tests.changes import changed


def test_pairs_by_hand():
    assert pairs.dense_pairs(4) == 1 + 2 + 3 + 4
    assert pairs.local_pairs(6, 2) == 1 + 2 + 3 + 3 + 3 + 3
    assert pairs.local_pairs(6, 0) == 6
    assert pairs.local_pairs(3, 100) == pairs.dense_pairs(3)
    assert pairs.joined_share(8, 2, "query") == 0.25
    # Of the six sets of two out of four, one is disjoint from a given one.
    assert pairs.joined_share(4, 2, "shared") == pytest.approx(5 / 6)
    assert pairs.joined_share(4, 3, "shared") == 1
    # Four tokens, window 1: 7 local pairs, 3 distant ones of which half are kept.
    assert pairs.kept_fraction(4, 1, 0.5) == pytest.approx((7 + 1.5) / 10)


def test_flops_of_a_token_by_hand(run):
    """Two layers of width 32 with 4 heads and 2 key/value heads of 8 channels, SwiGLU of 48, 257 tokens padded to 384,
    48 tokens a sequence; K = 4, M = 2, window 5, R = 8."""
    weights = 2 * (32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48) + 32 * 384
    attention = 2 * 12 * 32 * (48 * 49 / 2) / 48
    assert flops.dense_equivalent(run) == 6 * weights + attention
    assert flops.even_fraction(run) == flops.even_fraction(dense_twin(run)) == 1
    distant = 42 * 43 / 2
    gated = changed(run, attention={"training": "hard", "router": "gate"})
    assert flops.even_fraction(gated) == pytest.approx(1 - 0.5 * distant / (48 * 49 / 2))
    probed = changed(gated, attention={"router": "distill", "probes": 6, "dense_layers": (0,)})
    more = flops.even_fraction(gated) + 6 / 48
    assert flops.even_fraction(probed) == pytest.approx((1 + more) / 2)
    routers = 6 * 2 * 8 * (32 + 4)
    assert flops.executed(run, 0.7) == pytest.approx(6 * weights + routers + 0.7 * attention)


def test_every_matrix_of_the_model_is_counted(run):
    for model in (run.model, dataclasses.replace(gpt2(vocab_size=300, width=64, layers=3, heads=4), biases=False)):
        of_model = changed(run, model=dataclasses.asdict(model), attention=Focus(groups=3, top_k=1, window=2))
        params = nnx.state(nnx.eval_shape(lambda of_model=of_model: build(of_model)), nnx.Param)
        sizes = {
            jax.tree_util.keystr(path): math.prod(leaf.shape)
            for path, leaf in jax.tree.leaves_with_path(nnx.to_pure_dict(params))
            if leaf.ndim == 2 and "position" not in str(path)
        }
        if not model.tied_embeddings:
            sizes = {name: size for name, size in sizes.items() if "['embedding']" not in name}
        no_attention = flops.executed(of_model, kept_fraction=0.0)
        assert no_attention == 6 * sum(sizes.values())
        assert flops.executed(dense_twin(of_model), 1.0) == flops.dense_equivalent(of_model)


def test_gpt2_124m_is_near_the_published_count(run):
    """PaLM's 6N + 12·L·H·C·T (arXiv 2204.02311, appendix B) counts the future too; half of that here."""
    model = gpt2(vocab_size=50257, width=768, layers=12, heads=12)
    of_model = changed(run, model=dataclasses.asdict(model), training={"sequence_length": 1024})
    assert flops.dense_equivalent(of_model) == pytest.approx(6 * 123.6e6 + 12 * 12 * 768 * 1024 / 2, rel=2e-3)


@pytest.mark.parametrize(
    ("kind", "flops_per_second"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA GH200 144G HBM3e", 990e12),
        ("NVIDIA A10G", 70e12),
    ],
)
def test_published_peaks(kind, flops_per_second):
    assert peaks.peak(kind, 8, "bfloat16").flops_per_second == 8 * flops_per_second


@pytest.mark.parametrize(
    "kind",
    ["NVIDIA A1000", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA H200 MIG 1g.18gb"],
)
def test_the_peak_of_another_device_is_not_taken(kind):
    assert peaks.published_peak(kind) is None


def test_an_unknown_device_is_measured(monkeypatch):
    monkeypatch.setitem(peaks.MATMUL_SIZE, "cpu", 256)
    peaks.matmul_rate.cache_clear()
    found = peaks.peak("cpu", 1, "float32")
    peaks.matmul_rate.cache_clear()
    assert 1e8 < found.flops_per_second < 1e14
    assert "measured" in found.source
