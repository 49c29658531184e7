"""What can be proved of deploy/ without a container engine or a cluster."""

import configparser
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tomllib
import urllib.request
from pathlib import Path

import psutil
import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from flows.cli.main import cli
from flows.machine.programs import CPU_POOL, GPU_POOL, GRACE_S
from flows.server.process import SETTINGS
from flows.server.worker import STOP_S
from sam2_core.machine import METRICS_PORT
from tasks.observe import metrics_server, progress
from tests.conftest import REPOSITORY
from tests.integration.cluster import AUTOLABEL, free_port, tree

DEPLOY = REPOSITORY / "deploy"


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
        assert given["pool"] == pool
    patience = [compose["worker"]["stop_grace_period"], unit["Service"]["TimeoutStopSec"]]
    assert [int(str(one).rstrip("s")) for one in patience] == [GRACE_S + STOP_S] * 2
    assert int(whole["Service"]["TimeoutStopSec"]) >= 2 * (GRACE_S + STOP_S)
    environment = whole["Service"]["EnvironmentFile"]
    assert environment == f"-{unit['Service']['EnvironmentFile']}", "a workstation may need none"
    assert whole["Service"]["ExecStart"].endswith("autolabel up")
    assert whole["Service"]["ExecStop"].endswith("autolabel down")
    assert SETTINGS.items() <= compose["prefect"]["environment"].items()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_knows_its_units_which_write_nothing_but_their_home_and_see_gpus(tmp_path):
    sandboxes = []
    for file in sorted((DEPLOY / "systemd").iterdir()):
        text = file.read_text()
        copy = tmp_path / file.name
        copy.write_text(text.replace("/opt/autolabel/bin/autolabel", str(AUTOLABEL)))
        for check in ["verify"], ["security", "--offline=true", "--threshold=25"]:
            command = ["systemd-analyze", *check, copy]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            assert not done.stderr
        sandboxes.append(text.partition("# Written is only")[2].partition("[Install]")[0])
    assert len(sandboxes) == 2
    assert sandboxes[0] == sandboxes[1]
    # The second closes all devices but the clock's.
    for hides in "PrivateDevices", "ProtectClock", "DevicePolicy":
        assert f"{hides}=" not in sandboxes[0]


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
    order = ["publish", "chart", "image", "test", "wheel"]
    assert [jobs[one].get("needs") for one in order] == [*order[1:], None]
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((DEPLOY / "chart" / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == settings["version"]
    for python in jobs["test"]["strategy"]["matrix"]["python"]:
        assert Version(python) in SpecifierSet(settings["requires-python"])
    assert len(jobs["test"]["strategy"]["matrix"]["python"]) == 3


def test_a_release_pushes_the_chart_with_the_images_that_it_built(tmp_path):
    """As the workflow's shell does it, with another helm and cosign."""
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "release.yml").read_text())
    job = workflow["jobs"]["chart"]
    (step,) = (one for one in job["steps"] if "helm push" in one.get("run", ""))
    shutil.copytree(DEPLOY / "chart", tmp_path / "deploy" / "chart")
    for name in "helm", "cosign":
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f'#!/bin/sh\necho {name} "$@" >> done.txt\necho "Digest: sha256:chart"\n'
        )
        program.chmod(0o755)
    targets = workflow["jobs"]["image"]["strategy"]["matrix"]["target"]
    images = {one: f"ghcr.io/me/repo-{one}@sha256:{ord(one[0]):064x}" for one in targets}
    own = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "GITHUB_REPOSITORY_OWNER": "Me"}
    own |= {one.upper(): image for one, image in images.items()}
    assert set(step["env"]) == {one.upper() for one in targets}
    subprocess.run(["bash", "-e", "-c", step["run"]], env=own, cwd=tmp_path, check=True)
    values = yaml.safe_load((tmp_path / "deploy" / "chart" / "values.yaml").read_text())["images"]
    assert {
        one: f"{values[one]['repository']}@{values[one]['digest']}" for one in targets
    } == images
    done = (tmp_path / "done.txt").read_text()
    assert "helm push sam2-autolabel-*.tgz oci://ghcr.io/me/charts" in done
    assert "cosign sign --yes ghcr.io/me/charts/sam2-autolabel@sha256:chart" in done


def test_dependabot_leaves_files_of_databases_and_the_python_of_the_locks_alone():
    updates = yaml.safe_load((REPOSITORY / ".github" / "dependabot.yml").read_text())["updates"]
    kept = {
        (of["package-ecosystem"], one["dependency-name"], kind.rpartition("-")[2])
        for of in updates
        for one in of.get("ignore", ())
        for kind in one["update-types"]
    }
    databases = {
        (of, name, "major") for of in ("docker-compose", "helm") for name in ("postgres", "mongo")
    }
    assert kept == databases | {("docker", "python", "major"), ("docker", "python", "minor")}
    assert all((REPOSITORY / of["directory"].lstrip("/")).is_dir() for of in updates)


def test_the_model_server_of_compose_is_a_command_and_its_memory_is_enough():
    compose = yaml.safe_load((DEPLOY / "compose.triton.yaml").read_text())["services"]
    for service in compose.values():
        assert all(one.startswith("127.0.0.1:") for one in service["ports"])
    command = compose["triton"]["command"]
    assert command[:2] == ["autolabel", "serve"]
    given = cli.get_command(None, "serve").make_context("serve", command[2:]).params
    assert int(compose["triton"]["shm_size"].removesuffix("gb")) * 1024 >= given["cache_mb"] + 512


SLURM = DEPLOY / "slurm" / "workers.sbatch"


@pytest.fixture
def job(tmp_path):
    """Start the script as Slurm would on one node, with a program in the place of `autolabel`."""
    (tmp_path / "env").write_text("PREFECT_API_URL=https://prefect.example.com/api\n")
    worker = """
        trap 'echo told twice; exit 1' USR1
        trap 'echo stopped; exit 3' TERM
        trap 'heard=SIGINT' INT
        kill -INT $$
        echo "$PREFECT_API_URL" "$AUTOLABEL_CACHE" "$heard" "$@"
        while sleep 0.1; do :; done
    """
    for name, script in {
        "srun": 'test "$1" = --kill-on-bad-exit=0 && shift && exec "$@"',
        "autolabel": worker,
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    own = {"PATH": f"{tmp_path}:/usr/bin:/bin", "AUTOLABEL_ENV": str(tmp_path / "env")}
    own |= {"USER": "night", "HOME": str(tmp_path)}

    started = []

    def start(cache):
        pipe = subprocess.PIPE
        own["AUTOLABEL_CACHE"] = str(cache)
        # What runs the tests in the background may ignore SIGINT, and bash would, too.
        command = ["env", "--default-signal=INT", "bash", SLURM]
        started.append(subprocess.Popen(command, env=own, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for one in started:
        for process in reversed(tree(one.pid)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def test_slurm_starts_workers_with_the_users_environment_and_time_to_give_shards_back(
    job, tmp_path
):
    (warned,) = re.findall(r"^#SBATCH --signal=USR1@(\d+)$", SLURM.read_text(), re.MULTILINE)
    assert int(warned) >= GRACE_S + STOP_S
    made = tmp_path / "disk" / "cache"
    started = job(made)
    api, cache, heard, *command = started.stdout.readline().split()
    assert (api, cache, heard) == ("https://prefect.example.com/api", str(made), "SIGINT")
    assert made.stat().st_mode & 0o777 == 0o700
    assert command[0] == "worker"
    given = cli.get_command(None, "worker").make_context("worker", command[1:]).params
    assert given["pool"] == GPU_POOL
    # As Slurm does it: to every process of the step.
    step = psutil.Process(started.pid)
    for one in [step, *step.children(recursive=True)]:
        one.send_signal(signal.SIGUSR1)
    assert started.communicate(timeout=60) == ("stopped\n", "")
    assert started.returncode == 3


def test_slurms_workers_take_no_cache_that_another_user_has_made(job, tmp_path):
    foreign = Path("/usr")
    if not os.geteuid():
        foreign = tmp_path / "foreign"
        foreign.mkdir()
        os.chown(foreign, 65534, 65534)
    refused = job(foreign)
    told, why = refused.communicate(timeout=60)
    assert (refused.returncode, told) == (1, "")
    assert f"{foreign} on " in why
    assert "set AUTOLABEL_CACHE to another" in why
