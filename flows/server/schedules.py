"""The schedule of the nights, and whether schedules that are on come to something.

A night that silently does nothing looks like a night without new drives. So each schedule is asked
for what it should have made: runs that are planned, and runs that ended well.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.objects import DeploymentSchedule, FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from pydantic import ValidationError

from flows.params import BackfillParams
from flows.server.client import connected
from flows.server.runs import TAG, flow_runs
from sam2_core.types import AutolabelError

# The server plans every minute, and at once what was changed a few seconds ago.
PLANNED_WITHIN = timedelta(minutes=3)
STARTED_WITHIN = timedelta(minutes=5)
RUNS_READ, RUNS_TOLD = 200, 5
_DAILY = re.compile(r"(\d+) (\d+) \* \* \*")


@dataclass(frozen=True)
class ScheduleStatus:
    """A schedule of one of our deployments.

    Attributes:
        deployment: its name with the flow's, as Prefect's commands take it.
        when: its rule.
        on: whether runs are to be made of it.
        timezone: its name, as "Europe/Berlin".
        next_runs: when the next ones are planned, ISO 8601 in the schedule's time zone.
        last_run: when the last that has begun was planned, in the same way; "" for none.
        last_state: how that ended, or that it is running.
        problem: why it does not do what it should; "" when it does, or is off.

    """

    deployment: str
    when: str
    on: bool
    timezone: str = "UTC"
    next_runs: tuple[str, ...] = ()
    last_run: str = ""
    last_state: str = ""
    problem: str = ""


def collect_schedules() -> list[ScheduleStatus]:
    """Ask Prefect for the schedules of our deployments.

    Raises:
        AutolabelError: Prefect is not there.

    """
    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    with connected() as client:
        found = client.read_deployments(deployment_filter=ours)
        return [_status_of(client, one, schedule) for one in found for schedule in one.schedules]


def _status_of(
    client: SyncPrefectClient, deployment: DeploymentResponse, schedule: DeploymentSchedule
) -> ScheduleStatus:
    name = f"{client.read_flow(deployment.flow_id).name}/{deployment.name}"
    if not schedule.active or deployment.paused:
        return ScheduleStatus(name, _rule_text(schedule), on=False)
    made = _scheduled_runs(deployment)
    planned = _planned(made)
    last = next((one for one in made if one.state and not one.state.is_scheduled()), None)
    changed = max(filter(None, (deployment.updated, schedule.updated)), default=None)
    zone = ZoneInfo(getattr(schedule.schedule, "timezone", None) or "UTC")
    return ScheduleStatus(
        name,
        _rule_text(schedule),
        on=True,
        timezone=zone.key,
        next_runs=tuple(_text(one.expected_start_time, zone) for one in planned[:RUNS_TOLD]),
        last_run=_text(last.expected_start_time, zone) if last else "",
        last_state=(last.state_name or "") if last else "",
        problem=_problem(planned, last, changed, deployment.work_pool_name or "", zone),
    )


def _problem(
    planned: list[FlowRun],
    last: FlowRun | None,
    changed: datetime | None,
    pool: str,
    zone: ZoneInfo,
) -> str:
    now = datetime.now(UTC)
    if not planned and (changed is None or now - changed > PLANNED_WITHIN):
        return "Prefect has planned no run of it: look into its server's log for the reason"
    late = [one for one in planned if now - _due(one) > STARTED_WITHIN]
    if late:
        when = _text(late[0].expected_start_time, zone)
        return (
            f"the run of {when} has not started: is a worker of pool {pool} "
            f"online (`autolabel up` or `autolabel worker --pool {pool}` starts one)?"
        )
    if last and last.state and last.state.is_final() and not last.state.is_completed():
        why = (last.state.message or "no reason given").partition("\n")[0][:300]
        when = _text(last.expected_start_time, zone)
        return f"the run of {when} ended {last.state_name}: {why}"
    return ""


def _scheduled_runs(deployment: DeploymentResponse) -> list[FlowRun]:
    """Read the runs that the server made of schedules, the latest first."""
    latest = islice(flow_runs(deployment_id={"any_": [deployment.id]}), RUNS_READ)
    return [one for one in latest if one.auto_scheduled]


def _planned(runs: list[FlowRun]) -> list[FlowRun]:
    """Return the runs that nobody has started, the next first."""
    return [one for one in reversed(runs) if one.state is None or one.state.is_scheduled()]


def _due(run: FlowRun) -> datetime:
    return run.next_scheduled_start_time or run.expected_start_time or datetime.now(UTC)


def _text(moment: datetime | None, zone: ZoneInfo) -> str:
    return moment.astimezone(zone).isoformat(timespec="minutes") if moment else ""


def _rule_text(schedule: DeploymentSchedule) -> str:
    values = schedule.schedule.model_dump(mode="json")
    zone = values.get("timezone") or "UTC"
    if daily := _DAILY.fullmatch(values.get("cron", "")):
        return f"every day at {int(daily[2]):02}:{int(daily[1]):02} {zone}"
    kind = next(one for one in ("cron", "interval", "rrule") if one in values)
    return f"{kind} {values[kind]} {zone}"


DEPLOYMENT = "nightly/nightly"
SLUG = "nightly"


def turn_on(params: BackfillParams, cron: str, timezone: str) -> Mapping[str, Any]:
    """Give the nightly deployment its parameters, and let its schedule make runs.

    Other schedules of the deployment stay as they are.

    Returns:
        The parameters that it had, plain values; empty if it had none.

    Raises:
        AutolabelError: Prefect is not there or has no such deployment, or the schedule's rule or
            time zone is none.

    """
    try:
        rule = CronSchedule(cron=cron, timezone=timezone)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise AutolabelError(
            f"no schedule can be made of {cron!r} in {timezone!r}: {why}"
        ) from None
    values = {"params": params.model_dump(mode="json", exclude_none=True)}
    with connected() as client:
        found = client.read_deployment_by_name(DEPLOYMENT)
        update = DeploymentUpdate(parameters=found.parameters | values, paused=False)
        client.update_deployment(found.id, update)
        ours = [one.id for one in found.schedules if one.slug == SLUG]
        if ours:
            client.update_deployment_schedule(found.id, ours[0], active=True, schedule=rule)
        else:  # somebody has removed it
            made = DeploymentScheduleCreate(schedule=rule, active=True, slug=SLUG)
            client.create_deployment_schedules(found.id, [made])
    before: Mapping[str, Any] = found.parameters.get("params") or {}
    return before


def plan_nights(count: int) -> list[datetime]:
    """Let Prefect plan the next nights now, which it does by itself within a minute.

    Returns:
        When the next `count` planned runs start: those of other schedules of the deployment, too.

    Raises:
        AutolabelError: Prefect is not there, or cannot plan.

    """
    with connected() as client:
        found = client.read_deployment_by_name(DEPLOYMENT)
        path: Any = f"/deployments/{found.id}/schedule"
        client.request("POST", path, json={"min_runs": count})
    return [_due(one) for one in _planned(_scheduled_runs(found))[:count]]


def turn_off() -> None:
    """Make no more runs of the nightly deployment's schedules; its parameters stay.

    Raises:
        AutolabelError: Prefect is not there or has no such deployment.

    """
    with connected() as client:
        found = client.read_deployment_by_name(DEPLOYMENT)
        for one in found.schedules:
            client.update_deployment_schedule(found.id, one.id, active=False)
