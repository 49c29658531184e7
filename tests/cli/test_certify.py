"""`autolabel models certify`, and `label` with an engine that fails."""

import json
import re
import shlex
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from flows.cli.main import cli
from sam2_core.cache import cache_folder
from sam2_core.trust import certify as certifying
from sam2_core.trust.certify import (
    UncertifiedEngineError,
    certificate_path,
    certificates,
    engine_facts,
)
from sam2_core.types import AutolabelError
from tasks.evaluate.evaluate import more_pictures
from tasks.masks.model import Segmenters, choose_model
from tests.planted_graphs import FAULTS, RESIZE, copy_of_compact, plant, resized_without_antialias


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


@pytest.fixture
def faulty(tmp_path):
    return plant(copy_of_compact(tmp_path / "[bold]"), "red and blue swapped")


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
    named = shlex.quote(str(faulty))
    again = f"`autolabel models certify {named} --backend onnxruntime-cpu --precision fp32 --qui"
    assert again in failure["reason"]
    for kept in ("*.masks.parquet", "quarantine/*"):
        assert not list((tmp_path / "out").rglob(kept))
    assert "[bold]" in invoke("models", "list").stdout
    listed = json.loads(invoke("models", "list", "--json").stdout)
    assert not any(one["certificates"] for one in listed["models"])
    (other,) = listed["other_certificates"]
    assert (other["verdict"], other["source"], other["now"]) == ("failed", str(faulty), True)
    done = invoke(*asked, "--allow-uncertified")
    assert done.exit_code == 0, done.output
    assert "--allow-uncertified: its certificate says: failed" in done.stderr
    overridden = json.loads(done.stdout)
    assert overridden["allow_uncertified"] == "failed"
    assert overridden["run_key"] != summary["run_key"]
    (manifest,) = (tmp_path / "out" / "manifests" / overridden["run_key"]).glob("*.json")
    stamp = json.loads(manifest.read_text())["stamp"]
    assert stamp["parameters"]["allow_uncertified"] is True
    (report,) = (tmp_path / "out" / "reports" / overridden["run_key"]).glob("*.json")
    assert json.loads(report.read_text())["certificate"] == {
        "verdict": "failed",
        "allow_uncertified": True,
    }
    written = invoke("export", tmp_path / "out", "--format", "coco", "--to", tmp_path / "coco")
    assert written.exit_code == 0, written.output
    exported = json.loads((tmp_path / "coco" / "export.json").read_text())
    assert exported["allow_uncertified"] == {overridden["run_key"]: "failed"}


@pytest.mark.parametrize(
    "fault", [*(pytest.param(one, marks=pytest.mark.ci) for one in FAULTS), RESIZE]
)
def test_certify_fails_every_planted_fault_and_labeling_refuses_by_that_verdict(
    fault, tmp_path, monkeypatch
):
    model = copy_of_compact(tmp_path / "model")
    if fault == RESIZE:
        monkeypatch.setattr("sam2_core.segmenter.resize_square", resized_without_antialias)
    else:
        plant(model, fault)
    found = invoke("models", "certify", model, "--backend", "onnxruntime-cpu", "--quick", "--json")
    assert found.exit_code == 1
    certificate = json.loads(found.stdout)
    assert certificate["verdict"] == "failed"
    assert certificate["failures"]
    with Image.open(certificate["worst"][0]["file"]) as picture:
        assert picture.size == (640, 320)
    (kept,) = certificates()
    assert kept.failures == tuple(certificate["failures"])
    choice, models = choose_model(str(model), "onnxruntime-cpu"), Segmenters()
    monkeypatch.setattr(certifying, "certify", None)  # the verdict that lies there is enough
    for refusal in (models.load, models.refuse_known):
        with pytest.raises(UncertifiedEngineError, match="may not label"):
            refusal(choice)


def test_certify_names_a_model_that_cannot_be_run_and_goes_without_broken_frames(
    tmp_path, monkeypatch
):
    assert invoke("models", "certify", "--quick", "--images", tmp_path).exit_code == 2
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "cut.jpg").write_bytes(b"\xff\xd8")
    assert more_pictures(tmp_path / "frames", 9, 0) == []
    model = copy_of_compact(tmp_path / "[bold]")
    facts = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps(facts | {"close_up_size": 128}))
    with pytest.raises(AutolabelError, match=re.escape(f"{model}/model.json: image_size is")):
        invoke("models", "certify", model, "--backend", "onnxruntime-cpu", "--quick")
    # Refused before anything is measured.
    monkeypatch.setattr("flows.cli.models_engines.certify", None)
    place = cache_folder() / "certificates"
    shutil.rmtree(place, ignore_errors=True)
    place.touch()
    asked = ["models", "certify", "compact", "--backend", "onnxruntime-cpu", "--quick"]
    with pytest.raises(AutolabelError, match=r"cannot write to .*certificates"):
        invoke(*asked)
    place.unlink()
    segmenter = Segmenters(certified=False).load(choose_model("compact", "onnxruntime-cpu"))
    path = certificate_path(engine_facts(segmenter.backend.info))
    segmenter.close()
    path.mkdir(parents=True)
    with pytest.raises(AutolabelError, match=f"{path} is a folder"):
        invoke(*asked)
    with pytest.raises(AutolabelError, match="no such folder or file"):
        invoke("models", "certify", tmp_path / "absent", "--quick")


BUNDLED = ["models", "certify", "compact", "--backend", "onnxruntime-cpu"]


@pytest.mark.ci
def test_certify_passes_the_bundled_model_and_its_memory():
    good = invoke(*BUNDLED, "--quick")
    assert (good.exit_code, "passed" in good.stdout) == (0, True)
    listed = json.loads(invoke("models", "list", "--json").stdout)
    # Its masks, and those that its memory adds.
    assert [one["verdict"] for one in listed["models"][0]["certificates"]] == ["passed", "passed"]
    assert not listed["other_certificates"]
