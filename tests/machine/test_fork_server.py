"""Flow runs' processes as forks: they end as the process that their worker knows, and with it."""

import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from flows.machine import fork_server
from tests.integration.cluster import wait_for


@pytest.fixture(scope="module")
def found():
    """Environment of flow runs whose API takes what it is asked and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = {
            "PREFECT_API_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/api",
            "PREFECT__FLOW_RUN_ID": str(uuid.uuid4()),
        }
        spoken = {"PREFECT_LOGGING_LEVEL": "INFO"}  # other tests may have silenced Prefect
        with fork_server.serving(spoken) as address:
            (path,) = address.values()
            wait_for(lambda: Path(path).exists(), 60)
            wait_for(lambda: listens(path), 120)
            yield os.environ | address | api | spoken


def listens(path):
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


def start(environment, **more):
    command = [sys.executable, "-m", "flows.machine.flow_process"]
    return subprocess.Popen(
        command, env=environment | more, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def forks():
    """Children of our fork server."""
    servers = [
        one for one in psutil.Process().children() if "flows.machine.fork_server" in one.cmdline()
    ]
    return [child for one in servers for child in one.children()]


def test_exit_status_and_output_are_passed_on(found):
    process = start(found, PREFECT__FLOW_RUN_ID="none")
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Invalid flow run id" in told
    assert forks() == []


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_signals_end_both(found, sent):
    process = start(found)
    (fork,) = wait_for(forks)
    assert fork.pid != process.pid
    process.send_signal(sent)
    process.communicate(timeout=60)
    assert process.returncode == -sent
    wait_for(lambda: not forks())


def test_a_fork_that_is_killed_ends_its_process(found):
    process = start(found)
    (fork,) = wait_for(forks)
    fork.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "other", [{"PYTHONHASHSEED": "7"}, {"AUTOLABEL_FORK_SERVER": "/nowhere/at/all"}]
)
def test_what_no_fork_can_be_starts_on_its_own(found, other):
    process = start(found, PREFECT__FLOW_RUN_ID="none", **other)
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Invalid flow run id" in told
