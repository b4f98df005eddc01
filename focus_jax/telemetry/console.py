"""What the terminal shows of a run: a bar, or now and then a line where there is no terminal, and a table at each
checkpoint."""

import sys

from tqdm import tqdm

from focus_jax.telemetry.metrics import Row
from focus_jax.telemetry.table import LEGEND, comparison_table

LINES_PER_RUN = 20


class Console:
    """Progress on stderr as a bar, or on stdout as about twenty lines a run; tables on stdout."""

    def __init__(self, steps: int, first_step: int, show_bar: bool):
        self._steps = steps
        self._first_step = first_step
        self._step = first_step
        self._latest: dict[str, Row] = {}
        self._checkpoint: list[Row] = []
        self._legend = f"{LEGEND}\n"
        self._bar = None
        if show_bar and sys.stderr.isatty():
            self._bar = tqdm(
                total=steps,
                initial=first_step,
                smoothing=0,
                dynamic_ncols=True,
                bar_format="{percentage:3.0f} %|{bar}| step {n_fmt}/{total_fmt}{postfix} · {remaining} left",
            )

    def write(self, row: Row) -> None:
        if row["kind"] == "train":
            self._latest[row["model"]] = row
        elif row["kind"] in ("eval", "compare"):
            self._checkpoint.append(row)
        elif row["kind"] == "event":
            self._print(f"step {row['step']:,}: {row['message']}")

    def progress(self, step: int) -> None:
        before, self._step = self._step, step
        if self._bar is not None:
            self._bar.set_postfix_str(self._figures(), refresh=False)
            self._bar.update(step - before)
        elif self._latest and LINES_PER_RUN * step // self._steps > LINES_PER_RUN * before // self._steps:
            self._print(f"step {step:,} of {self._steps:,} · {self._figures()} · {self._time_left()}")

    def checkpoint_done(self, step: int) -> None:
        rows, self._checkpoint = [row for row in self._checkpoint if row["step"] == step], []
        if not rows:
            return
        title = f"\ncheckpoint at step {step:,} of {self._steps:,}, {rows[0]['tokens']:,} tokens"
        self._print("\n".join([title, comparison_table(rows), self._legend]))
        self._legend = ""

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _figures(self) -> str:
        """Loss and speed of every model, in the order they were first seen, and their wait for a batch."""
        if not self._latest:
            return ""
        losses = ", ".join(f"{model} {row['loss']:.3f}" for model, row in self._latest.items())
        speeds = " / ".join(f"{row['tokens_per_second']:,.0f}" for row in self._latest.values())
        shares = " / ".join(f"{100 * row['mfu']:.0f}" for row in self._latest.values())
        wait = 1000 * next(reversed(self._latest.values()))["data_seconds"]
        return f"loss {losses} · {speeds} tokens/s, {shares} % of peak · data {wait:.1f} ms a step"

    def _time_left(self) -> str:
        """Of training alone, at the pace so far."""
        rows = self._latest.values()
        seconds = sum(row["seconds"] * (self._steps - self._step) / row["step"] for row in rows)
        return f"{tqdm.format_interval(int(seconds))} of training left"

    def _print(self, text: str) -> None:
        tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()
