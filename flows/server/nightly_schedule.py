"""The nightly deployment's parameters and schedule, as `autolabel nightly` sets them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from flows.backfill_params import BackfillParams
from flows.server.client import connected
from flows.server.schedules import planned_runs
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import DeploymentSchedule
    from prefect.client.schemas.responses import DeploymentResponse
    from prefect.client.schemas.schedules import CronSchedule

DEPLOYMENT = "nightly/nightly"
SLUG = "nightly"


def turn_on(params: BackfillParams, cron: str, timezone: str) -> Mapping[str, Any]:
    """Give the nightly deployment its parameters, and let its schedule make runs.

    Returns:
        The parameters that it had, plain values; empty if it had none.

    Raises:
        AutolabelError: Prefect is not there or has no such deployment, or the schedule's rule or
            time zone is none.

    """
    from prefect.client.schemas.actions import DeploymentUpdate

    rule = _rule(cron, timezone)
    values = {"params": params.model_dump(mode="json", exclude_none=True)}
    with connected() as client:
        found = client.read_deployment_by_name(DEPLOYMENT)
        update = DeploymentUpdate(parameters=found.parameters | values, paused=False)
        client.update_deployment(found.id, update)
        _set_schedule(client, found, rule)
    before: Mapping[str, Any] = found.parameters.get("params") or {}
    return before


def plan_nights(count: int) -> list[datetime]:
    """Let Prefect plan the next nights now, which it does by itself within a minute.

    Returns:
        When the next `count` planned runs start, in the schedule's time zone: those of other
        schedules of the deployment, too.

    Raises:
        AutolabelError: Prefect is not there, or cannot plan.

    """
    with connected() as client:
        found = client.read_deployment_by_name(DEPLOYMENT)
        path: Any = f"/deployments/{found.id}/schedule"
        client.request("POST", path, json={"min_runs": count})
        planned = planned_runs(client, found)
    ours = _ours(found)
    zone = ZoneInfo((ours and getattr(ours.schedule, "timezone", None)) or "UTC")
    due = filter(None, (one.expected_start_time for one in planned[:count]))
    return [moment.astimezone(zone) for moment in due]


def turn_off() -> None:
    """Make no more runs of the nightly deployment's schedules; its parameters stay.

    Raises:
        AutolabelError: Prefect is not there or has no such deployment.

    """
    with connected() as client:
        found = client.read_deployment_by_name(DEPLOYMENT)
        for one in found.schedules:
            client.update_deployment_schedule(found.id, one.id, active=False)


def _rule(cron: str, timezone: str) -> CronSchedule:
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    try:
        return CronSchedule(cron=cron, timezone=timezone)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise AutolabelError(
            f"no schedule can be made of {cron!r} in {timezone!r}: {why}"
        ) from None


def _set_schedule(client: SyncPrefectClient, found: DeploymentResponse, rule: CronSchedule) -> None:
    """Change our schedule, or make it where somebody has removed it; others stay as they are."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    ours = _ours(found)
    if ours is None:
        made = DeploymentScheduleCreate(schedule=rule, active=True, slug=SLUG)
        client.create_deployment_schedules(found.id, [made])
    else:
        client.update_deployment_schedule(found.id, ours.id, active=True, schedule=rule)


def _ours(found: DeploymentResponse) -> DeploymentSchedule | None:
    return next((one for one in found.schedules if one.slug == SLUG), None)
