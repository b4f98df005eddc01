"""Where the kernels can run."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from focus_jax.ops.platform import target_platform

_interpreting: ContextVar[bool] = ContextVar("interpreting", default=False)


@contextmanager
def interpreted() -> Iterator[None]:
    """Kernels traced inside run in Pallas' interpreter, on any platform and slowly: for tests."""
    token = _interpreting.set(True)
    try:
        yield
    finally:
        _interpreting.reset(token)


def interpreting() -> bool:
    return _interpreting.get()


def check_target() -> None:
    """Raises NotImplementedError where kernels for an NVIDIA GPU can neither run nor be compiled."""
    platform = target_platform()
    if platform != "gpu" and not interpreting():
        raise NotImplementedError(f'pallas needs an NVIDIA GPU, this is {platform}; "blockwise" runs everywhere')
