"""Everything that a Prefect server has to know before anything runs: pools, deployments, rules.

What a person has set stays: `prefect deploy` overwrites a deployment with the parameters and
schedules of its file, so it is asked only for those that are not there. Of those that are, the
version's own parts alone are brought up to date: entry point, description, the form of parameters.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.server.shard_runs import connected
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

GPU_POOL, CPU_POOL = "gpu", "cpu"
FILE_VARIABLE = "AUTOLABEL_DEPLOYMENTS"
# `autolabel worker` puts its own Python first on the PATH.
FLOW_RUN_COMMAND = "python -m prefect.engine"


def deploy() -> None:
    """Create what is missing of the work pools, deployments and automations; update the rest.

    Parameters, schedules, pauses, limits, pools, queues and job variables of a deployment that is
    there stay as they are.

    Raises:
        AutolabelError: Prefect is not there or refuses, or this is no checkout of the repository.

    """
    ensure_pools()
    there = _update_deployments()
    _create_deployments([one["name"] for one in described() if one["name"] not in there])
    _ensure_automations()


def ensure_pools() -> None:
    """Create the work pools that are not there; those that are keep their kind and settings.

    A pool of an older version lacks the command that runs a flow: it gets that, and nothing else.
    """
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists

    with connected() as client:
        for name in (GPU_POOL, CPU_POOL):
            wanted = WorkPoolCreate(name=name, type="process", base_job_template=_template())
            try:
                client.create_work_pool(wanted)
            except ObjectAlreadyExists:
                _name_command(client, name)


def _name_command(client: SyncPrefectClient, name: str) -> None:
    """Name the command of a process pool whose jobs have none; one that is named stays."""
    from prefect.client.schemas.actions import WorkPoolUpdate

    pool = client.read_work_pool(name)
    template = copy.deepcopy(pool.base_job_template)
    command = template.get("variables", {}).get("properties", {}).get("command")
    if pool.type != "process" or command is None or command.get("default"):
        return
    command["default"] = FLOW_RUN_COMMAND
    client.update_work_pool(name, WorkPoolUpdate(base_job_template=template))


def _template() -> dict[str, Any]:
    """Return the form of the process worker's jobs, with the command that runs them named.

    Without one the worker starts Python to prepare a folder, which then starts Python again.
    """
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    template["variables"]["properties"]["command"]["default"] = FLOW_RUN_COMMAND
    return template


def deployments_file() -> Path:
    """`$AUTOLABEL_DEPLOYMENTS`, else deploy/prefect.yaml of the checkout.

    Raises:
        AutolabelError: it is not there.

    """
    checkout = Path(__file__).resolve().parents[2] / "deploy" / "prefect.yaml"
    file = Path(os.environ.get(FILE_VARIABLE, checkout)).absolute()
    if not file.is_file():
        raise AutolabelError(
            f"{file} is not there: deployments are made from a checkout of the repository or from "
            f"the file that {FILE_VARIABLE} names; workers need only the installed package"
        )
    return file


def described() -> list[dict[str, Any]]:
    """Read the deployments' file."""
    import yaml

    values: list[dict[str, Any]] = yaml.safe_load(deployments_file().read_text())["deployments"]
    return values


def _update_deployments() -> list[str]:
    """Bring the deployments that are there up to this version; returns their names."""
    from prefect.exceptions import ObjectNotFound
    from prefect.flows import Flow, load_flow_from_entrypoint
    from prefect.utilities.callables import parameter_schema

    names = []
    with connected() as client:
        for wanted in described():
            flow: Flow[Any, Any] = load_flow_from_entrypoint(wanted["entrypoint"])
            name = f"{flow.name}/{wanted['name']}"
            try:
                found = client.read_deployment_by_name(name)
            except ObjectNotFound:
                continue
            names.append(wanted["name"])
            changes = _changes(found, wanted, parameter_schema(flow).model_dump_for_openapi())
            if changes:
                _update(client, name, found, changes)
    return names


def _changes(
    found: DeploymentResponse, wanted: Mapping[str, Any], schema: dict[str, Any]
) -> dict[str, Any]:
    """Tell what differs of the parts that belong to the version, not to a person.

    Tags and variables of the environment are added, never changed or taken away.
    """
    ours = wanted["work_pool"].get("job_variables", {})
    values = {
        "entrypoint": wanted["entrypoint"],
        "description": wanted["description"],
        "parameter_openapi_schema": schema,
        "tags": sorted({*found.tags, *wanted["tags"]}),
        "job_variables": found.job_variables
        | {"env": ours.get("env", {}) | (found.job_variables.get("env") or {})},
    }
    before = {name: getattr(found, name) for name in values} | {"tags": sorted(found.tags)}
    return {name: value for name, value in values.items() if before[name] != value}


def _update(
    client: SyncPrefectClient, name: str, found: DeploymentResponse, changes: dict[str, Any]
) -> None:
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.exceptions import PrefectHTTPStatusError

    try:
        client.update_deployment(found.id, DeploymentUpdate(**changes))
    except PrefectHTTPStatusError as error:
        if error.response.status_code != 409:
            raise
        detail = str(error.response.json().get("detail", ""))[:300]
        raise AutolabelError(
            f"the parameters that deployment {name} was given do not fit this version: {detail}; "
            "change them on its page of Prefect, or delete the deployment there; then try again"
        ) from None


def _create_deployments(names: list[str]) -> None:
    if not names:
        return
    file = deployments_file()
    command = [
        sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--prefect-file", str(file),
        *(argument for name in names for argument in ("--name", name)),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=file.parent, env=os.environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())[-600:]
        raise AutolabelError(f"`prefect deploy` failed: {words}")


def _ensure_automations() -> None:
    """Create the server's automations for workers that die, or bring them up to date."""
    import yaml
    from prefect.events.schemas.automations import AutomationCore

    file = deployments_file().with_name("automations.yaml")
    wanted = [AutomationCore.model_validate(one) for one in yaml.safe_load(file.read_text())]
    with connected() as client:
        for one in wanted:
            there = client.read_automations_by_name(one.name)
            if not there:
                client.create_automation(one)
                continue
            client.update_automation(there[0].id, one)
            for double in there[1:]:
                client.delete_automation(double.id)
