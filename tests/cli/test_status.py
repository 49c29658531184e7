"""What `autolabel status` prints of a schedule, and of workers that are refused."""

import sys
from dataclasses import asdict

from click.testing import CliRunner

from flows.cli import status
from flows.machine import services
from flows.machine.programs import Program
from flows.server.client import asked_once
from flows.server.schedules import ScheduleStatus
from sam2_core.types import AutolabelError
from tests.integration.cluster import wait_for


def test_nights_are_told_with_their_zone(monkeypatch):
    """As `nightly` does it, in winter and in summer."""
    schedule = ScheduleStatus(
        "nightly/nightly", "every night at 01:00 Europe/Berlin", on=True, timezone="Europe/Berlin",
        next_runs=("2026-11-23T01:00+01:00",), last_run="2026-08-01T01:00+02:00",
        last_state="Completed",
    )  # fmt: skip
    found = {"workers_online": [], "workers_refused": {}, "server_errors": None, "runs": []}
    found["schedules"] = [asdict(schedule)]
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr("flows.server.status.collect_status", lambda _: found)
    lines = iter(CliRunner().invoke(status.command).output.splitlines())
    head = next(line for line in lines if line.startswith("schedule of nightly/nightly"))
    night = next(lines)
    assert head.endswith("the last run of Sat 2026-08-01 01:00 CEST completed")
    assert night.split() == ["planned", "Mon", "2026-11-23", "01:00", "CET"]


def test_why_workers_are_refused_is_told_where_their_server_fails_too(monkeypatch, tmp_path):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # nobody listens
    refused = "import sys; sys.exit('one takes no work: its disk is full')"
    services.start(Program("worker-gpu", [sys.executable, "-c", refused]))
    wait_for(services.refused_workers)
    with asked_once():
        result = CliRunner().invoke(status.command)
    services.stop_all()
    assert isinstance(result.exception, AutolabelError)
    assert result.output.startswith("one takes no work: its disk is full")
