"""Everything that a Prefect server has to know before anything runs: pools, deployments, rules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from flows.automations import HEARTBEAT_S, START_S, ensure_automations
from flows.shard_runs import explained
from sam2_core.types import AutolabelError

GPU_POOL, CPU_POOL = "gpu", "cpu"
FILE_VARIABLE = "AUTOLABEL_DEPLOYMENTS"


def deploy(heartbeat_s: float = HEARTBEAT_S, start_s: float = START_S) -> None:
    """Create or update the work pools, every deployment and the automations.

    Raises:
        AutolabelError: Prefect is not there or refuses, or this is no checkout of the repository.

    """
    ensure_pools()
    _deploy_all()
    ensure_automations(heartbeat_s, start_s)


def ensure_pools(kind: str = "process") -> None:
    """Create the work pools that are not there; those that are keep their kind and settings."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists

    with get_client(sync_client=True) as client:
        for name in (GPU_POOL, CPU_POOL):
            wanted = WorkPoolCreate(name=name, type=kind, base_job_template=_template())
            try:
                explained(lambda wanted=wanted: client.create_work_pool(wanted))  # type: ignore[misc]
            except ObjectAlreadyExists:
                continue


def _template() -> dict[str, object]:
    from prefect.workers.process import ProcessWorker

    return ProcessWorker.get_default_base_job_template()


def deployments_file() -> Path:
    """`$AUTOLABEL_DEPLOYMENTS`, else deploy/prefect.yaml of the checkout.

    Raises:
        AutolabelError: it is not there.

    """
    checkout = Path(__file__).resolve().parents[1] / "deploy" / "prefect.yaml"
    file = Path(os.environ.get(FILE_VARIABLE, checkout)).absolute()
    if not file.is_file():
        raise AutolabelError(
            f"{file} is not there: deployments are made from a checkout of the repository or from "
            f"the file that {FILE_VARIABLE} names; workers need only the installed package"
        )
    return file


def _deploy_all() -> None:
    file = deployments_file()
    command = [
        sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all",
        "--prefect-file", str(file),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=file.parent, env=os.environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())[-600:]
        raise AutolabelError(f"`prefect deploy --all` failed: {words}")
