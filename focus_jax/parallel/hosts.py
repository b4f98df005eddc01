"""The processes of a run, on one host or several: how they join, which one speaks, and how they agree.

All of them execute the same program on their parts of the same arrays. Process 0 alone writes what there is one of.
"""

import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

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
    if not is_first():
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - for the rest of the process


def leave(code: int) -> int:
    """The exit code of a process that ends with all others. One that ends by an error goes at once, since JAX would
    have it wait for the others; they end when they miss it."""
    if code not in (0, CONTINUE_ME) and "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def is_first() -> bool:
    """Whether this is the process that writes what there is one of."""
    import jax

    return jax.process_index() == 0


def on_first[Result](act: Callable[[], Result]) -> Result:
    """What `act` returns in process 0, in all processes; it is called there alone. Raises its UserError in all."""
    import jax

    if jax.process_count() == 1:
        return act()
    from jax.experimental import multihost_utils

    outcome: Any = None
    if is_first():
        try:
            outcome = act()
        except UserError as error:
            outcome = error
    message = np.frombuffer(pickle.dumps(outcome), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(message))))
    sent = np.resize(message, length)
    outcome = pickle.loads(multihost_utils.broadcast_one_to_all(sent).tobytes())
    if isinstance(outcome, UserError):
        raise outcome
    return outcome


def first_else[Result](act: Callable[[], Result], otherwise: Callable[[], Result]) -> Result:
    """What `act` returns in process 0, and, once it has, what `otherwise` does in each of the others. A UserError of
    `act` is raised in all."""
    mine: list[Result] = []
    on_first(lambda: mine.append(act()))
    return mine[0] if mine else otherwise()


class Vote:
    """Asks all processes about something at every step, without waiting: an answer comes one step later.

    A run of one process has its answer at once.
    """

    def __init__(self) -> None:
        import jax

        self._devices = jax.sharding.Mesh(np.array(jax.devices()), ("device",))
        self._cast: Any = None
        self._any = jax.jit(
            lambda votes: votes.any(axis=0),
            out_shardings=jax.sharding.NamedSharding(self._devices, jax.sharding.PartitionSpec()),
        )

    def any(self, *mine: bool) -> tuple[bool, ...]:
        """For each question, whether any process said yes when it was asked last."""
        import jax

        if jax.process_count() == 1:
            return mine
        answer = tuple(map(bool, np.asarray(self._cast))) if self._cast is not None else (False,) * len(mine)
        place = jax.sharding.NamedSharding(self._devices, jax.sharding.PartitionSpec("device"))
        votes = np.tile(np.array(mine), (jax.local_device_count(), 1))
        self._cast = self._any(jax.make_array_from_process_local_data(place, votes))
        return answer

    def forget(self) -> None:
        """Drops what has been asked and not been answered."""
        self._cast = None


def _named_in(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Arguments of jax.distributed.initialize; None for a run of one process."""
    if _COORDINATOR in environment and (_PROCESSES in environment or _NUMBER in environment):
        try:
            processes, number = int(environment[_PROCESSES]), int(environment[_NUMBER])
        except (KeyError, ValueError):
            raise UserError(f"{_PROCESSES}, {_NUMBER}: both have to be numbers where one is set") from None
        if not 0 <= number < processes:
            raise UserError(f"{_NUMBER}: {number} is not one of {processes} processes (0 to {processes - 1})")
        where = {"coordinator_address": environment[_COORDINATOR], "num_processes": processes, "process_id": number}
        # JAX would ask the launcher for what is not given, and take one device for each process of a host.
        return {**where, "cluster_detection_method": "deactivate"}
    if any(int(environment.get(name, "1")) > 1 for name in _LAUNCHERS):
        return {}
    return None


@contextlib.contextmanager
def _ends_after(seconds: int, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Ends this process where the block takes longer."""

    def end() -> None:
        which = f"process {arguments['process_id']} of {arguments['num_processes']}" if arguments else "this process"
        where = f" at {arguments['coordinator_address']}" if arguments else ""
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
