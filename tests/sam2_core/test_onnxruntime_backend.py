"""The exported micro model through ONNX Runtime, against recorded outputs of PyTorch."""

from pathlib import Path

import numpy as np
import pytest

from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import OnnxRuntimeBackend, run_session
from sam2_core.prompts import PointPrompts
from sam2_core.segmenter import Segmenter
from sam2_core.types import Boxes, DeviceMemoryError, Prompts

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    folder = ModelFolder.open(DATA / "micro", tmp_path_factory.mktemp("cache"))
    return OnnxRuntimeBackend(folder, threads=1)


@pytest.fixture(scope="module")
def recorded():
    with np.load(DATA / "micro_reference.npz") as file:
        return dict(file)


@pytest.mark.parametrize("kind", ["box", "click", "mask"])
def test_outputs_equal_those_of_torch(backend, recorded, kind):
    features = backend.encode(list(recorded["image"]))
    shape = "click" if kind == "click" else "box"
    masks = recorded["mask_input"][:, 0] if kind == "mask" else None
    prompts = Prompts(
        recorded[f"{shape}_points"], recorded[f"{shape}_labels"], recorded["image_index"], masks
    )
    decoded = backend.decode(features, prompts)
    ours, reference = decoded.logits > 0, recorded[f"{kind}_logits"][:, 0] > 0
    iou = (ours & reference).sum((1, 2)) / (ours | reference).sum((1, 2))
    assert iou.min() >= 0.999
    for name in ("predicted_iou", "object_score", "stability"):
        np.testing.assert_allclose(getattr(decoded, name), recorded[f"{kind}_{name}"], atol=1e-3)


def test_masks_do_not_depend_on_chunks_or_on_other_frames(backend, recorded):
    generator = np.random.default_rng(0)
    images = [np.kron(image, np.ones((2, 3, 1), np.uint8)) for image in recorded["image"]]
    low = generator.uniform(0, 0.6, (9, 2))
    xyxy = np.concatenate([low, low + generator.uniform(0.1, 0.4, (9, 2))], 1)
    boxes = Boxes(xyxy * np.tile(images[0].shape[1::-1], 2), np.ones(9), ("car",) * 9)
    with Segmenter(backend, decoder_chunk=64, encoder_batch=2) as segmenter:
        together = segmenter.segment(images, [boxes, boxes])
    with Segmenter(backend, decoder_chunk=4, encoder_batch=1) as segmenter:
        alone = [segmenter.segment([image], [boxes])[0] for image in images]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.predicted_iou, other.predicted_iou, atol=1e-5)
        assert np.abs(one.area_px - other.area_px).max() <= 2
    assert np.abs(together[0].area_px - together[1].area_px).max() > 2


def test_clicks_of_different_number_are_each_as_alone(backend, recorded):
    image = recorded["image"][0]
    points = np.array([[[20, 30], [60, 70]], [[90, 100], [0, 0]]], np.float32)
    labels = np.array([[1, 0], [1, -1]], np.int32)
    with Segmenter(backend) as segmenter:
        (both,) = segmenter.segment_prompts([image], [PointPrompts(points, labels)])
        (one,) = segmenter.segment_prompts([image], [PointPrompts(points[1:, :1], labels[1:, :1])])
    assert both.rle[1] == one.rle[0]
    assert both.predicted_iou[1] == pytest.approx(float(one.predicted_iou[0]), abs=1e-5)


def test_an_allocation_failure_is_told_from_other_errors():
    class Failing:
        def __init__(self, message):
            self.message = message

        def run(self, outputs, inputs):
            raise RuntimeError(self.message)

    with pytest.raises(DeviceMemoryError):
        run_session(Failing("bfc_arena.cc AllocateRawInternal Failed to allocate memory"), [], {})
    with pytest.raises(RuntimeError, match="shape"):
        run_session(Failing("invalid shape"), [], {})
