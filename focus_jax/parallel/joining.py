"""How the processes of a run find each other, and how one leaves. Imports JAX only where there are several."""

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from focus_jax.errors import CONTINUE_ME, UserError

# sysexits.h EX_UNAVAILABLE.
CANNOT_JOIN = 69
_PROCESSES, _NUMBER, _COORDINATOR = "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"
# What launchers tell every process of a job about their number; JAX reads the rest of it.
_LAUNCHERS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")


def join(seconds: int) -> None:
    """Joins the other processes of the run where the environment names some: JAX_COORDINATOR_ADDRESS (host:port of
    process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID, or what srun and mpirun set. To be called before JAX computes.

    A process other than 0 prints nothing to stdout from then on. Ends the process with CANNOT_JOIN and one line where
    not all have come after that many seconds; raises UserError where the environment is incomplete.
    """
    arguments = _named_in(os.environ)
    if arguments is None:
        return
    import jax

    # Its handlers would take the signals that end a run in order.
    jax.config.update("jax_enable_preemption_service", False)
    with _ends_after(seconds, arguments):
        # JAX itself aborts with a stack trace at its timeout, so that is made to come too late.
        jax.distributed.initialize(**arguments, initialization_timeout=seconds + 60)
    sys.excepthook = _print_and_leave
    if jax.process_index():
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - for the rest of the process


def leave(code: int) -> int:
    """The exit code of a process that ends with all others. One that ends by an error goes at once, since JAX would
    have it wait for the others; they end when they miss it."""
    if code not in (0, CONTINUE_ME) and "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _print_and_leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, error, trace)
    leave(1)


def _named_in(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Arguments of jax.distributed.initialize; None for a run of one process."""
    launched = any(int(environment.get(name, "1")) > 1 for name in _LAUNCHERS)
    if not any(name in environment for name in (_COORDINATOR, _PROCESSES, _NUMBER)):
        return {} if launched else None
    if launched and environment.keys().isdisjoint((_PROCESSES, _NUMBER)):
        return {"coordinator_address": environment[_COORDINATOR]}
    try:
        address, processes, number = environment[_COORDINATOR], int(environment[_PROCESSES]), int(environment[_NUMBER])
    except (KeyError, ValueError):
        raise UserError(
            f"{_COORDINATOR}, {_PROCESSES}, {_NUMBER}: set all of them, to HOST:PORT and two numbers, or none"
        ) from None
    if not 0 <= number < processes:
        raise UserError(f"{_NUMBER}: {number} is not one of {processes} processes, 0 to {processes - 1}")
    return {
        "coordinator_address": address,
        "num_processes": processes,
        "process_id": number,
        # JAX would ask the launcher for what is not given, and take one device for each process of a host.
        "cluster_detection_method": "deactivate",
    }


@contextlib.contextmanager
def _ends_after(seconds: int, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Ends this process where the block takes longer."""

    def end() -> None:
        counted = "process_id" in arguments
        which = f"process {arguments['process_id']} of {arguments['num_processes']}" if counted else "this process"
        where = f" at {arguments['coordinator_address']}" if "coordinator_address" in arguments else ""
        message = (
            f"error: mesh.join_seconds: {which} has not met the others{where} after {seconds} s; look whether all were "
            "started, and whether they reach that host and port\n"
        )
        os.write(2, message.encode())
        os._exit(CANNOT_JOIN)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
