"""Every night, as a user sets it up: a schedule labels, and is there after a restart."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.cluster import free_port, wait_for
from tests.integration.runs import MICRO, Home, write_sequence
from tests.review.app_page import CHROMIUM, browser_page


@pytest.fixture
def workstation(tmp_path):
    """A home in which `autolabel up` is called again and again; whatever runs there is ended."""
    home = Home(tmp_path / "home", PREFECT_WORKER_QUERY_SECONDS="2")
    ports = ["--prefect-port", free_port(), "--app-port", free_port()]
    home.up = lambda: home.run("up", *ports, "--workers", "1", "--json", timeout=400)
    yield home
    _, told = said(home, "down")
    assert "Traceback" not in told


@pytest.mark.ci
@pytest.mark.timeout(900)
def test_two_nights_fire_by_their_schedule_with_up_given_again_between(workstation, tmp_path):
    sources, out = tmp_path / "in", tmp_path / "out"
    write_sequence(sources / "drive0", tmp_path / "boxes", 2)
    first, told = workstation.up()
    assert {*first} == {"prefect", "database", "worker-gpu", "worker-cpu", "app", "sign_in"}
    assert all(f"waiting for {what}" in told for what in ("Prefect's server", "the database"))
    for_its_user_alone(workstation, told)
    foreign_commands(workstation)
    assert workstation.up()[0] == first
    now = status(workstation)
    assert len(now["workers_online"]) == 1
    (schedule,) = now["schedules"]
    assert not schedule["on"]
    arguments = [sources, "--out", out, "--boxes", tmp_path / "boxes", "--model", MICRO]
    _, warned = said(workstation, "nightly", *arguments, "--backend", "torch")
    assert "every night would fail: the workers of pool gpu label with onnxruntime-cpu" in warned
    arguments += ["--no-dataset", "--at", "01:00"]
    nights = json.loads(said(workstation, "nightly", *arguments, "--json")[0])["next_runs"]
    assert len(nights) == 5
    assert all(one.endswith("T01:00+00:00") for one in nights)
    told = said(workstation, "nightly", *arguments)[0]
    assert told.count(" 01:00 UTC") == 6
    in_python(
        workstation,
        "from prefect.deployments import run_deployment",
        "run_deployment('nightly/nightly', timeout=0)",
    )
    wait_for(lambda: "drive0" in labeled(out), 400, every=2)
    (night,) = completed(workstation)
    assert night["last_message"] == "labeled 1 sequence: 2 frames, 4 masks; 1 of 1 sequence labeled"
    refused = workstation.start("nightly", *arguments, "--frames", ":1")
    assert "--frames :1 leaves out 1 of 2 frames of drive0" in refused.communicate(timeout=300)[1]
    assert refused.returncode == 2, "the nights stay as they are"
    write_sequence(sources / "drive1", tmp_path / "boxes", 2)
    half = out / "labels" / "gone" / "_" / f".0-2-k.masks.parquet.{32 * '0'}.tmp"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"what somebody was killed at, long ago")
    os.utime(half, (0, 0))
    every_minute(workstation)
    wait_for(lambda: "drive1" in labeled(out), 400, every=2)
    (night,) = completed(workstation)
    assert (night["on"], bool(night["next_runs"]), night["problem"]) == (True, True, "")
    assert not half.exists()

    for one in processes(workstation):  # as the machine's end does it
        one.kill()
    assert "nothing runs of what `autolabel up` started" in said(workstation, "status")[1]
    write_sequence(sources / "drive2", tmp_path / "boxes", 2)
    workstation.up()
    wait_for(lambda: "drive2" in labeled(out), 400, every=2)
    assert status(workstation)["schedules"][0]["next_runs"]

    from_python(workstation, tmp_path)

    said(workstation, "nightly", "--off")
    assert not status(workstation)["schedules"][0]["on"]
    started = processes(workstation)
    assert "worker-gpu" in " ".join(json.loads(said(workstation, "down", "--json")[0])["stopped"])
    assert not any(map(runs, started))
    assert "nothing that `autolabel up` started" in said(workstation, "down")[0]


def for_its_user_alone(home, told):
    """Listens on 127.0.0.1, says no password in a log, and lets a browser in by its file."""
    folder = home.folder / "cache" / "services"
    for secret in ("prefect-password", "app-token"):
        assert (folder / secret).read_text().rpartition(":")[2] not in told
    listening = [
        one.laddr.ip
        for process in processes(home)
        for one in process.net_connections()
        if one.status == psutil.CONN_LISTEN
    ]
    assert len(listening) > 3
    assert set(listening) == {"127.0.0.1"}
    if CHROMIUM:
        with browser_page() as page:
            page.goto((folder / "sign-in.html").as_uri())
            page.get_by_role("link", name="Prefect").click()
            page.get_by_role("link", name="Work Pools").wait_for()
            page.goto((folder / "sign-in.html").as_uri())
            page.get_by_role("link", name="FiftyOne").click()
            page.get_by_text("No datasets yet").wait_for()


def processes(home):
    """Every process of `up`, by the cache that all of them are told of."""
    found, cache = [], home.environment["AUTOLABEL_CACHE"]
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.environ().get("AUTOLABEL_CACHE") == cache:
                found.append(one)
    return found


def runs(process):
    """Whether it runs; one that nobody has asked how it ended does not."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def foreign_commands(home):
    """Prefect's and FiftyOne's own commands, with the addresses that `autolabel doctor` says."""
    program = Path(sys.executable).parent
    findings = json.loads(said(home, "doctor", "--json")[0])["findings"]
    told = f"{findings['prefect']['found']} {findings['database']['found']}"
    addresses = {
        "PREFECT_API_URL": re.search(r"http://\S+/api", told)[0],
        "PREFECT_API_AUTH_STRING": (home.folder / "cache/services/prefect-password").read_text(),
        "FIFTYONE_DATABASE_URI": re.search(r"mongodb://\S+", told)[0],
        "FIFTYONE_DATABASE_VALIDATION": "false",
    }
    done = subprocess.run(
        ["sh", "-c", f"{program}/prefect work-pool ls && {program}/fiftyone datasets list"],
        env=home.environment | addresses, text=True, capture_output=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "gpu" in done.stdout
    assert "No datasets found" in done.stdout


def from_python(home, folder):
    """`flows.run.backfill` finds what `up` runs, with no variable set."""
    write_sequence(folder / "more" / "drive3", folder / "boxes", 2)
    given = {
        "sources": str(folder / "more"), "out": str(folder / "python"), "load_dataset": False,
        "boxes": str(folder / "boxes"), "model": str(MICRO),
    }  # fmt: skip
    script = (
        "from flows.params import BackfillParams, LabelParams\n"
        "from flows.run import backfill\n"
        f"label = LabelParams(**{given})\n"
        "print(backfill(BackfillParams(label=label), wait=True)['remaining'])\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=home.environment, text=True, capture_output=True, check=True)
    assert done.stdout == "0\n"
    assert labeled(folder / "python") == {"drive3"}


def every_minute(home):
    """Change the schedule's rule as on its page of Prefect: a night must not last until 01:00."""
    in_python(
        home,
        "from prefect.client.orchestration import get_client",
        "from prefect.client.schemas.schedules import CronSchedule",
        "with get_client(sync_client=True) as client:",
        "    found = client.read_deployment_by_name('nightly/nightly')",
        "    rule = CronSchedule(cron='* * * * *')",
        "    client.update_deployment_schedule(found.id, found.schedules[0].id, schedule=rule)",
    )


def in_python(home, *lines):
    """Run lines that use Prefect, with the server of `up`."""
    script = "\n".join(["from flows.server.api import use_api", "use_api()", *lines])
    subprocess.run([sys.executable, "-c", script], env=home.environment, check=True)


def completed(home):
    """The schedules whose last run has ended well, as soon as there is one."""
    return wait_for(
        lambda: [one for one in status(home)["schedules"] if one["last_state"] == "Completed"],
        200, every=5,
    )  # fmt: skip


def status(home):
    return json.loads(said(home, "status", "--json")[0])


def said(home, *command):
    """What a command prints and tells, however it ends."""
    return home.start(*command).communicate(timeout=300)


def labeled(out):
    return {path.name.partition("@")[0] for path in out.glob("manifests/*/*.json")}
