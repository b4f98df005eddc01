"""Files of evaluations/STEP/: the losses of every held-out token under one reading, and what belongs to them."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from focus_jax.errors import UserError


def save(path: Path, **arrays: np.ndarray) -> None:
    """The file is there whole or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    partial.replace(path)


def load(path: Path) -> dict[str, np.ndarray]:
    """Raises UserError where the file is damaged."""
    try:
        with np.load(path) as arrays:
            return dict(arrays)
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        raise UserError(f"{path}: damaged; remove it, and the comparison with it is left out") from None
