"""What Prefect's server does by itself when a worker dies: notice it, and hand its shard on.

A worker whose machine is gone cannot report anything: its run stays "Running" for ever, because a
self-hosted server has no rule of its own about missing heartbeats. Two automations are that rule:

1. no heartbeat for three times its period: the run is Crashed;
2. a shard that is Crashed, for whatever reason, is Scheduled again.

`flows.shard` bounds the second: a shard that was started `MOST_STARTS` times ends Failed instead,
and failed runs are not scheduled again by themselves.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from flows.submit import SHARD_FLOW, explained

if TYPE_CHECKING:
    from prefect.events.schemas.automations import AutomationCore

HEARTBEAT_S = 30
MISSED = 3
NO_HEARTBEAT = "autolabel: no heartbeat"
TRY_AGAIN = "autolabel: shard of a lost worker"
# Every event after which a run owes no heartbeat.
_AT_REST = ("Completed", "Failed", "Cancelled", "Crashed", "AwaitingRetry", "Scheduled", "Paused")


def _no_heartbeat(heartbeat_s: float) -> AutomationCore:
    from prefect.automations import AutomationCore, ChangeFlowRunState, EventTrigger, Posture
    from prefect.client.schemas.objects import StateType

    beat = "prefect.flow-run.heartbeat"
    silence = heartbeat_s * MISSED
    return AutomationCore(
        name=NO_HEARTBEAT,
        description="A flow run that no longer sends heartbeats has lost its worker.",
        trigger=EventTrigger(
            after={beat},
            expect={beat, *(f"prefect.flow-run.{name}" for name in _AT_REST)},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=silence),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"No heartbeat for {silence:.0f} s: its worker is gone.",
            )
        ],
    )


def _try_again() -> AutomationCore:
    from prefect.automations import AutomationCore, ChangeFlowRunState, EventTrigger, Posture
    from prefect.client.schemas.objects import StateType

    return AutomationCore(
        name=TRY_AGAIN,
        description="A shard whose worker died goes back to the queue.",
        trigger=EventTrigger(
            expect={"prefect.flow-run.Crashed"},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={
                "prefect.resource.role": "flow",
                "prefect.resource.name": SHARD_FLOW,
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
                message="Its worker died: the shard goes back to the queue.",
                force=True,
            )
        ],
    )


def ensure_automations(heartbeat_s: float = HEARTBEAT_S) -> list[str]:
    """Create both automations, or bring them up to date; returns their names.

    Args:
        heartbeat_s: period of the workers' heartbeats, `PREFECT_FLOWS_HEARTBEAT_FREQUENCY`.

    Raises:
        AutolabelError: Prefect is not there.

    """
    wanted = [_no_heartbeat(heartbeat_s), _try_again()]
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
