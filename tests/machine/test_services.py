"""What `up` starts and `down` ends."""

import sys

import pytest

from flows.machine import services

SLEEPS = [sys.executable, "-c", "import time; time.sleep(300)"]


@pytest.mark.parametrize(
    "order", [("server", "database", "worker"), ("worker", "database", "server")]
)
def test_workers_end_before_the_server_whenever_that_was_started(order, tmp_path, monkeypatch):
    """They give their shards back to it; `up` starts one that has died again, after them."""
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    for name in order:
        services.start(name, SLEEPS)
    assert services.stop_all() == ["worker", "database", "server"]
    assert services.running() == {}
