"""`autolabel up`, again, and `autolabel down`: a workstation from nothing and back."""

import json

import psutil
import pytest

from tests.integration.cluster import free_port
from tests.integration.runs import Home


def running(process):
    """Whether it runs; one that nobody has asked how it ended does not."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_up_twice_and_down(tmp_path):
    home = Home(tmp_path / "home")
    up = ["up", "--port", str(free_port()), "--json"]

    def run(*arguments):
        output, told = home.start(*arguments).communicate(timeout=400)
        return output, told

    output, told = run(*up)
    first = json.loads(output)
    assert set(first) == {"prefect", "database", "worker-gpu", "worker-cpu", "sign_in"}, told
    folder = tmp_path / "home" / "cache" / "services"
    steps = [line for line in told.splitlines() if line.startswith("starting ")]
    assert steps[0] == "starting Prefect's server"
    assert len(steps) == 5, "where no spinner turns, each step has its line"
    services = json.loads((folder / "services.json").read_text())
    password = (folder / "prefect-password").read_text()
    assert password.rpartition(":")[2] not in output + told, "this is no terminal, but a log"
    processes = [psutil.Process(one["pid"]) for one in services]
    listening = [
        one.laddr.ip
        for process in processes
        for child in [process, *process.children(recursive=True)]
        for one in child.net_connections()
        if one.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) == {"127.0.0.1"}
    assert json.loads(run(*up)[0]) == first
    status = json.loads(run("status", "--json")[0])
    assert len(status["workers_online"]) == 1

    output, _ = run("down")
    assert "worker-gpu" in output
    assert not any(map(running, processes))
    assert "nothing of ours" in run("down")[0]
