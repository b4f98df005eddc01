"""SIGTERM and SIGINT ask a run to stop after the current step; a second one stops it at once."""

import os
import signal
import socket
import threading
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Python's handlers wait until the main thread is back from a compilation or a step, which may take minutes. So a
    thread of its own hears the signals as they come, answers the first and obeys the second."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopSignals":
        self._ear, self._mouth = socket.socketpair()
        self._mouth.setblocking(False)
        self._previous_mouth = signal.set_wakeup_fd(self._mouth.fileno())
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        threading.Thread(target=_listen, args=(self._ear,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._previous_mouth)
        self._mouth.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


def _listen(ear: socket.socket) -> None:
    """Hears the number of every signal of the process, until the other end is closed."""
    heard = 0
    with ear:
        while number := ear.recv(1):
            heard += number[0] in _SIGNALS
            if heard > 1:
                os._exit(128 + number[0])
            # Not print: the main thread may be in the middle of one.
            os.write(2, b"stopping after this step; a second signal stops at once\n")
