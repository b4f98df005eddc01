"""Who is ahead, in words, from a difference and its interval."""

from dataclasses import dataclass
from typing import Literal

from focus_jax.telemetry.metrics import Row


@dataclass(frozen=True)
class Outcome:
    """A difference focus − dense in nats per token with its 95 % interval, None where it could not be estimated."""

    delta_nats: float
    interval: tuple[float, float] | None

    @classmethod
    def of(cls, compare_row: Row) -> "Outcome":
        bounds = compare_row["delta_ci95"]
        return cls(compare_row["delta_nats"], tuple(bounds) if bounds is not None else None)

    @property
    def ahead(self) -> Literal["focus", "dense", "unclear", "unknown"]:
        if self.interval is None:
            return "unknown"
        low, high = self.interval
        return "focus" if high < 0 else "dense" if low > 0 else "unclear"
