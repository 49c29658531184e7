"""No engine labels before its masks have been held against PyTorch's in float32."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from sam2_core.load import load_backend
from sam2_core.segmenter import Segmenter
from sam2_core.trust import certify as certifying
from sam2_core.trust.calibration import Answers, bundled_calibration, file_name
from sam2_core.trust.certify import (
    UncertifiedEngineError,
    certificate_path,
    certificates,
    certify,
    engine_facts,
    ensure_certified,
    failures_of,
    read_certificate,
    recorded_answers,
    with_pictures,
)
from sam2_core.types import AutolabelError
from tasks.masks.model import Segmenters, choose_model
from tests.planted_graphs import COMPACT, ROOT, plant

pytestmark = pytest.mark.usefixtures("own_cache")

MICRO = ROOT / "tests" / "data" / "micro"


@pytest.fixture
def micro(tmp_path):
    with Segmenter(load_backend(MICRO, "onnxruntime-cpu", cache=tmp_path / "cache")) as segmenter:
        yield segmenter


def test_the_bundled_model_proves_itself_once_without_pytorch(monkeypatch):
    found = choose_model("compact", "onnxruntime-cpu")
    monkeypatch.setattr(certifying, "judged", None)  # whoever asked PyTorch would fail
    first = Segmenters()
    first.load(found)
    (certificate,) = certificates()
    assert certificate.passed
    assert certificate.engine["engine_sha256"] == found.stamp.engine_sha256
    assert certificate.reference.startswith("PyTorch")
    assert certificate.measured["over_32x32"]["iou"]["mean"] >= 0.999
    assert first.certified_by(found)["verdict"] == "passed"
    monkeypatch.setattr(certifying, "certify", None)  # a second process only reads
    Segmenters().load(found)


def test_a_certificate_is_for_one_engine(micro, monkeypatch):
    ensure_certified(micro, MICRO)
    engine = engine_facts(micro.backend.info)
    assert read_certificate(engine).passed
    for name, value in (("precision", "fp16"), ("device", "a GPU"), ("code_version", "0" * 12)):
        assert read_certificate(engine | {name: value}) is None
    versions = engine["versions"] | {"numpy": "0.1"}
    assert read_certificate(engine | {"versions": versions}) is None
    other = engine | {"engine_sha256": "0" * 64}
    certificate_path(other).write_bytes(certificate_path(engine).read_bytes())
    assert read_certificate(other) is None  # it lies in another's place


def test_a_certificate_that_was_touched_counts_for_nothing(micro):
    ensure_certified(micro, MICRO)
    engine = engine_facts(micro.backend.info)
    path = certificate_path(engine)
    text = path.read_text()
    values = json.loads(text)
    changed = [values | {"reference": "trust me"}, values | {"failures": []} | {"verdict": "x"},
               values | {"format": 99}]  # fmt: skip
    for damaged in (text[:-20], *map(json.dumps, changed)):
        path.write_text(damaged)
        assert read_certificate(engine) is None
        assert not list(certificates())
    assert ensure_certified(micro, MICRO).passed  # it proves itself anew
    assert read_certificate(engine).passed


def test_the_last_check_counts_and_its_pictures_replace_earlier_ones(micro):
    answers = recorded_answers(MICRO, micro)
    passed, found = certify(micro, bundled_calibration(), answers)
    failed = replace(passed, failures=("planted",))
    failed.keep()
    with pytest.raises(UncertifiedEngineError, match=r"planted.*--quick` shows where"):
        ensure_certified(micro, MICRO)
    full = replace(failed, calibration={**failed.calibration, "kind": "full"})
    with pytest.raises(UncertifiedEngineError, match=r"\.json and the pictures beside it show"):
        full.refuse()
    earlier = passed.path().with_suffix("") / "1-iou-0.5000.png"
    earlier.parent.mkdir()
    earlier.touch()
    with_pictures(passed, bundled_calibration(), answers, found).keep()
    assert not earlier.exists()
    assert len(list(earlier.parent.iterdir())) == len(passed.worst)
    assert ensure_certified(micro, MICRO).passed


def test_the_graph_that_decodes_several_frames_at_once_is_held_against_pytorch_too(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(MICRO, folder)
    plant(folder, "high-resolution features dropped", "")  # single frames have a graph of their own
    answers = Answers.read(folder / file_name(close_ups=False))
    for frames, passes in ((1, True), (2, False)):
        backend = load_backend(folder, "onnxruntime-cpu", cache=tmp_path / "cache")
        with Segmenter(backend, encoder_batch=frames) as segmenter:
            assert certify(segmenter, bundled_calibration(), answers)[0].passed == passes


def test_without_answers_and_without_pytorch_nothing_can_tell(micro, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UncertifiedEngineError, match=r"PyTorch is not here.*allow-uncertified"):
        ensure_certified(micro, tmp_path)
    assert not list(certificates())


def test_answers_that_were_touched_judge_nothing(micro, tmp_path):
    text = (MICRO / file_name(close_ups=False)).read_text()
    (tmp_path / "reference.json").write_text(text.replace('"format": 1', '"format": 2'))
    with pytest.raises(AutolabelError, match="not what was signed"):
        recorded_answers(tmp_path, micro)


def test_limits_are_those_of_the_precision(micro):
    answers = recorded_answers(MICRO, micro)
    certificate, _ = certify(micro, bundled_calibration(), answers)
    assert certificate.measured["masks"] == bundled_calibration().boxes
    measured = json.loads(json.dumps(certificate.measured))
    assert failures_of(measured, "fp32") == ()
    measured["over_32x32"]["iou"]["mean"] = 0.997
    assert "mean mask IoU over 32x32 px 0.997, needed 0.999" in failures_of(measured, "fp32")
    assert failures_of(measured, "fp16") == ()
    measured["coordinates_kept"] = False
    assert failures_of(measured, "fp16") == ("coordinates of boxes are rounded to half precision",)


@pytest.mark.ci
@pytest.mark.parametrize(("folder", "name", "close_ups"), [
    (MICRO, "random:micro", False), (COMPACT, "compact", True),
])  # fmt: skip
def test_the_recorded_answers_are_pytorchs(folder, name, close_ups):
    pytest.importorskip("torch", reason="needs PyTorch: make dev")
    from sam2_core.find_weights import resolve_weights
    from sam2_core.trust.torch_judge import torch_answers

    recorded = Answers.read(folder / file_name(close_ups=close_ups))
    weights = resolve_weights(name)
    assert recorded.checkpoint_sha256 == weights.sha256
    calibration = bundled_calibration()
    assert recorded.calibration == calibration.digest
    said = torch_answers(
        weights.load(), calibration, close_ups=close_ups, checkpoint_sha256=weights.sha256
    )
    for before, now in zip(recorded.images, said.images, strict=True):
        np.testing.assert_allclose(before.predicted_iou, now.predicted_iou, atol=1e-4)
        np.testing.assert_allclose(before.logits, now.logits, atol=0.02)
