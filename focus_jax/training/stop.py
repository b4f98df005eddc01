"""SIGTERM and SIGINT ask a run to stop after the current step; a second one stops it at once."""

import os
import signal
from types import FrameType, TracebackType

# sysexits.h EX_TEMPFAIL: not done, run the same command again to continue.
CONTINUE_ME = 75


class StopSignals:
    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.requested = True
        # Not print: the signal may have come in the middle of one.
        os.write(2, b"stopping after this step; a second signal stops at once\n")
