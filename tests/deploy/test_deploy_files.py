"""What can be proved of deploy/ without a container engine or a cluster."""

import configparser
import json
import re
import subprocess
import tomllib
import urllib.request
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from flows.cli.main import cli
from flows.machine.programs import CPU_POOL, GPU_POOL, GRACE_S
from flows.machine.worker import STOP_S
from flows.server.process import SETTINGS
from sam2_core.machine import METRICS_PORT
from tasks.observe import metrics_server, progress
from tests.conftest import REPOSITORY
from tests.integration.cluster import free_port

DEPLOY = REPOSITORY / "deploy"


def test_every_deployment_names_a_flow_that_is_there():
    from prefect.flows import load_flow_from_entrypoint

    values = yaml.safe_load((DEPLOY / "prefect.yaml").read_text())
    assert values["pull"] == []
    names = set()
    for one in values["deployments"]:
        flow = load_flow_from_entrypoint(one["entrypoint"])
        names.add(f"{flow.name}/{one['name']}")
        loggers = one["work_pool"]["job_variables"]["env"]["PREFECT_LOGGING_EXTRA_LOGGERS"]
        assert loggers == "sam2_core,tasks,flows"
        assert one["work_pool"]["name"] in {"gpu", "cpu"}
    from flows.server.runs import SHARD_DEPLOYMENT

    assert SHARD_DEPLOYMENT in names


def test_a_served_flow_is_pickled_and_keeps_its_form():
    """Prefect hands a flow that is served to a new process, and finds its file by its name."""
    import cloudpickle
    from prefect.flows import load_flow_from_entrypoint
    from prefect.utilities.callables import parameter_schema

    for one in yaml.safe_load((DEPLOY / "prefect.yaml").read_text())["deployments"]:
        flow = load_flow_from_entrypoint(one["entrypoint"])
        assert flow.fn.__qualname__ == one["entrypoint"].rpartition(".")[2]
        again = cloudpickle.loads(cloudpickle.dumps(flow))
        assert parameter_schema(again) == parameter_schema(flow)


def test_compose_publishes_on_localhost_and_holds_no_secret():
    text = (DEPLOY / "compose.yaml").read_text()
    values = yaml.safe_load(text)
    for service in values["services"].values():
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", ()))
        for name, needed in service.get("depends_on", {}).items():
            assert name in values["services"]
            assert needed["condition"].startswith("service_")
    prefect, mongo = values["services"]["prefect"], values["services"]["mongo"]
    assert prefect["environment"]["PREFECT_SERVER_API_AUTH_STRING"] == "${PREFECT_AUTH}"
    assert prefect["environment"]["PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED"] == "true"
    origin = prefect["environment"]["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"]
    assert origin == f"http://{prefect['ports'][0].rpartition(':')[0]}"
    assert "--noscripting" in mongo["command"]
    assert mongo["environment"]["MONGO_INITDB_ROOT_PASSWORD"] == "${MONGO_PASSWORD}"
    for line in text.splitlines():
        if re.search(r"(PASSWORD|SECRET|AUTH\w*)\b.*[:=]", line):
            assert "${" in line
    named = set(re.findall(r"\$\{(\w+)", text)) - {"AUTOLABEL_IMAGE"}
    example = (DEPLOY / "env.example").read_text()
    assert named == set(re.findall(r"^(\w+)=", example, re.MULTILINE))


def test_systemd_compose_and_kubernetes_run_the_programs_of_a_workstation():
    """With their pools and settings, and enough time to give shards back."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    unit, whole = configparser.RawConfigParser(), configparser.RawConfigParser()
    unit.read(DEPLOY / "systemd" / "autolabel-worker@.service")
    whole.read(DEPLOY / "systemd" / "autolabel.service")
    workers = [compose["worker"]["command"], compose["planner"]["command"]]
    workers += [unit["Service"]["ExecStart"].replace("%i", GPU_POOL).split()]
    for command, pool in zip(workers, (GPU_POOL, CPU_POOL, GPU_POOL), strict=True):
        assert Path(command[0]).name == "autolabel"
        (known,) = [one for one in cli.list_commands(None) if one == command[1]]
        given = cli.get_command(None, known).make_context(known, command[2:]).params
        assert (given["pool"], given["grace"]) == (pool, GRACE_S)
    template = json.loads((DEPLOY / "chart" / "files" / "base-job-template.json").read_text())
    pod = template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    patience = [compose["worker"]["stop_grace_period"], unit["Service"]["TimeoutStopSec"]]
    patience += [pod["terminationGracePeriodSeconds"]]
    assert [int(str(one).rstrip("s")) for one in patience] == [GRACE_S + STOP_S] * 3
    assert int(whole["Service"]["TimeoutStopSec"]) >= 2 * (GRACE_S + STOP_S)
    assert whole["Service"]["ExecStart"].endswith("autolabel up")
    assert whole["Service"]["ExecStop"].endswith("autolabel down")
    assert SETTINGS.items() <= compose["prefect"]["environment"].items()


@pytest.fixture
def served(monkeypatch):
    port = free_port()
    monkeypatch.setenv(METRICS_PORT.name, str(port))
    run = progress.Progress()
    with metrics_server.serving(run):
        yield (
            run,
            lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode(),
        )


def test_metrics_count_what_is_told_and_dashboard_and_alerts_ask_for_them(served):
    run, scrape = served
    run.advance(progress.DOWNLOAD, 10)  # pictures are announced by nobody
    run.advance(progress.SEGMENT, 4)
    run.advance(progress.SEGMENT, 2, kept=True)
    run.finish_chunk({progress.SEGMENT: 0.7}, 31)
    run.finish("drive", "", good=False)
    told = scrape()
    for line in (
        'autolabel_frames_total{kept="false",stage="segment"} 4.0',
        'autolabel_frames_total{kept="true",stage="segment"} 2.0',
        "autolabel_frames_waiting 4.0",
        "autolabel_instances_total 31.0",
        'autolabel_sequences_total{outcome="failed"} 1.0',
        'autolabel_chunk_seconds_bucket{le="1.0",stage="segment"} 1.0',
    ):
        assert line in told
    exprs = json.loads((DEPLOY / "chart" / "dashboards" / "autolabel.json").read_text())["panels"]
    asked = {
        name
        for text in [json.dumps(exprs), (DEPLOY / "chart" / "files" / "alerts.yaml").read_text()]
        for name in re.findall(r"\bautolabel_\w+", text)
    }
    exported = set(re.findall(r"^(?:# TYPE )?(autolabel_\w+)", told, re.MULTILINE))
    assert asked <= exported


def test_each_alert_has_a_runbook_and_each_runbook_an_alert():
    text = (DEPLOY / "chart" / "files" / "alerts.yaml").read_text()
    linked = {
        rule["alert"]: rule["annotations"]["runbook_url"]
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
    }
    page = (REPOSITORY / "docs" / "OPERATIONS.md").read_text()
    runbooks = page.partition("\n## Alerts\n")[2].partition("\n## ")[0].split("\n### ")[1:]
    names = [text.partition("\n")[0] for text in runbooks]
    assert linked == {name: f"docs/OPERATIONS.md#{name.lower()}" for name in names}
    assert all(len(text.split()) > 20 for text in runbooks)


def test_no_port_or_a_taken_one_only_costs_the_metrics(served):
    run, scrape = served
    with metrics_server.serving(progress.Progress()):  # the port is taken by now
        run.finish("drive", "", good=True)
    assert 'outcome="good"} 1.0' in scrape()


@pytest.mark.parametrize("port", ["70000", "many"])
def test_a_port_that_is_none_ends_no_shard_and_is_told(monkeypatch, caplog, port):
    monkeypatch.setenv(METRICS_PORT.name, port)
    with metrics_server.serving(progress.Progress()):
        pass
    assert f"AUTOLABEL_METRICS_PORT={port}: expected a port, 1 to 65535" in caplog.text


def test_a_bucket_policy_denies_what_is_not_needed():
    policy = json.loads((DEPLOY / "bucket-policy.json").read_text())
    (deleted,) = (one["Resource"] for one in policy["Statement"] if "Delete" in one["Sid"])
    marks = {one.partition("PREFIX/")[2] for one in deleted}
    assert marks == {
        ".autolabel-writable", "attempts/*", "quarantine/*", "mixed/*", "manifests/*"
    }  # fmt: skip
    actions = {
        action
        for one in policy["Statement"]
        if one["Effect"] == "Allow"
        for action in ([one["Action"]] if isinstance(one["Action"], str) else one["Action"])
    }
    assert actions == {
        "s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload",
        "s3:DeleteObject",
    }  # fmt: skip


def test_a_release_runs_pinned_actions_and_publishes_without_a_secret():
    text = (REPOSITORY / ".github" / "workflows" / "release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    used = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", one) for one in used)
    assert "secrets." not in text
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["needs"] == "test"
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((DEPLOY / "chart" / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == settings["version"]
    for python in jobs["test"]["strategy"]["matrix"]["python"]:
        assert Version(python) in SpecifierSet(settings["requires-python"])
    assert len(jobs["test"]["strategy"]["matrix"]["python"]) == 3


def test_slurm_starts_workers_with_the_users_environment_and_time_to_give_shards_back(tmp_path):
    script = DEPLOY / "slurm" / "workers.sbatch"
    (warned,) = re.findall(r"^#SBATCH --signal=TERM@(\d+)$", script.read_text(), re.MULTILINE)
    assert int(warned) >= GRACE_S + STOP_S
    (tmp_path / "env").write_text("PREFECT_API_URL=https://prefect.example.com/api\n")
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nshift\necho "$PREFECT_API_URL" "$AUTOLABEL_CACHE" "$@"\n')
    srun.chmod(0o755)
    own = {"PATH": f"{tmp_path}:/usr/bin:/bin", "AUTOLABEL_ENV": str(tmp_path / "env")}
    own |= {"USER": "night", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", script], env=own, capture_output=True, text=True, check=True)
    api, cache, *command = done.stdout.split()
    assert (api, cache) == ("https://prefect.example.com/api", "/tmp/autolabel-night")
    assert command[:2] == ["autolabel", "worker"]
    given = cli.get_command(None, "worker").make_context("worker", command[2:]).params
    assert (given["pool"], given["grace"]) == (GPU_POOL, GRACE_S)
