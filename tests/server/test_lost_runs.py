"""What stands still is lost, by the clock of who looks; what says that it lives is not."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.states import Cancelling, Crashed, Pending, Running

from flows.server.lost_runs import lost_among

LOOK_S = 15.0


def run_in(state, run_count=1):
    return SimpleNamespace(
        id=uuid4(), state=state, updated=datetime(2026, 1, 1, tzinfo=UTC), run_count=run_count
    )


class Looking:
    """Somebody who looks every quarter of a minute."""

    def __init__(self):
        self.now_s, self.since_s = 1000.0, {}

    def lost(self, run):
        return lost_among([run], self.since_s, self.now_s)

    def until_lost(self, run, within_s=900.0, meanwhile=lambda: None):
        """Seconds until the run is lost, and why; nothing if that never happens."""
        began_s = self.now_s
        self.lost(run)
        while self.now_s - began_s < within_s:
            self.now_s += LOOK_S
            meanwhile()
            for _, why in self.lost(run):
                return self.now_s - began_s, why
        return None


@pytest.mark.parametrize(
    ("state", "seconds", "why"),
    [
        (Running(), 90, "no sign of life for 90 s"),
        (Cancelling(), 90, "no sign of life for 90 s"),
        (Pending(), 300, "a worker took it at least 300 s ago and has not started it"),
        (
            Pending(name="Submitting"),
            300,
            "a worker took it at least 300 s ago and has not started it",
        ),
        (Crashed(message="status -9"), 15, "its worker died (status -9)"),
    ],
)
def test_what_stands_still_is_lost(state, seconds, why):
    assert Looking().until_lost(run_in(state)) == (seconds, why)


def test_what_says_that_it_lives_is_not_lost():
    run = run_in(Running())

    def lives():
        run.updated += timedelta(seconds=1)  # of the server's clock, whatever that shows

    looking = Looking()
    assert looking.until_lost(run, meanwhile=lives) is None
    assert looking.until_lost(run) == (90, "no sign of life for 90 s")


def test_another_state_begins_anew():
    run, looking = run_in(Crashed()), Looking()
    looking.lost(run)
    looking.now_s += 14
    run.updated += timedelta(seconds=1)  # crashed again
    assert looking.until_lost(run) == (15, "its worker died")


def test_time_in_which_nobody_could_tell_anything_does_not_count():
    run, looking = run_in(Running()), Looking()
    assert looking.until_lost(run, within_s=75) is None
    looking.now_s += 3600
    looking.since_s.clear()
    assert looking.until_lost(run) == (90, "no sign of life for 90 s")
