"""What `up` puts on the supervisor's list, and `down` ends."""

import os
import re
import signal
import socket
import sys

import psutil
import pytest
from click.testing import CliRunner

from flows.cli import doctor, status
from flows.machine import services
from flows.machine.programs import NUMBER, Program
from flows.server.sign_in import write_links
from sam2_core.types import AutolabelError
from tests.integration.cluster import free_port, wait_for

SLEEPS = [sys.executable, "-c", "import time; time.sleep(300)"]


@pytest.fixture(params=["short", "so long that no socket fits below it " * 3])
def cache(request, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / request.param))
    yield
    services.stop_all()


def server(port):
    return Program("server", SLEEPS, port=port, path="/api")


def test_workers_end_before_the_server_whenever_that_was_started(cache):
    """They give their shards back to it; `up` starts one that has died again, after them."""
    for one in (Program("worker-gpu", SLEEPS, count=2), Program("server", SLEEPS, order=1)):
        services.start(one)
        wait_for(lambda name=one.name: services.running()[name].pid, 30)
        assert services.start(one) == services.running()[one.name]
    assert services.running()["worker-gpu"].count == 2
    assert services.stop_all() == ["server", "worker-gpu"]
    told = re.findall(r"stopped: (\S+)", (services.folder() / "supervisor.log").read_text())
    assert {*told[:2]} == {"worker-gpu_0", "worker-gpu_1"}
    assert told[2:] == ["server_0"]
    assert services.running() == {}
    assert services.stop_all() == []


def test_who_stops_all_hears_what_is_waited_for(cache):
    services.start(Program("worker-cpu", SLEEPS))
    told = []
    services.stop_all(told.append)
    assert told == [["worker-cpu"]]


def test_a_killed_program_is_started_again_and_nobody_gets_its_port(cache):
    port = free_port()
    services.start(server(port))
    first = wait_for(lambda: one if (one := services.running()["server"]).pid else None, 30, 0.01)
    assert first.url == f"http://127.0.0.1:{port}/api"
    assert services.running_api() == first.url
    os.kill(first.pid, signal.SIGKILL)
    while services.running()["server"].pid in {0, first.pid}:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))


def test_programs_end_with_a_supervisor_that_is_killed_and_the_next_one_starts_anew(cache):
    port = free_port()
    for one in (Program("database", SLEEPS), server(port)):
        services.start(one)

    def sleeping():
        found = [one.pid for one in services.running().values()]
        return all(found) and all(psutil.Process(one).cmdline() == SLEEPS for one in found)

    wait_for(sleeping, 30)
    supervisor = psutil.Process(psutil.Process(services.running()["server"].pid).ppid())
    programs = supervisor.children()  # with the one that holds the server's port
    write_links(services.folder(), {})  # as `up` does last, and `down` removes it
    assert not services.has_died()
    supervisor.kill()
    wait_for(lambda: not any(one.is_running() for one in programs), 30)
    assert services.running() == {}
    assert services.has_died()
    told = CliRunner().invoke(status.command, [])
    assert "nothing runs of what `autolabel up` started" in told.stderr
    assert (told.exit_code, type(told.exception)) == (1, SystemExit), (
        "also where nothing is labeled"
    )
    services.start(server(port))
    assert not services.has_died()
    assert list(services.running()) == ["server"]


def test_a_program_that_fails_is_told_with_its_last_words_and_tried_again(cache):
    failing = [sys.executable, "-c", "import sys; sys.exit('50% is wrong')"]
    with pytest.raises(AutolabelError, match=r"server did not start: 50% is wrong.*log is.*down"):
        services.wait_until(services.start(Program("server", failing)), lambda: False)
    log = services.folder() / "server.log"
    wait_for(lambda: log.read_text().count("50% is wrong") > 1, 30)
    assert list(services.running()) == ["server"]


def test_a_program_gets_its_environment_as_it_is(cache):
    tells = "import os, time; print(os.environ['NAME'], flush=True); time.sleep(99)"
    named = {"NAME": "100%, a b"}
    services.start(Program("server", [sys.executable, "-c", tells], environment=named))
    log = services.folder() / "server.log"
    wait_for(lambda: log.is_file() and log.read_text() == "100%, a b\n", 30)


def test_several_processes_have_failed_when_all_have(cache, tmp_path):
    """Another one may yet take work."""
    failing = "import sys, time; sys.argv[1] == '0' and sys.exit('it is sick'); time.sleep(99)"
    command = [sys.executable, "-c", failing, NUMBER]
    looks = iter(range(30))
    service = services.start(Program("worker-gpu", command, count=2))
    services.wait_until(service, lambda: next(looks) == 20)
    services.stop_all()
    failing = [sys.executable, "-c", "import sys; sys.exit(f'{sys.argv[1]} is sick')", NUMBER]
    service = services.start(Program("worker-gpu", failing, count=2))
    with pytest.raises(AutolabelError, match=r"0 is sick; 1 is sick; .*_0.log, .*_1.log"):
        services.wait_until(service, lambda: False)


def test_a_supervisor_that_was_stopped_is_told_and_not_waited_for(cache, monkeypatch):
    monkeypatch.setattr(services, "ANSWER_S", 0.3)
    services.start(Program("server", SLEEPS))
    supervisor = int((services.folder() / "supervisor.pid").read_text())
    os.kill(supervisor, signal.SIGSTOP)
    try:
        for what in (services.running, services.stop_all):
            with pytest.raises(AutolabelError, match=f"process {supervisor}.* does not answer"):
                what()
        told = CliRunner().invoke(doctor.command, [])
        assert f"kill -CONT {supervisor}" in told.output
    finally:
        os.kill(supervisor, signal.SIGCONT)
    assert services.stop_all() == ["server"]
