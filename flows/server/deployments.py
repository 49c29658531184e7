"""What a Prefect server has to know before anything runs: pools, deployments and their schedules.

What a person has set stays: `prefect deploy` overwrites a deployment with the parameters and
schedules of its file. Here only deployments that are not there are made as the file says. Of those
that are, the version's own parts alone are brought up to date: entry point, description, the form
of parameters. And `prefect deploy` is one more start of Python, of seconds.

A night that silently does nothing looks like a night without new drives. So each schedule is asked
for what it should have made: runs that are planned, and runs that ended well.
"""

import contextlib
import importlib
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import (
    DeploymentScheduleUpdate,
    DeploymentUpdate,
    WorkPoolCreate,
)
from prefect.client.schemas.filters import DeploymentFilter
from prefect.client.schemas.objects import ConcurrencyLimitConfig, DeploymentSchedule, FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.flows import Flow
from prefect.schedules import Schedule
from prefect.types.entrypoint import EntrypointType
from prefect.utilities.callables import parameter_schema
from pydantic import ValidationError

from flows.machine.programs import CPU_POOL, GPU_POOL
from flows.params import BackfillParams
from flows.server.client import connected
from flows.server.prefect_runs import TAG, flow_runs
from sam2_core.types import AutolabelError

FILE = Path(__file__).parents[1] / "prefect.yaml"
# `autolabel worker` puts its own Python first on the PATH.
FLOW_RUN_COMMAND = "python -P -m prefect.engine"
NIGHTLY, SLUG = "nightly/nightly", "nightly"
FIRST = CronSchedule(cron="0 1 * * *", timezone="UTC")
_DAILY = re.compile(r"(\d+) (\d+) \* \* \*")
STARTED_WITHIN = timedelta(minutes=5)
RUNS_READ, RUNS_TOLD = 200, 5


def deploy() -> None:
    """Create what is missing of the work pools and deployments; update the rest.

    Parameters, schedules, pauses, limits, pools, queues and job variables of a deployment that is
    there stay as they are.

    Raises:
        AutolabelError: Prefect is not there or refuses.

    """
    ensure_pools()
    with connected() as client:
        for wanted in described():
            flow = flow_of(wanted["entrypoint"])
            try:
                found = client.read_deployment_by_name(f"{flow.name}/{wanted['name']}")
            except ObjectNotFound:
                _create(flow, wanted)
            else:
                _update(client, flow, found, wanted)


def ensure_pools(names: Collection[str] = (GPU_POOL, CPU_POOL)) -> None:
    """Create the work pools that are not there; those that are stay as they are."""
    with connected() as client:
        for name in names:
            with contextlib.suppress(ObjectAlreadyExists):
                client.create_work_pool(
                    WorkPoolCreate(name=name, type="process", base_job_template=job_template())
                )


def job_template() -> dict[str, Any]:
    """Return the form of the process worker's jobs, with the command that runs them named.

    Without one the worker starts Python to prepare a folder, which then starts Python again.
    """
    from prefect.workers.process import ProcessWorker  # a second, which workers do without

    template = ProcessWorker.get_default_base_job_template()
    template["variables"]["properties"]["command"]["default"] = FLOW_RUN_COMMAND
    return template


def described() -> list[dict[str, Any]]:
    """Read the deployments' file."""
    return list(yaml.safe_load(FILE.read_text())["deployments"])


@cache
def flow_of(entrypoint: str) -> Flow[Any, Any]:
    """Import the flow of a deployment; Prefect would import from the working folder first."""
    module, _, name = entrypoint.rpartition(".")
    return cast("Flow[Any, Any]", getattr(importlib.import_module(module), name))


def _create(flow: Flow[Any, Any], wanted: dict[str, Any]) -> None:
    """Make a deployment as `prefect deploy` would."""
    limit, pool = wanted.get("concurrency_limit"), wanted["work_pool"]
    made = flow.to_deployment(
        wanted["name"],
        description=wanted["description"],
        tags=wanted["tags"],
        work_pool_name=pool["name"],
        job_variables=pool.get("job_variables", {}),
        concurrency_limit=ConcurrencyLimitConfig.model_validate(limit) if limit else None,
        schedules=[Schedule(**schedule) for schedule in wanted.get("schedules", ())],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    made.apply()  # type: ignore[union-attr]


def _update(
    client: SyncPrefectClient,
    flow: Flow[Any, Any],
    found: DeploymentResponse,
    wanted: Mapping[str, Any],
) -> None:
    """Bring what belongs to the version, not to a person, up to date.

    Tags and variables of the environment are added, never changed or taken away.
    """
    ours = wanted["work_pool"].get("job_variables", {})
    values = {
        "entrypoint": wanted["entrypoint"],
        "description": wanted["description"],
        "parameter_openapi_schema": parameter_schema(flow).model_dump_for_openapi(),
        "tags": sorted({*found.tags, *wanted["tags"]}),
        "job_variables": found.job_variables
        | {"env": ours.get("env", {}) | (found.job_variables.get("env") or {})},
    }
    before = {name: getattr(found, name) for name in values} | {"tags": sorted(found.tags)}
    if values != before:
        client.update_deployment(found.id, DeploymentUpdate(**values))


def collect_schedules() -> list[dict[str, Any]]:
    """Ask Prefect for the schedules of our deployments.

    Returns:
        Of each: the `deployment`, as Prefect's commands take it; `when`, its rule; whether it is
        `on`; what it labels (`sources`) and where to (`out`); its `timezone`, `next_runs`, when the
        `last_run` that has begun was planned, its `last_state` with its `last_message`, whether its
        parameters were others (`changed`), and the `problem`, "" where it does what it should or is
        off. Times are ISO 8601 in the schedule's time zone.

    Raises:
        AutolabelError: Prefect is not there.

    """
    ours = DeploymentFilter.model_validate({"tags": {"all_": [TAG]}})
    with connected() as client:
        found = client.read_deployments(deployment_filter=ours)
        return [
            _status_of(client, deployment, schedule)
            for deployment in found
            for schedule in deployment.schedules
        ]


def _status_of(
    client: SyncPrefectClient, deployment: DeploymentResponse, schedule: DeploymentSchedule
) -> dict[str, Any]:
    on = schedule.active and not deployment.paused
    label = (deployment.parameters.get("params") or {}).get("label") or {}
    zone = ZoneInfo(getattr(schedule.schedule, "timezone", None) or "UTC")
    made = _runs_of(deployment)
    planned = _planned(made)
    last = next((run for run in made if run.state and not run.state.is_scheduled()), None)
    return {
        "deployment": f"{client.read_flow(deployment.flow_id).name}/{deployment.name}",
        "when": _rule_text(schedule),
        "on": on,
        "sources": list(label.get("sources", ())),
        "out": label.get("out", ""),
        "timezone": zone.key,
        "next_runs": [_text(run.expected_start_time, zone) for run in planned[:RUNS_TOLD]],
        "last_run": _text(last.expected_start_time, zone) if last else "",
        "last_state": (last.state_name or "") if last else "",
        "changed": bool(last and last.parameters != deployment.parameters),
        "last_message": (last.state.message or "") if last and last.state else "",
        "problem": _problem(planned, last, deployment.work_pool_name or "", zone) if on else "",
    }


def _problem(planned: list[FlowRun], last: FlowRun | None, pool: str, zone: ZoneInfo) -> str:
    if not planned:
        return (
            "Prefect has planned no run of it: it does so within a minute, else look into its "
            "server's log for the reason"
        )
    due = planned[0].expected_start_time
    if due and datetime.now(UTC) - due > STARTED_WITHIN:
        return (
            f"the run of {_text(due, zone)} has not started: is a worker of pool {pool} "
            f"online (`autolabel up` or `autolabel worker --pool {pool}` starts one)?"
        )
    if last and last.state and last.state.is_final() and not last.state.is_completed():
        why = (last.state.message or "no reason given").partition("\n")[0]
        when = _text(last.expected_start_time, zone)
        return f"the run of {when} ended {last.state_name}: {why}"
    return ""


def _runs_of(deployment: DeploymentResponse) -> list[FlowRun]:
    """Read the runs of its schedules, and those that somebody started, the latest first."""
    return list(islice(flow_runs(deployment_id={"any_": [deployment.id]}), RUNS_READ))


def _planned(runs: list[FlowRun]) -> list[FlowRun]:
    """Return the runs that have not started, the next first."""
    return [run for run in reversed(runs) if run.state is None or run.state.is_scheduled()]


def _text(moment: datetime | None, zone: ZoneInfo) -> str:
    return moment.astimezone(zone).isoformat(timespec="minutes") if moment else ""


def _rule_text(schedule: DeploymentSchedule) -> str:
    values = schedule.schedule.model_dump(mode="json")
    zone = values.get("timezone") or "UTC"
    cron = values.get("cron", "")
    if (at := time_of(cron)) != cron:
        return f"every day at {at} {zone}"
    kind = next(name for name in ("cron", "interval", "rrule") if name in values)
    return f"{kind} {values[kind]} {zone}"


def time_of(cron: str) -> str:
    """Return the HH:MM of a rule for every day; any other rule as it is."""
    daily = _DAILY.fullmatch(cron)
    return f"{int(daily[2]):02}:{int(daily[1]):02}" if daily else cron


def turn_on(
    params: BackfillParams, cron: str | None = None, timezone: str | None = None
) -> tuple[Mapping[str, Any], CronSchedule]:
    """Give the nightly deployment its parameters, and let its schedule make runs.

    Rule and time zone stay where None is given. Schedules that somebody has made on Prefect's
    pages, which have no slug, go.

    Returns:
        The parameters that it had, plain values, empty if it had none; and the schedule.

    Raises:
        AutolabelError: Prefect is not there or has no such deployment, or the schedule's rule or
            time zone is none.

    """
    with connected() as client:
        found = client.read_deployment_by_name(NIGHTLY)
        ours = [schedule.schedule for schedule in found.schedules if schedule.slug == SLUG]
        old = next((schedule for schedule in ours if isinstance(schedule, CronSchedule)), FIRST)
        try:
            rule = CronSchedule(cron=cron or old.cron, timezone=timezone or old.timezone)
        except ValidationError as error:
            why = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise AutolabelError(
                f"no schedule can be made of {cron!r} in {timezone!r}: {why}"
            ) from None
        values = {"params": params.model_dump(mode="json", exclude_none=True)}
        update = DeploymentUpdate(
            parameters=found.parameters | values,
            paused=False,
            schedules=[DeploymentScheduleUpdate(schedule=rule, active=True, slug=SLUG)],
        )
        client.update_deployment(found.id, update)
    return found.parameters.get("params") or {}, rule


def plan_nights(count: int) -> list[datetime]:
    """Let Prefect plan the next nights now, which it does by itself within a minute.

    Returns:
        When the next `count` planned runs start: those of other schedules of the deployment, too.

    Raises:
        AutolabelError: Prefect is not there, or cannot plan.

    """
    with connected() as client:
        found = client.read_deployment_by_name(NIGHTLY)
        path: Any = f"/deployments/{found.id}/schedule"
        client.request("POST", path, json={"min_runs": count})
    planned = (run.expected_start_time for run in _planned(_runs_of(found)))
    return list(islice(filter(None, planned), count))


def turn_off() -> None:
    """Make no more runs of the nightly deployment's schedules; its parameters stay.

    Raises:
        AutolabelError: Prefect is not there or has no such deployment.

    """
    with connected() as client:
        found = client.read_deployment_by_name(NIGHTLY)
        for schedule in found.schedules:
            client.update_deployment_schedule(found.id, schedule.id, active=False)
