import contextlib

import pytest
import wandb

from tests.telemetry.wandb_server import WandbServer


@pytest.fixture(autouse=True)
def _own_account(tmp_path, monkeypatch):
    """No key, no settings and no server of whoever runs the tests."""
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield
    # A test may have ended W&B's process itself.
    with contextlib.suppress(ConnectionError):
        wandb.teardown()


@pytest.fixture
def server(monkeypatch):
    server = WandbServer()
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    yield server
    server.stop()
