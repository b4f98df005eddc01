"""The table of shardings: every parameter is in it, and what does not divide is refused."""

import re

import pytest

from focus_jax.errors import UserError
from focus_jax.model import parameter_count
from focus_jax.sharding_table import sharding_table
from tests.changes import changed


def test_like_layers_are_one_line_and_all_parameters_are_counted(run):
    table = sharding_table(changed(run, mesh={"data": 2, "fsdp": 2, "tensor": 2}), 8).splitlines()
    (up,) = (line for line in table if "mlp.up.kernel" in line)
    cells = ["blocks.*.mlp.up.kernel", "width, mlp", "32 × 48", "fsdp, tensor", "16 × 24", "0…1"]
    assert re.split(r"  +", up) == cells
    assert f"data 2 · fsdp 2 · tensor 2. {parameter_count(run):,} parameters" in table[-1]


def test_one_dense_layer_stands_apart(run):
    table = sharding_table(changed(run, attention={"dense_layers": (0,)}), 1).splitlines()
    (router,) = (line for line in table if "centroids" in line)
    assert router.endswith("1")


def test_what_does_not_divide_is_refused(run):
    with pytest.raises(UserError, match=r"^model\.kv_heads: 2 do not divide"):
        sharding_table(changed(run, mesh={"tensor": 4}), 4)
    with pytest.raises(UserError, match=r"^training\.batch_size"):
        sharding_table(run, 8)
