"""Every flow can be served, deployed, and deployed from a source, as Prefect's guides do it."""

import json
import subprocess
import sys

import pytest

from tests.integration.cluster import wait_for
from tests.integration.runs import MICRO, REPOSITORY, write_sequence

FLOWS = {
    "label": ("flows/label.py:label", "flows.label"),
    "label-shard": ("flows/shard.py:label_shard", "flows.shard"),
    "backfill": ("flows/backfill.py:backfill", "flows.backfill"),
    "nightly": ("flows/nightly.py:nightly", "flows.nightly"),
    "load-dataset": ("flows/load_dataset.py:load_dataset", "flows.load_dataset"),
}
DEPLOY = """
import importlib, json, sys
from prefect.deployments.runner import EntrypointType
from prefect.flows import Flow
flows = json.loads(sys.argv[1])
for entrypoint, module in flows.values():
    one = getattr(importlib.import_module(module), entrypoint.rpartition(":")[2])
    one.deploy("deployed", work_pool_name="gpu", entrypoint_type=EntrypointType.MODULE_PATH,
               print_next_steps=False, ignore_warnings=True)
    source = Flow.from_source(source=sys.argv[2], entrypoint=entrypoint)
    source.deploy("sourced", work_pool_name="gpu", print_next_steps=False, ignore_warnings=True)
"""
SERVE = """
import importlib, json, sys
from prefect import serve
flows = json.loads(sys.argv[1])
found = [getattr(importlib.import_module(module), entrypoint.rpartition(":")[2])
         for entrypoint, module in flows.values()]
serve(*[one.to_deployment("served") for one in found])
"""


@pytest.fixture
def served(cluster):
    """All five flows, served by one process."""
    command = [sys.executable, "-c", SERVE, json.dumps(FLOWS)]
    process = subprocess.Popen(command, cwd=REPOSITORY, env=cluster.home.environment)
    yield process
    process.terminate()
    process.wait(60)


def deployment(cluster, flow, name):
    """The deployment as the server has it, when it is there."""
    body = {"deployments": {"name": {"any_": [name]}}, "flows": {"name": {"any_": [flow]}}}
    found = cluster.post("deployments/filter", body)
    return found[0] if found else None


def started(cluster, flow, name, parameters):
    """Start a run; returns its id."""
    one = deployment(cluster, flow, name)
    body = {"parameters": parameters}
    return cluster.post(f"deployments/{one['id']}/create_flow_run", body)["id"]


def end_of(cluster, run):
    """Wait until a run has ended; returns its state."""
    final = {"COMPLETED", "CANCELLED", "FAILED", "CRASHED"}

    def end():
        state = cluster.get(f"flow_runs/{run}")["state"]
        return state if state["type"] in final else None

    return wait_for(end, 300, every=1)


def form(one):
    """Form of a deployment's parameters; Prefect leaves out definitions where there are none."""
    return {"definitions": {}} | one["parameter_openapi_schema"]


@pytest.mark.ci
@pytest.mark.timeout(900)
def test_flows_are_served_deployed_and_deployed_from_a_source(cluster, served, tmp_path):
    command = [sys.executable, "-c", DEPLOY, json.dumps(FLOWS), str(REPOSITORY)]
    subprocess.run(command, cwd=REPOSITORY, env=cluster.home.environment, check=True)
    wait_for(lambda: deployment(cluster, "load-dataset", "served"), 200)
    for flow in FLOWS:
        ours = next(
            one
            for one in cluster.post("deployments/filter", {"flows": {"name": {"any_": [flow]}}})
            if one["name"] in {flow, "gpu"}
        )
        for name in ("served", "deployed", "sourced"):
            assert form(deployment(cluster, flow, name)) == form(ours), (flow, name)

    boxes, runs = tmp_path / "boxes", {}
    for way in ("served", "deployed", "sourced"):
        write_sequence(tmp_path / way / "drive", boxes, 2)
        label = {
            "sources": [str(tmp_path / way)], "out": str(tmp_path / f"out-{way}"),
            "boxes": str(boxes), "model": str(MICRO), "load_dataset": False,
        }  # fmt: skip
        runs[way] = started(cluster, "label", way, {"params": label})
    for way, run in runs.items():
        state = end_of(cluster, run)
        log = (cluster.folder / "worker0.log").read_text()[-3000:]
        assert state["type"] == "COMPLETED", f"{way}: {state['message']}\n{log}"
        assert list((tmp_path / f"out-{way}").glob("manifests/*/*.json")), way
