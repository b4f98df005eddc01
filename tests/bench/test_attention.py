"""The attention benchmark at a length that takes no time: rows and their arithmetic, not the speed."""

import json

import numpy as np
import pytest

from focus_jax.bench import attention

ROW = {
    "tokens", "top_k", "groups", "window", "heads", "channels", "batch", "dtype", "device", "direction",
    "implementation", "dense_implementation", "dense_seconds", "focus_seconds", "speedup", "bound", "commit",
}  # fmt: skip


def test_writes_a_row_for_each_case(tmp_path):
    path = tmp_path / "rows.json"
    options = "--tokens 96 --top-k 1 --groups 4 --window 8 --heads 2 --channels 32 --direction both --routing skewed"
    assert attention.main([*options.split(), "--repeats", "1", "--json", str(path)]) == 0
    [row] = json.loads(path.read_text())
    assert row.keys() >= ROW
    assert row["speedup"] == pytest.approx(row["dense_seconds"] / row["focus_seconds"])
    assert sum(row[f"{part}_share"] for part in ("sort", "local", "distant", "merge")) == pytest.approx(1)
    assert row["dense_flops_per_second"] == pytest.approx(14 * 32 * 2 * (96 * 97 / 2) / row["dense_seconds"])
    assert 1 < row["bound"] < 4


def test_skewed_routing_puts_half_of_the_tokens_in_one_group():
    [case] = attention.cases(attention.parse(["--tokens", "4000", "--routing", "skewed", "--json", "unused"]))
    shares = np.bincount(attention.routed_groups(case)[0, :, 0]) / 4000
    assert shares[0] == pytest.approx(0.5, abs=0.03)
    assert shares[1:].max() < 0.1


@pytest.mark.parametrize("option", ["--tokens=0", "--tokens=many", "--direction=backward", "--implementation=flash"])
def test_bad_options_end_with_code_2(option: str, tmp_path, capsys):
    try:
        code = attention.main([option, "--json", str(tmp_path / "rows.json")])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert option.split("=")[0].removeprefix("--") in capsys.readouterr().err
