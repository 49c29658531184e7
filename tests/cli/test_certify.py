"""`autolabel models certify`, and `label` with an engine that fails."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from flows.cli.main import cli
from sam2_core.trust.certificate import certificates
from tests.planted_graphs import copy_of_compact, plant


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return plant(copy_of_compact(tmp_path / "model"), "red and blue swapped")


def invoke(*arguments):
    return CliRunner().invoke(cli, [str(one) for one in arguments], catch_exceptions=False)


def test_label_refuses_an_engine_that_fails_and_labels_say_if_that_was_overridden(faulty, tmp_path):
    drive = tmp_path / "drive"
    (tmp_path / "boxes").mkdir()
    drive.mkdir()
    Image.fromarray(np.full((64, 96, 3), 90, np.uint8)).save(drive / "0.png")
    (tmp_path / "boxes" / "0.txt").write_text("car 0.9 5 5 40 40\n")
    asked = ["label", drive, "--out", tmp_path / "out", "--no-dataset", "--json", "--model", faulty,
             "--boxes", tmp_path / "boxes", "--backend", "onnxruntime-cpu"]  # fmt: skip
    refused = invoke(*asked)
    assert refused.exit_code == 1
    summary = json.loads(refused.stdout)
    (failure,) = summary["failed"]
    assert "may not label" in failure["reason"]
    assert not list((tmp_path / "out").rglob("*.masks.parquet"))
    assert not list((tmp_path / "out").rglob("quarantine/*"))
    listed = json.loads(invoke("models", "list", "--json").stdout)["models"][0]
    assert [one["verdict"] for one in listed["certificates"]] == ["failed"]
    done = invoke(*asked, "--allow-uncertified")
    assert done.exit_code == 0, done.output
    overridden = json.loads(done.stdout)
    assert overridden["run_key"] != summary["run_key"]
    (manifest,) = (tmp_path / "out" / "manifests" / overridden["run_key"]).glob("*.json")
    stamp = json.loads(manifest.read_text())["stamp"]
    assert stamp["parameters"]["allow_uncertified"] is True
    (report,) = (tmp_path / "out" / "reports" / overridden["run_key"]).glob("*.json")
    assert json.loads(report.read_text())["certificate"] is None


def test_certify_writes_the_verdict_and_draws_the_worst_masks(faulty):
    found = invoke("models", "certify", faulty, "--backend", "onnxruntime-cpu", "--quick", "--json")
    assert found.exit_code == 1
    certificate = json.loads(found.stdout)
    assert certificate["verdict"] == "failed"
    assert certificate["failures"]
    with Image.open(certificate["worst"][0]["file"]) as picture:
        assert picture.size == (640, 320)
    (kept,) = certificates()
    assert kept.failures == tuple(certificate["failures"])
    good = invoke("models", "certify", "compact", "--backend", "onnxruntime-cpu", "--quick")
    assert good.exit_code == 0
    assert "passed" in good.stdout
