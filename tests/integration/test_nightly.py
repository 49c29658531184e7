"""Every night, as a user sets it up: a schedule labels, and is there after a restart."""

import json
import os
import signal

import pytest

from tests.integration.cluster import free_port, wait_for
from tests.integration.runs import MICRO, Home, write_sequence


@pytest.fixture
def workstation(tmp_path):
    """A home in which `autolabel up` is called again and again; whatever runs there is ended."""
    home = Home(tmp_path / "home", PREFECT_WORKER_QUERY_SECONDS="2")
    up = ["up", "--port", free_port(), "--workers", "1"]
    home.up = lambda: home.run(*up, timeout=400)
    yield home
    _, told = home.start("down").communicate(timeout=300)
    assert "Traceback" not in told


@pytest.mark.ci
@pytest.mark.timeout(900)
def test_a_schedule_labels_and_outlives_a_restart(workstation, tmp_path):
    sources, out = tmp_path / "in", tmp_path / "out"
    write_sequence(sources / "drive0", tmp_path / "boxes", 2)
    workstation.up()
    (schedule,) = status(workstation)["schedules"]
    assert not schedule["on"]
    arguments = [sources, "--out", out, "--boxes", tmp_path / "boxes", "--model", MICRO]
    workstation.start(
        "nightly", "on", *arguments, "--no-dataset", "--cron", "* * * * *"
    ).communicate(timeout=120)
    wait_for(lambda: labeled(out) == {"drive0"}, 400, every=2)
    completed = wait_for(lambda: night(workstation, "Completed"), 200, every=5)
    assert completed["on"]
    assert completed["next_run"]
    assert completed["problem"] == ""

    for one in services(workstation):  # as the machine's end does it
        os.killpg(one["pid"], signal.SIGKILL)
    workstation.up()
    assert wait_for(lambda: status(workstation)["schedules"][0]["next_run"], 100, every=2)
    doctor = json.loads(workstation.start("doctor", "--json").communicate(timeout=120)[0])
    assert "nightly/nightly" in doctor["findings"]["schedules"]["found"]

    workstation.start("nightly", "off").communicate(timeout=120)
    assert not status(workstation)["schedules"][0]["on"]


def status(home):
    return json.loads(home.start("status", "--json").communicate(timeout=120)[0])


def night(home, state):
    """The schedule when its last run ended so."""
    return next((one for one in status(home)["schedules"] if one["last_state"] == state), None)


def services(home):
    return json.loads((home.folder / "cache" / "services" / "services.json").read_text())


def labeled(out):
    return {path.name.partition("@")[0] for path in out.glob("manifests/*/*.json")}
