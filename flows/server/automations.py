"""What Prefect's server does by itself when a worker dies: notice it, and hand its shard on.

A worker whose machine is gone cannot report anything: its run stays "Running" for ever, because a
self-hosted server has no rule of its own about missing heartbeats. Three automations are that rule:

1. no heartbeat for three times its period: the run is Crashed;
2. taken by a worker, but not running minutes later, when heartbeats would begin: it is Crashed;
3. a shard or a night that is Crashed, for whatever reason, is Scheduled again.

`flows.shard` and `flows.nightly` bound the last: what was started `MOST_STARTS` times ends Failed
instead, and failed runs are not scheduled again by themselves.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from flows.server.shard_runs import SHARD_FLOW, explained

if TYPE_CHECKING:
    from prefect.events.schemas.automations import AutomationCore

HEARTBEAT_S = 30
MISSED = 3
# Fetching an image and starting Python on a busy machine take their time.
START_S = 300
NIGHTLY_FLOW = "nightly"
NO_HEARTBEAT = "autolabel: no heartbeat"
NEVER_STARTED = "autolabel: taken and never started"
TRY_AGAIN = "autolabel: shard of a lost worker"
_BEAT = "prefect.flow-run.heartbeat"
# Every event after which a run owes no heartbeat.
_AT_REST = ("Completed", "Failed", "Cancelled", "Crashed", "AwaitingRetry", "Scheduled", "Paused")


def _silence(
    name: str, description: str, after: set[str], expect: set[str], within_s: float
) -> AutomationCore:
    """Rule that marks a run as crashed when none of the expected events follows in time."""
    from prefect.automations import AutomationCore, ChangeFlowRunState, EventTrigger, Posture
    from prefect.client.schemas.objects import StateType

    return AutomationCore(
        name=name,
        description=description,
        trigger=EventTrigger(
            after=after,
            expect=expect | {f"prefect.flow-run.{state}" for state in _AT_REST},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=within_s),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"No sign of life for {within_s:.0f} s: its worker is gone.",
            )
        ],
    )


def _no_heartbeat(heartbeat_s: float) -> AutomationCore:
    about = "A flow run that no longer sends heartbeats has lost its worker."
    return _silence(NO_HEARTBEAT, about, {_BEAT}, {_BEAT}, heartbeat_s * MISSED)


def _never_started(start_s: float) -> AutomationCore:
    about = "A worker took a flow run and died before the run could send a heartbeat."
    taken = {"prefect.flow-run.Pending", "prefect.flow-run.Submitting"}
    return _silence(NEVER_STARTED, about, taken, {_BEAT, "prefect.flow-run.Running"}, start_s)


def _try_again() -> AutomationCore:
    from prefect.automations import AutomationCore, ChangeFlowRunState, EventTrigger, Posture
    from prefect.client.schemas.objects import StateType

    return AutomationCore(
        name=TRY_AGAIN,
        description="A shard or a night whose worker died goes back to the queue.",
        trigger=EventTrigger(
            expect={"prefect.flow-run.Crashed"},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={
                "prefect.resource.role": "flow",
                "prefect.resource.name": [SHARD_FLOW, NIGHTLY_FLOW],
            },
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(seconds=0),
        ),
        actions=[
            ChangeFlowRunState(
                name="AwaitingRetry",
                state=StateType.SCHEDULED,
                message="Its worker died: it goes back to the queue.",
                force=True,
            )
        ],
    )


def ensure_automations(heartbeat_s: float = HEARTBEAT_S, start_s: float = START_S) -> list[str]:
    """Create the automations, or bring them up to date; returns their names.

    Args:
        heartbeat_s: period of the workers' heartbeats, `PREFECT_FLOWS_HEARTBEAT_FREQUENCY`.
        start_s: the longest that a run may take from a worker to its first heartbeat.

    Raises:
        AutolabelError: Prefect is not there.

    """
    wanted = [_no_heartbeat(heartbeat_s), _never_started(start_s), _try_again()]
    explained(lambda: _ensure(wanted))
    return [one.name for one in wanted]


def _ensure(wanted: list[AutomationCore]) -> None:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        for one in wanted:
            there = client.read_automations_by_name(one.name)
            if not there:
                client.create_automation(one)
                continue
            client.update_automation(there[0].id, one)
            for double in there[1:]:
                client.delete_automation(double.id)
