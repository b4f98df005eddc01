"""The results file of a study."""

import pytest

from focus_jax.errors import UserError
from focus_jax.studies.results import Results


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"form":', "line 2 is no JSON row; remove it"),
        ('{"form": "kind", "loss": 1}', "line 2 is no row of this study: it has no seed, accuracy; name another file"),
        ("3", "line 2 is no row of this study: it has no form, seed, accuracy; name another file"),
    ],
)
def test_a_line_that_is_no_row_is_named(line, message, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"form": "kind", "seed": 0, "accuracy": 1}\n' + line)
    with pytest.raises(UserError, match=rf"rows\.jsonl: {message}"):
        Results(tmp_path / "rows.jsonl", ("form", "seed"), ("accuracy",))
