"""What `autolabel status` prints of a schedule, and of workers that are refused."""

from dataclasses import asdict

from click.testing import CliRunner

from flows.cli import status
from flows.server.client import asked_once
from flows.server.schedules import ScheduleStatus
from sam2_core.types import AutolabelError


def test_nights_are_told_with_their_zone(monkeypatch):
    """As `nightly` does it, in winter and in summer."""
    schedule = ScheduleStatus(
        "nightly/nightly", "every night at 01:00 Europe/Berlin", on=True, timezone="Europe/Berlin",
        next_runs=("2026-11-23T01:00+01:00",), last_run="2026-08-01T01:00+02:00",
        last_state="Completed",
    )  # fmt: skip
    found = {"workers_online": [], "workers_refused": {}, "label_runs": [], "runs": []}
    found["database_bytes"] = 5_000_000
    found["schedules"] = [asdict(schedule)]
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr("flows.server.status.collect_status", lambda _: found)
    shown = CliRunner().invoke(status.command).output
    assert "Prefect's database: 5 MB\n" in shown
    lines = iter(shown.splitlines())
    head = next(line for line in lines if line.startswith("schedule of nightly/nightly"))
    night = next(lines)
    assert head.endswith("the last run of Sat 2026-08-01 01:00 CEST completed")
    assert night.split() == ["planned", "Mon", "2026-11-23", "01:00", "CET"]


def test_why_workers_are_refused_is_told_where_their_server_fails_too(monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # nobody listens
    monkeypatch.setattr(status, "refused_workers", lambda: {"one": "its disk is full"})
    with asked_once():
        result = CliRunner().invoke(status.command)
    assert isinstance(result.exception, AutolabelError)
    assert result.output.startswith("one takes no work: its disk is full")
