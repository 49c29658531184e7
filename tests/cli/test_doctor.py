"""What `autolabel doctor` finds, shown without secrets."""

import json
import shutil
from dataclasses import asdict

import pytest
from click.testing import CliRunner

from flows.cli import doctor
from flows.cli.main import cli
from flows.server.client import asked_once
from sam2_core import devices
from sam2_core.cache import file_sha256
from sam2_core.model_download import record
from tasks.boxes import detector_files
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
    monkeypatch.setattr(devices, "cuda_devices", lambda: 0)
    monkeypatch.setattr(doctor, "running_api", lambda: "http://127.0.0.1:1/api")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    findings, _ = found()
    assert findings["gpu"]["found"].startswith("CUDA_VISIBLE_DEVICES=9 names no GPU here")
    assert "runs a server at http://127.0.0.1:1/api" in findings["prefect"]["found"]
    assert findings["database"]["state"] == "ok"


@pytest.mark.parametrize(
    "name",
    [
        "detector_compact.onnx",
        "compact/restructured/memory.safetensors",
        "compact/restructured/memory_folded.bin",
        "compact/restructured/encoder_close_up.onnx",
    ],
)
def test_a_damaged_file_of_a_model_is_named_and_fails(tmp_path, monkeypatch, name):
    weights = shutil.copytree(detector_files.BUNDLED_FOLDER, tmp_path / "weights")
    monkeypatch.setattr(detector_files, "BUNDLED_FOLDER", weights)
    assert examined()["state"] == "ok"
    data = bytearray((weights / name).read_bytes())
    data[len(data) // 2] ^= 1
    (weights / name).write_bytes(data)
    assert examined()["state"] == "missing"
    assert str(weights / name) in examined()["found"]
    (weights / name).unlink()
    if "/" in name:
        assert str(weights / name) in examined()["found"], "nor may one be gone"


def test_a_damaged_file_that_was_downloaded_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path))
    path = tmp_path / "checkpoints" / "sam2.1_hiera_tiny.pt"
    path.parent.mkdir()
    path.write_bytes(b"whole")
    record(path, file_sha256(path))
    assert examined()["state"] == "ok"
    path.write_bytes(b"holed")
    assert str(path) in examined()["found"]


def examined():
    """What is found of the models alone; the doctor's exit code goes by `state`."""
    return asdict(doctor._models())
