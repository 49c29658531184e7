"""Exported graphs against the plain PyTorch modules, live."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make dev")
pytest.importorskip("onnxscript", reason="needs the export packages: make dev")

import onnxruntime as ort  # noqa: E402

from sam2_core.architecture import random_weights, select_mask  # noqa: E402
from sam2_core.backends.model_folder import exported_folder, is_current  # noqa: E402
from sam2_core.export import export_model  # noqa: E402
from sam2_core.preprocess import planes_of  # noqa: E402
from sam2_core.presets import MICRO, preset_named  # noqa: E402
from sam2_core.types import FEATURES, AutolabelError  # noqa: E402
from tests.sam2_core.test_architecture import boxes_and_prompts, scene  # noqa: E402

LIVE = ("encoder", "decoder")


def session(folder, graph):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    path = str(folder / f"{graph}.onnx")
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def exported(name: str, graph: str, tmp_path, precision: str = "fp32"):
    preset = preset_named(name)
    folder = export_model(
        random_weights(preset),
        tmp_path / name,
        checkpoint_sha256="random-0",
        weights="random, seed 0",
        graph=graph,
        precision=precision,
        only=LIVE,
    )
    return SimpleNamespace(preset=preset, folder=folder, model=random_weights(preset))


def prompts_of(preset, kind: str):
    boxes, points, labels = boxes_and_prompts(preset, 5)
    if kind == "points":
        centre = (boxes[:, :2] + boxes[:, 2:]) / 2
        points = torch.stack([centre, boxes[:, :2] * 0.9, torch.zeros_like(centre)], 1)
        labels = torch.tensor([[1, 0, -1]]).repeat(5, 1)
    return points, labels, torch.tensor([0, 1, 1, 0, 1])


CASES = [
    pytest.param("compact", "restructured", marks=pytest.mark.ci),
    pytest.param("tiny", "restructured", marks=pytest.mark.ci),
    pytest.param("compact", "published", marks=pytest.mark.slow),
    pytest.param("tiny", "published", marks=pytest.mark.slow),
    pytest.param("small", "restructured", marks=pytest.mark.slow),
    pytest.param("base_plus", "restructured", marks=pytest.mark.slow),
    pytest.param("large", "restructured", marks=pytest.mark.slow),
    pytest.param("large", "published", marks=pytest.mark.slow),
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "graph"), CASES)
def test_parity_with_pytorch(name, graph, tmp_path):
    """Mask IoU >= 0.999 for boxes and points, predicted IoU within 1e-3, two images mixed."""
    case = exported(name, graph, tmp_path)
    images = scene(case.preset, 2)
    with torch.no_grad():
        reference = case.model.encode(images)
    planes = planes_of(list(images.numpy()))
    features = session(case.folder, "encoder").run(list(FEATURES), {"image": planes})
    decoder = session(case.folder, "decoder")
    for kind in ("boxes", "points"):
        points, labels, index = prompts_of(case.preset, kind)
        with torch.no_grad():
            logits, iou, score = case.model.decode(reference, points, labels, index)
            chosen, chosen_iou = select_mask(logits, iou)
        inputs = dict(zip(FEATURES, features, strict=True)) | {
            "points": points.numpy(),
            "labels": labels.int().numpy(),
            "image_index": index.numpy(),
        }
        found = dict(
            zip([o.name for o in decoder.get_outputs()], decoder.run(None, inputs), strict=True)
        )
        covered = (chosen > 0).float().mean().item()
        assert 0.02 < covered < 0.98, "a mask of all or nothing proves nothing"
        ours, theirs = found["logits"] > 0, chosen.numpy() > 0
        union = (ours | theirs).sum((2, 3))
        iou = np.where(union, (ours & theirs).sum((2, 3)) / np.maximum(union, 1), 1)
        assert iou.min() >= 0.999
        np.testing.assert_allclose(found["predicted_iou"], chosen_iou.numpy(), atol=1e-3)
        np.testing.assert_allclose(found["object_score"], score.numpy(), atol=2e-3)


def test_a_failed_export_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr("sam2_core.export.traced", fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        exported("micro", "published", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_export_is_replaced_whole(tmp_path, monkeypatch):
    folder = tmp_path / "micro"
    folder.mkdir()
    (folder / "model.json").write_text("{}")
    assert not is_current(folder)

    monkeypatch.setattr("sam2_core.export.traced", lambda job, *_: job)
    monkeypatch.setattr("sam2_core.export.extract", lambda graph, *_: graph)
    monkeypatch.setattr("sam2_core.export.single_image", lambda graph: graph)
    monkeypatch.setattr("sam2_core.export.save", lambda _, path, facts: path.write_text("graph"))
    exported("micro", "restructured", tmp_path)
    assert is_current(folder)
    facts = json.loads((folder / "model.json").read_text())
    assert set(facts["files"]) >= {"encoder.onnx", "decoder.onnx", "decoder_single.onnx"}
    assert [p.name for p in tmp_path.iterdir()] == ["micro"]
    (folder / "decoder.onnx").write_text("cut")
    assert not is_current(folder)


def test_options_and_folder(tmp_path):
    with pytest.raises(AutolabelError, match="unknown graph 'fast'"):
        exported("micro", "fast", tmp_path)
    with pytest.raises(AutolabelError, match="unknown precision 'int4'"):
        exported("micro", "published", tmp_path, "int4")
    (tmp_path / "file").write_text("")
    with pytest.raises(AutolabelError, match="AUTOLABEL_CACHE"):
        exported("micro", "published", tmp_path / "file")
    folder = exported_folder(MICRO, "0123456789abcdef", "restructured", "fp32", tmp_path)
    assert folder == tmp_path / "models" / "micro" / "0123456789ab" / "restructured-fp32"
