"""What a run does when an update was left out: says which batch it was, and goes on or ends as configured."""

import math
from collections.abc import Callable

from focus_jax import config
from focus_jax.data.batches import places
from focus_jax.data.store import TokenStore
from focus_jax.errors import UserError
from focus_jax.training.step import StepMetrics

MOST_SKIPPED_IN_A_ROW = 10


class Diverged(UserError):  # noqa: N818 - it names what happened to the run
    """A loss or gradient that is not finite, or a spike of the loss; the update was not applied."""

    exit_code = 1


class BadUpdates:
    """`event(step, name, message, **fields)` records what happened."""

    def __init__(self, run: config.Config, store: TokenStore, event: Callable[..., None]):
        self._run = run
        self._store = store
        self._event = event

    def left_out(self, model: config.ModelName, step: int, metrics: StepMetrics) -> None:
        """Raises Diverged where the run is to stop."""
        what = describe(model, metrics)
        skipping = self._run.guard.bad_update == "skip"
        count = f"; update skipped, {metrics.skipped} so far" if skipping else ""
        self._event(
            step,
            "loss_spike" if metrics.finite else "not_finite",
            what + count,
            model=model,
            loss=float(metrics.loss),
            grad_norm=float(metrics.grad_norm),
            deviations=float(metrics.deviations),
            skipped=int(metrics.skipped),
            sequences=[list(place) for place in self._places(step)],
        )
        if not skipping:
            raise Diverged(
                f"step {step}: {what}; that update was not applied; look at its batch with --replay {step}, or leave "
                "it out with --guard.bad-update skip"
            )
        if metrics.skipped_in_a_row >= MOST_SKIPPED_IN_A_ROW:
            raise Diverged(
                f"step {step}: {what}; {metrics.skipped_in_a_row} updates in a row were skipped; look at a batch with "
                f"--replay {step}"
            )

    def _places(self, step: int) -> list:
        training = self._run.training
        return places(
            self._store,
            sequence_length=training.sequence_length,
            batch_size=training.batch_size,
            seed=self._run.seed,
            number=step - 1,
        )


def describe(model: config.ModelName, metrics: StepMetrics) -> str:
    if not metrics.finite:
        if math.isfinite(metrics.loss) and math.isfinite(metrics.grad_norm):
            return f"the gradient of the routers of {model} is not finite"
        return f"loss {metrics.loss} and gradient norm {metrics.grad_norm} of {model} are not both finite"
    return (
        f"loss {metrics.loss:.4g} of {model} is {metrics.deviations:.1f} standard deviations above the mean of recent "
        "losses"
    )
