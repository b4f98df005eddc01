"""A profiler's trace of a few steps, for TensorBoard (XProf) and Perfetto."""

from pathlib import Path

import jax

from focus_jax import config
from focus_jax.errors import UserError


class StepTrace:
    """Traces the steps that the config names into a folder. Raises UserError where they are behind `first_step`."""

    def __init__(self, profile: config.Profile, folder: Path, first_step: int):
        self._first, self._last = profile.first_and_last() or (0, 0)
        if 0 < self._first <= first_step:
            raise UserError(
                f"profile.steps: {profile.steps} begins at step {self._first}, but the run goes on after step "
                f"{first_step}; name later steps"
            )
        self._folder = folder
        self._running = False

    def is_edge(self, step: int) -> bool:
        """Whether the trace begins with this step, or ended with the one before; no step may be in flight then."""
        return step == self._first or (self._running and step == self._last + 1)

    def at_edge(self) -> None:
        """To be called before such a step."""
        if self._running:
            self.close()
        else:
            jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
            self._running = True

    def close(self) -> None:
        """Writes the trace, if one is being taken."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
            print(f'trace: {self._folder} (README, "Profile")')
