"""The project's commands as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

from focus_jax import config_loading
from focus_jax.config import Config

ROOT = Path(__file__).parent.parent


def write_config_file(folder: Path, run: Config) -> Path:
    """A config file for any Config, by way of its JSON."""
    stored = folder / "stored.json"
    stored.write_text(config_loading.to_json(run))
    path = folder / "experiment.py"
    path.write_text(
        "from pathlib import Path\nfrom focus_jax.config_loading import read_json\n\n"
        f"def get_config():\n    return read_json(Path({str(stored)!r}))\n"
    )
    return path


def command(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, program, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


def start(program: str, *arguments: str | Path, compiled: Path) -> subprocess.Popen[str]:
    """A command that may be killed, so it keeps its compiled programs in a folder that no other test reads."""
    return subprocess.Popen(
        [sys.executable, program, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(compiled)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
