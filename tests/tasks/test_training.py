"""Training runs end to end on a CPU, resumes, and the bundled weights do what their card says."""

import json
from pathlib import Path

import numpy as np
import pytest

from sam2_core.types import AutolabelError, Boxes
from tasks.training.config import load_config

CONFIGS = Path(__file__).parents[2] / "tasks" / "training" / "configs"


def test_a_wrong_configuration_is_named(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('name = "x"\nminutes = 1\nspeed = 3\n')
    with pytest.raises(AutolabelError, match="speed"):
        load_config(path)


def test_the_configurations_of_the_package_load():
    for path in CONFIGS.glob("*.toml"):
        config = load_config(path)
        assert config.mask.phases[-1].until == 1.0


def test_training_writes_weights_and_goes_on_from_its_checkpoint(tmp_path):
    pytest.importorskip("torch", reason="training needs PyTorch: make torch")
    from tasks.training.train import load_weights, train_job

    config = load_config(CONFIGS / "smoke.toml").model_copy(update={"steps": 2})
    first = train_job(config, "detector", tmp_path)
    assert first.trained.steps == 2
    more = config.model_copy(update={"steps": 3})
    second = train_job(more, "detector", tmp_path)
    assert second.trained.steps == 3
    assert second.rendered_before >= config.render.warm_up
    points = json.loads((tmp_path / "curves.json").read_text())
    assert [point["steps"] for point in points] == [2, 3]
    assert load_weights(tmp_path / "detector.safetensors").keys() == second.trained.average.keys()
    with pytest.raises(AutolabelError, match="own configuration"):
        train_job(config.model_copy(update={"name": "other"}), "detector", tmp_path)


def test_bundled_models_fit_unseen_scenes_better_than_the_box():
    from sam2_core.load import load_backend
    from sam2_core.segmenter import Segmenter
    from tasks.baselines import baseline_masks
    from tasks.metrics import mask_iou
    from tasks.scenes import render_scene
    from tasks.training.held_out import FIRST_HELD_OUT_SEED

    scene = render_scene(FIRST_HELD_OUT_SEED + 1)
    size_hw = scene.size_hw
    boxes = Boxes(
        np.array([i.box_xyxy_px for i in scene.instances]),
        np.ones(len(scene.instances)),
        tuple(i.label for i in scene.instances),
    )
    truth = [i.rle(size_hw)["counts"].encode() for i in scene.instances]
    with Segmenter(load_backend("compact", "onnxruntime-cpu")) as segmenter:
        (ours,) = segmenter.segment([scene.image], [boxes])
    filled = baseline_masks(scene.image, boxes, "box")
    ious = [
        np.mean([mask_iou(a, b, size_hw) for a, b in zip(masks.rle, truth, strict=True)])
        for masks in (ours, filled)
    ]
    assert ious[0] > 0.65
    assert ious[0] > ious[1] + 0.05


def test_the_bundle_is_small_enough():
    folder = Path(__file__).parents[2] / "sam2_core" / "weights"
    sizes = {p.name: p.stat().st_size for p in folder.rglob("*") if p.suffix != ".jpg"}
    mask = sum(sizes[n] for n in ("compact.safetensors", "encoder.onnx", "decoder.onnx"))
    assert mask <= 12e6
    assert sizes["detector_compact.onnx"] <= 4e6
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) <= 16 * 2**20
