"""Deploying again: what a person has set stays; schedules, and whether they come to something."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
import yaml
from click.testing import CliRunner
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.states import Failed, Running, Scheduled
from prefect.workers.process import ProcessWorker

from flows.cli import nightly as nightly_cli
from flows.cli import status
from flows.params import BackfillParams, LabelParams
from flows.server import deployments, fleet
from flows.server.deployments import (
    FLOW_RUN_COMMAND,
    GPU_POOL,
    deploy,
    described,
    ensure_pools,
    turn_off,
    turn_on,
)
from flows.server.fleet import FleetError, sign_off, workers_online
from sam2_core.types import AutolabelError
from tasks.load.into_fiftyone import prepare_dataset
from tests.conftest import REPOSITORY

PARAMETERS = {"params": {"label": {"sources": ["/drives"], "out": "/labels"}}}


@pytest.fixture
def nightly(under_prefect, monkeypatch, tmp_path):
    """Deploys the nightly deployment alone, as `change` leaves what the file says of it."""
    (values,) = [one for one in described() if one["name"] == "nightly"]
    file = tmp_path / "prefect.yaml"
    monkeypatch.setattr(deployments, "FILE", file)

    def again(**change):
        file.write_text(yaml.safe_dump({"pull": [], "deployments": [values | change]}))
        deploy()
        return client.read_deployment_by_name("nightly/nightly")

    with get_client(sync_client=True) as client:
        yield again, client


def test_what_a_person_set_stays(nightly):
    again, client = nightly
    first = again()
    assert first.parameters == {}
    assert [one.active for one in first.schedules] == [False]

    (schedule,) = first.schedules
    own = {"env": {"PREFECT_LOGGING_LEVEL": "7", "MINE": "1"}, "stream_output": False}
    client.update_deployment_schedule(
        first.id, schedule.id, active=True, schedule=CronSchedule(cron="5 4 * * *")
    )
    client.create_deployment_schedules(first.id, [(IntervalSchedule(interval=3600), False)])
    set_by_hand = DeploymentUpdate(
        parameters=PARAMETERS, paused=True, tags=["mine", "autolabel"], job_variables=own,
        concurrency_limit=3,
    )  # fmt: skip
    client.update_deployment(first.id, set_by_hand)
    before = client.read_deployment_by_name("nightly/nightly")

    environment = {"PREFECT_LOGGING_LEVEL": "30", "NEW": "2"}
    pool = {"name": "cpu", "job_variables": {"env": environment}}
    after = again(description="As it is now.", tags=["autolabel", "new"], work_pool=pool)
    assert after.description == "As it is now."
    assert set(after.tags) == {"mine", "autolabel", "new"}
    assert after.job_variables == own | {"env": own["env"] | {"NEW": "2"}}
    told = {"parameters", "paused", "schedules", "global_concurrency_limit", "work_queue_name"}
    assert after.model_dump(include=told) == before.model_dump(include=told)
    assert len(after.schedules) == 2
    assert after.parameters == PARAMETERS

    at = client.read_deployment_by_name("nightly/nightly").updated
    again(description="As it is now.", tags=["autolabel", "new"], work_pool=pool)
    assert client.read_deployment_by_name("nightly/nightly").updated == at  # nothing was written

    # Parameters that an older version took.
    old = {"type": "object", "properties": {"wait_hours": {"type": "string"}}}
    update = DeploymentUpdate(parameters={"wait_hours": "soon"}, parameter_openapi_schema=old)
    client.update_deployment(first.id, update)
    with pytest.raises(AutolabelError, match=r"soon.*parameters of a deployment that do not fit"):
        again()
    client.update_deployment(
        first.id, DeploymentUpdate(parameters={}, parameter_openapi_schema=old)
    )


def test_a_pool_that_is_there_stays_as_it_is(nightly):
    _, client = nightly
    ensure_pools()
    told = client.read_work_pool(GPU_POOL).base_job_template["variables"]["properties"]
    assert told["command"]["default"] == FLOW_RUN_COMMAND
    template = ProcessWorker.get_default_base_job_template()
    changed = WorkPoolUpdate(base_job_template=template, concurrency_limit=3)
    client.update_work_pool(GPU_POOL, changed)
    ensure_pools()
    pool = client.read_work_pool(GPU_POOL)
    assert (pool.concurrency_limit, pool.base_job_template) == (3, template)


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_the_charts_job_makes_a_pool_of_pods_brings_it_up_to_date_or_refuses_it(nightly, tmp_path):
    _, client = nightly
    template = REPOSITORY / "deploy" / "chart" / "templates" / "deploy.yaml"
    script = re.search(
        r"^ +prefect work-pool.*?(?=^ +\{\{- end)", template.read_text(), re.M | re.S
    )[0]
    form = {"job_configuration": {"env": "{{ env }}"}, "variables": {"properties": {"env": {}}}}
    file = tmp_path / "form.json"
    script = script.replace("/etc/autolabel/baseJobTemplate.json", str(file))
    script = script.replace("work-pool create gpu", "work-pool create pods")
    script = script.replace("inspect gpu", "inspect pods").replace("update gpu", "update pods")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def upgrade():
        file.write_text(json.dumps(form))
        return subprocess.run(
            ["sh", "-ec", script], env=os.environ | {"PATH": path}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    for title in "new", "newer":
        form["variables"]["properties"]["env"]["title"] = title
        done = upgrade()
        assert done.returncode == 0, done.stdout + done.stderr
        pool = client.read_work_pool("pods")
        assert (pool.type, pool.base_job_template) == ("kubernetes", form)
    client.delete_work_pool("pods")
    client.create_work_pool(WorkPoolCreate(name="pods", type="process"))
    before = client.read_work_pool("pods")
    done = upgrade()
    assert done.returncode == 1
    assert "its pool gpu is of another type" in done.stderr
    assert client.read_work_pool("pods") == before
    client.delete_work_pool("pods")


def test_a_worker_that_was_stopped_is_gone_at_once(nightly):
    """Prefect would count it as online for a minute and a half."""
    _, client = nightly
    ensure_pools()
    names = ["here-gpu-0", "here %? 1"]
    for name in names:
        client.send_worker_heartbeat(GPU_POOL, name)
    assert set(names) <= set(workers_online(GPU_POOL))
    for name in names:
        sign_off(GPU_POOL, name)
    assert not set(names) & set(workers_online(GPU_POOL))
    sign_off(GPU_POOL, names[0])  # what is not known is no error


def test_all_workers_of_a_pool_label_alike(nightly, monkeypatch):
    """The first one says with what; others are refused unless they offer the same."""
    _, client = nightly
    client.create_work_pool(WorkPoolCreate(name="alike", type="process"))
    gpu, cpu = ("torch", "onnxruntime-cuda"), ("onnxruntime-cpu",)

    def said():
        template = client.read_work_pool("alike").base_job_template
        return template["variables"]["properties"]["backends"]["default"]

    fleet.join("alike", "first", gpu)
    fleet.join("alike", "first", gpu[:1])  # alone it may change
    assert said() == "torch"
    client.send_worker_heartbeat("alike", "first")
    told = "all workers of pool alike label with torch, and this one offers onnxruntime-cpu. "
    told += r".*autolabel doctor.* a pool of its own \(--pool\), or stop the others \(first;"
    with pytest.raises(FleetError, match=told):
        fleet.join("alike", "second", cpu)
    with pytest.raises(FleetError, match=r"label with torch, and this one offers torch, onnx"):
        fleet.join("alike", "second", gpu)
    fleet.join("alike", "second", gpu[:1])
    sign_off("alike", "first")
    fleet.join("alike", "second", cpu)
    assert said() == "onnxruntime-cpu"
    before = {one.name for one in client.read_work_pools()}
    with pytest.raises(AutolabelError, match=r"not this work pool: .*`prefect work-pool"):
        fleet.join("none", "first", cpu)
    monkeypatch.setattr(fleet, "CPU_POOL", "planning")
    fleet.join("planning", "first", cpu)  # as `up` starts it, before it makes pools
    assert {one.name for one in client.read_work_pools()} - before == {"planning"}


def test_a_schedule_that_comes_to_nothing_is_told(nightly, capsys):
    """This server has no scheduler: nothing is ever planned, as with one that fails."""
    again, client = nightly
    deployment = again()
    for one in deployment.schedules:
        client.delete_deployment_schedule(deployment.id, one.id)
    label = LabelParams(sources=("/drives",), out="/labels", boxes="/boxes")
    turn_on(BackfillParams(label=label), "30 2 * * *", "Europe/Berlin")
    (found,) = mine()
    assert (found["on"], found["next_runs"]) == (True, [])
    assert "planned no run" in found["problem"]
    assert found["when"] == "every day at 02:30 Europe/Berlin"
    stored = again().parameters["params"]
    assert BackfillParams.model_validate(stored) == BackfillParams(label=label)

    status._show_schedule(found)
    shown = capsys.readouterr().out
    assert "schedule of nightly/nightly: every day at 02:30 Europe/Berlin, on" in shown
    assert "to do: Prefect has planned no run" in shown
    turn_off()
    (found,) = mine()
    assert (found["on"], found["problem"]) == (False, "")
    before, _ = turn_on(BackfillParams(label=label), "0 1 * * 1", "UTC")
    assert BackfillParams.model_validate(before) == BackfillParams(label=label)
    assert [(one["when"], one["on"]) for one in mine()] == [("cron 0 1 * * 1 UTC", True)]
    with pytest.raises(AutolabelError, match="every day"):
        turn_on(BackfillParams(label=label), "every day", "UTC")


def planned_sources(client):
    """What the planned nights are to label."""
    found = client.read_deployment_by_name("nightly/nightly")
    planned = deployments.flow_runs(deployment_id={"any_": [found.id]})
    return {tuple(one.parameters["params"]["label"]["sources"]) for one in planned}


def test_the_command_sets_the_nights_and_shows_the_next_five(nightly, capsys, database, tmp_path):
    again, client = nightly
    client.update_deployment(again().id, DeploymentUpdate(parameters={}))
    drives, other, out = (str(tmp_path / one) for one in ("drives", "other", "labels"))
    for one in (drives, other):
        Path(one).mkdir()
    run = partial(CliRunner().invoke, nightly_cli.command)
    told = run([drives, "--out", out, "--at", "1:30", "--timezone", "America/New_York"])
    assert told.exit_code == 0, told.output
    first, *nights, now = [line for line in told.stdout.splitlines() if "autolabel up" not in line]
    assert first == "every night at 01:30 America/New_York, the next:"
    assert len(nights) == 5
    assert now == "one now: 'Quick run' of nightly/nightly on Prefect's page"
    days = [datetime.strptime(night.strip()[:20], "%a %Y-%m-%d %H:%M") for night in nights]
    assert {(day.hour, day.minute) for day in days} == {(1, 30)}
    assert [(day - days[0]).days for day in days] == [0, 1, 2, 3, 4]
    assert planned_sources(client) == {(drives,)}
    (found,) = mine()
    first = days[0].replace(tzinfo=ZoneInfo("America/New_York"))
    assert found["next_runs"][0] == first.isoformat(timespec="minutes")
    status._show_schedule(found)
    shown = [line.split("planned")[1].strip() for line in capsys.readouterr().out.splitlines()[2:]]
    assert shown == [night.strip() for night in nights], "both commands say the same"

    told = run([drives, "--out", out]).stdout
    assert told.startswith("every night at 01:30 America/New_York"), "as it was set"
    assert run([other, "--out", out, "--at", "23:05"]).exit_code == 0
    assert planned_sources(client) == {(other,)}, "no night labels what was set before"
    (found,) = mine()
    assert (found["when"], found["on"]) == ("every day at 23:05 America/New_York", True)
    assert all("T23:05" in moment for moment in found["next_runs"])

    assert run(["--off"]).exit_code == 0
    assert json.loads(run(["--off", "--json"]).stdout) == {"on": False}
    assert planned_sources(client) == set()
    assert not mine()[0]["on"]
    dataset = f"of another out {uuid4().hex[:8]}"
    prepare_dataset(dataset, out_uri="/other labels")
    told = run([other, "--out", out, "--dataset", dataset])
    assert isinstance(told.exception, AutolabelError), "as `label` and `backfill` do"
    assert f"dataset '{dataset}' holds the labels of /other labels" in str(told.exception)
    assert not mine()[0]["on"]
    for wrong in ("25:00", "1", "01:60", "at one"):
        told = run([other, "--out", out, "--at", wrong])
        assert (told.exit_code, "does not match the format" in told.output) == (2, True)


def test_a_night_that_runs_is_told_and_the_failure_of_the_one_before_is_past(nightly, monkeypatch):
    again, client = nightly
    deployment = again()
    client.update_deployment_schedule(deployment.id, deployment.schedules[0].id, active=True)
    client.update_deployment(deployment.id, DeploymentUpdate(parameters=PARAMETERS))
    deployments.plan_nights(1)
    by_hand = client.create_flow_run_from_deployment(deployment.id)
    client.set_flow_run_state(by_hand.id, Failed(message="no room"), force=True)
    assert "no room" in mine()[0]["problem"], "somebody has started it"
    turn_off()
    (told,) = mine()
    assert (told["on"], told["last_message"], told["problem"]) == (False, "no room", "")
    assert not told["changed"]
    client.update_deployment(deployment.id, DeploymentUpdate(parameters={}))
    assert mine()[0]["changed"]
    client.update_deployment_schedule(deployment.id, deployment.schedules[0].id, active=True)
    next_night = datetime.now(UTC) + timedelta(hours=9)
    planned = FlowRun(flow_id=uuid4(), state=Scheduled(), expected_start_time=next_night)
    runs = [planned, FlowRun(flow_id=uuid4(), state=Failed(message="no bucket"))]
    monkeypatch.setattr(deployments, "_runs_of", lambda _: runs)
    assert "no bucket" in mine()[0]["problem"]
    runs.insert(1, FlowRun(flow_id=uuid4(), state=Running(), state_name="Running"))
    (told,) = mine()
    assert (told["last_state"], told["problem"]) == ("Running", "")


def mine():
    return [
        one for one in deployments.collect_schedules() if one["deployment"] == "nightly/nightly"
    ]
