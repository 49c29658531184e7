"""What `autolabel doctor` finds, shown without secrets."""

import json

from click.testing import CliRunner

from flows.cli import doctor
from flows.cli.main import cli
from flows.server.client import asked_once
from sam2_core import backend_choice
from tests.planted import PLANTED


def found():
    with asked_once():
        done = CliRunner().invoke(cli, ["doctor", "--json"])
    return json.loads(done.stdout)["findings"], done.output


def test_addresses_are_shown_without_their_credentials(monkeypatch):
    for name, value in {
        "AWS_ACCESS_KEY_ID": f"key-{PLANTED}",
        "AWS_SECRET_ACCESS_KEY": PLANTED,
        "AWS_ENDPOINT_URL": f"http://me:12/{PLANTED}@127.0.0.1:1",
        "PREFECT_API_URL": f"http://me:a@{PLANTED}@127.0.0.1:1/api",
        "FIFTYONE_DATABASE_URI": f"mongodb://me:p/{PLANTED}@127.0.0.1:1/",
    }.items():
        monkeypatch.setenv(name, value)
    findings, told = found()
    assert PLANTED not in told
    for name, words in (
        ("credentials", "***@127.0.0.1:1"),
        ("credentials", "AWS_ACCESS_KEY_ID"),
        ("prefect", "***@127.0.0.1:1"),
        ("database", "mongodb://***@127.0.0.1:1"),
    ):
        assert words in findings[name]["found"]
    assert findings["database"]["state"] == findings["prefect"]["state"] == "missing"


def test_a_variable_that_names_no_gpu_and_the_server_of_up_are_told(monkeypatch, database):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(backend_choice, "cuda_devices", lambda: 0)
    monkeypatch.setattr(doctor, "running_api", lambda: "http://127.0.0.1:1/api")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    findings, _ = found()
    assert findings["gpu"]["found"].startswith("CUDA_VISIBLE_DEVICES=9 names no GPU here")
    assert "runs a server at http://127.0.0.1:1/api" in findings["prefect"]["found"]
    assert findings["database"]["state"] == "ok"
