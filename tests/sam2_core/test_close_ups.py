"""Close-ups: which part of the image a box gets, and its mask back in its place."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as coco

from sam2_core.load import load_backend, resolve_model
from sam2_core.postprocess import encode_masks
from sam2_core.preprocess import prompted_frame, regions_xyxy_px
from sam2_core.segmenter import Segmenter
from sam2_core.types import AutolabelError
from tests.examples import example
from tests.sam2_core.test_postprocess import random_logits, upsample
from tests.sam2_core.test_segmenter import boxes_of, random_boxes

MICRO = Path(__file__).parents[1] / "data" / "micro"


@pytest.mark.parametrize(
    ("box", "region"),
    [
        ((100, 100, 200, 140), (50, 75, 250, 165)),  # half of 100 px; a quarter of 100 px
        ((100, 100, 104, 103), (92, 92, 112, 111)),  # at least 8 px
        ((100.25, 100.5, 110.75, 140.5), (90, 80, 121, 161)),  # a quarter of 40 px; outwards
        ((0, 0, 640, 480), (0, 0, 640, 480)),
        ((-50, 470, 20, 900), (0, 462, 30, 480)),  # clipped to 20 x 10 px first
        ((630, 10, 9000, 30), (622, 0, 640, 40)),
    ],
)
def test_a_region_has_half_a_box_around_it(box, region):
    found = regions_xyxy_px(np.array([box], np.float32), (480, 640))
    assert found.dtype == np.int64
    assert found.tolist() == [list(region)]


def test_a_close_up_is_its_region_resized_and_the_box_lies_where_it_was():
    given = np.array([[np.nan, 0, 5, 5], [40, 30, 60, 40], [150, 80, 400, 400]], np.float32)
    frame = prompted_frame((90, 160), given, 64, close_ups=True)
    assert frame.rows.tolist() == [1, 2]
    assert frame.reasons[0].startswith("invalid box")
    assert frame.prompts.image_index.tolist() == [0, 1]
    assert frame.regions_xyxy_px.tolist() == [[30, 22, 70, 48], [142, 72, 160, 90]]
    corners = frame.prompts.points_model[:, :2].reshape(2, 4)
    inside = [[10 / 40, 8 / 26, 30 / 40, 18 / 26], [8 / 18, 8 / 18, 1, 1]]
    np.testing.assert_allclose(corners, np.array(inside) * 64, rtol=1e-6)
    assert frame.prompts.labels.tolist() == [[2, 3, -1]] * 2


def random_regions(count, size_hw, seed):
    """Any regions: of one pixel, of full height, the whole image, along every edge."""
    generator = np.random.default_rng(seed)
    height, width = size_hw
    low = generator.integers(0, (width, height), (count, 2))
    high = low + 1 + generator.integers(0, (width, height), (count, 2))
    high = np.minimum(high, (width, height))
    regions = np.concatenate([low, high], 1)
    regions[::7, 1], regions[::7, 3] = 0, height
    regions[0] = 0, 0, width, height
    return regions


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("grid", [32, 64])
def test_masks_are_those_of_each_region_pasted_into_the_image(dtype, grid):
    size_hw, count = (61, 97), 300
    logits = np.stack([random_logits(i, i % 20, (i % 7) / 2 - 1.5, grid) for i in range(count)])
    logits[3], logits[4], logits[5] = 1, -1, np.nan  # the whole region, nothing, broken
    logits = logits.astype(dtype)
    regions = random_regions(count, size_hw, 1)
    strings, area, reasons = encode_masks(logits, size_hw, regions)
    for row, (left, top, right, bottom) in enumerate(regions):
        image = np.zeros(size_hw, np.uint8, order="F")
        window = logits[row].astype(np.float32)
        image[top:bottom, left:right] = upsample(window, (bottom - top, right - left)) > 0
        if row == 5:
            assert reasons[row] == "model output is not finite"
            continue
        assert strings[row] == coco.encode(image)["counts"], row
        assert area[row] == image.sum()
    assert reasons[4].startswith("empty")


def test_a_model_without_close_ups_takes_whole_frames(tmp_path):
    backend = load_backend(MICRO, "onnxruntime-cpu", cache=tmp_path)
    assert not backend.info.close_ups
    with pytest.raises(AutolabelError, match="no graphs for close-ups"):
        load_backend(MICRO, "onnxruntime-cpu", close_ups=True, cache=tmp_path)


def test_the_bundled_model_takes_close_ups_unless_told():
    folder = resolve_model("compact")
    assert folder.for_close_ups(None).close_ups
    whole = load_backend("compact", "onnxruntime-cpu", close_ups=False)
    assert (whole.info.close_ups, whole.info.image_size) == (False, 1024)
    assert whole.info.stamp.name == "compact/restructured"
    with pytest.raises(AutolabelError, match="missing"):
        folder.for_close_ups().graph("decoder_mask")


def iou(first, second, size_hw):
    size = list(size_hw)
    pairs = [[{"size": size, "counts": text} for text in masks] for masks in (first, second)]
    return np.diag(coco.iou(*pairs, [0] * len(first)))


def same_masks(exported, modules, image, boxes):
    with Segmenter(exported) as ours, Segmenter(modules) as theirs:
        (found,), (reference,) = (one.segment([image], [boxes]) for one in (ours, theirs))
    good = reference.area_px > 0
    assert good.any()
    assert iou(found.rle, reference.rle, found.size_hw)[good].min() >= 0.999
    np.testing.assert_allclose(found.predicted_iou, reference.predicted_iou, atol=1e-3)
    np.testing.assert_allclose(found.object_score, reference.object_score, atol=5e-3)


@pytest.mark.ci
def test_an_export_with_close_ups_is_the_modules_at_that_size(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs PyTorch: make dev")
    pytest.importorskip("onnxscript", reason="needs the export packages: make dev")
    from sam2_core import presets
    from sam2_core.architecture import random_weights
    from sam2_core.export import export_model

    preset = replace(presets.MICRO, close_up_size=64)
    monkeypatch.setattr(presets, "MICRO", preset)
    model = "random:micro"
    graphs = ("encoder_close_up", "decoder_close_up")
    folder = export_model(
        random_weights(preset, 0), tmp_path / "micro", checkpoint_sha256="random-0",
        weights="random", only=graphs,
    )  # fmt: skip
    assert {path.stem for path in folder.glob("*.onnx")} == set(graphs)
    image = np.random.default_rng(2).integers(0, 256, (90, 160, 3), np.uint8)
    boxes = random_boxes(9, (90, 160), 5)
    exported = load_backend(folder, "onnxruntime-cpu", cache=tmp_path)
    modules = load_backend(model, "torch", "fp32", "restructured", cache=tmp_path)
    for backend in (exported, modules):
        assert (backend.info.stamp.name, backend.info.image_size) == ("micro/close-ups", 64)
    same_masks(exported, modules, image, boxes)
    published = load_backend(model, "torch", "fp32", "published", cache=tmp_path)
    assert not published.info.close_ups


def test_the_bundled_graphs_are_the_modules_at_that_size():
    pytest.importorskip("torch", reason="needs PyTorch: make dev")
    image, truth = example()
    boxes = boxes_of(truth.boxes_xyxy_px)
    exported = load_backend("compact", "onnxruntime-cpu")
    same_masks(exported, load_backend("compact", "torch", "fp32"), image, boxes)
