"""What `autolabel status` prints of a schedule."""

from dataclasses import asdict

from flows.cli import status
from flows.server.schedules import ScheduleStatus


def test_nights_are_told_with_their_zone(capsys):
    """As `nightly` does it, in winter and in summer."""
    schedule = ScheduleStatus(
        "nightly/nightly", "every night at 01:00 Europe/Berlin", on=True, timezone="Europe/Berlin",
        next_runs=("2026-11-23T01:00+01:00",), last_run="2026-08-01T01:00+02:00",
        last_state="Completed",
    )  # fmt: skip
    status._show_schedule(asdict(schedule))
    head, night = capsys.readouterr().out.splitlines()
    assert head.endswith("that of Sat 2026-08-01 01:00 CEST completed")
    assert night.split() == ["planned", "Mon", "2026-11-23", "01:00", "CET"]
