"""Where the kernels can run."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

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
    device = jax.sharding.get_abstract_mesh().abstract_device
    platform = device.platform if device else jax.default_backend()
    if platform not in ("gpu", "cuda") and not interpreting():
        raise NotImplementedError(f'pallas needs an NVIDIA GPU, this is {platform}; "blockwise" runs everywhere')
