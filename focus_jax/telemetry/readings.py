"""How a model was read when it was measured, and the names that people and dashboards know it by."""

import re
from typing import NamedTuple

from focus_jax.telemetry.metrics import Row


class LoggedReading(NamedTuple):
    """A model with the way its distant tokens were read; the fields are those of `eval` and `compare` rows."""

    model: str
    routing: str
    top_k: int | None
    gate: str | None
    causal: bool

    @classmethod
    def of(cls, row: Row) -> "LoggedReading":
        """Of an `eval` row, or of a `compare` row, which is about Focus."""
        return cls(
            row.get("model", "focus"), row["routing"], row.get("top_k"), row.get("gate"), row.get("causal", True)
        )

    @property
    def name(self) -> str:
        """As people read it: "dense", "focus soft", "focus hard top_k=1, log gate"."""
        words = self.model if self.routing == "none" else f"{self.model} {self.routing}"
        if self.top_k is not None:
            words += f" top_k={self.top_k}"
        if self.gate is not None and self.routing == "hard":
            words += f", {self.gate} gate"
        return words if self.causal else f"{words} (NOT CAUSAL)"

    @property
    def key(self) -> str:
        """As a dashboard's key may be spelt (letters, digits and underscores): "focus_hard_top_k_1_log_gate"."""
        return re.sub(r"\W+", "_", self.name).strip("_").lower()
