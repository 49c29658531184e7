"""Everything that a Prefect server has to know before anything runs: pools, deployments, rules.

What a person has set stays: `prefect deploy` overwrites a deployment with the parameters and
schedules of its file. Here only deployments that are not there are made as the file says. Of those
that are, the version's own parts alone are brought up to date: entry point, description, the form
of parameters. And `prefect deploy` is one more start of Python, of seconds.
"""

import contextlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.objects import ConcurrencyLimitConfig
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.schedules import Schedule
from prefect.types.entrypoint import EntrypointType
from prefect.utilities.callables import parameter_schema

from flows.machine.programs import CPU_POOL, GPU_POOL
from flows.server.client import connected

FILE = Path(__file__).parents[1] / "prefect.yaml"
# `autolabel worker` puts its own Python first on the PATH.
FLOW_RUN_COMMAND = "python -m prefect.engine"


def deploy() -> None:
    """Create what is missing of the work pools and deployments; update the rest.

    Parameters, schedules, pauses, limits, pools, queues and job variables of a deployment that is
    there stay as they are. The pools are there first, so that workers can start meanwhile.

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


def ensure_pools() -> None:
    """Create the work pools that are not there; those that are stay as they are."""
    with connected() as client:
        for name in (GPU_POOL, CPU_POOL):
            wanted = WorkPoolCreate(name=name, type="process", base_job_template=job_template())
            with contextlib.suppress(ObjectAlreadyExists):
                client.create_work_pool(wanted)


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
    values: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())["deployments"]
    return values


@cache
def flow_of(entrypoint: str) -> Flow[Any, Any]:
    """Import the flow of a deployment."""
    return load_flow_from_entrypoint(entrypoint)


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
        schedules=[Schedule(**one) for one in wanted.get("schedules", ())],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    cast("RunnerDeployment", made).apply()


def _update(
    client: SyncPrefectClient,
    flow: Flow[Any, Any],
    found: DeploymentResponse,
    wanted: Mapping[str, Any],
) -> None:
    """Bring what belongs to the version, not to a person, up to date.

    Tags and variables of the environment are added, never changed or taken away. A deployment
    without a pool was taken over by `flow.serve()`, which pauses it when it ends: no worker would
    ever run it again.
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
    if not found.work_pool_name:
        values |= {"work_pool_name": wanted["work_pool"]["name"], "paused": False}
    before = {name: getattr(found, name) for name in values} | {"tags": sorted(found.tags)}
    if values != before:
        client.update_deployment(found.id, DeploymentUpdate(**values))
