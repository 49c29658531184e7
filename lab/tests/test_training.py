"""Training runs end to end on a CPU, resumes, and the bundled weights do what their card says."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_mask

from lab.scenes import LABELS, render_scene
from lab.scenes.types import RIDER_LABEL
from lab.training.close_ups import cut_close_ups, draw_close_ups, regions_px
from lab.training.config import MaskPhase, PictureConfig, load_config
from lab.training.data import (
    CELL_PX,
    HIDDEN,
    IGNORED,
    RIDER,
    UNUSED,
    Photographs,
    Picture,
    as_asked,
    domain_of,
    draw_scene,
)
from lab.training.detector_loss import TrueBoxes, detector_loss
from lab.training.detector_model import cells
from lab.training.flat import FlatWeights
from lab.training.held_out import FIRST_HELD_OUT_SEED
from lab.training.mask_job import fresh_model
from lab.training.mask_loss import draw_points
from lab.training.optimizers import Optimizers
from lab.training.pool import PictureBatch
from lab.training.prompts import PromptSampler, choice_weights
from lab.training.train import load_weights, start_weights, steeper, train
from lab.training.view_decoder import decode_views
from lab.training.views import Crops
from sam2_core.architecture import random_weights
from sam2_core.find_weights import bundled_checkpoint
from sam2_core.load import load_backend
from sam2_core.mask_geometry import mask_iou
from sam2_core.preprocess import regions_xyxy_px
from sam2_core.presets import preset_named
from sam2_core.segmenter import Segmenter
from sam2_core.types import AutolabelError, Boxes

CONFIGS = Path(__file__).parents[1] / "training" / "configs"


def test_a_wrong_configuration_is_named(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('name = "x"\nminutes = 1\nspeed = 3\n')
    with pytest.raises(AutolabelError, match="speed"):
        load_config(path)


def test_the_configurations_of_the_package_load():
    configs = {path.stem: load_config(path) for path in CONFIGS.glob("*.toml")}
    assert {name: config.job for name, config in configs.items()} == {
        "detector": "detector", "masks": "mask",
        "smoke_detector": "detector", "smoke_masks": "mask",
    }  # fmt: skip
    assert configs["masks"].mask.frame_size == 1024
    assert configs["smoke_masks"].mask.frame_size == 128


def test_riders_are_one_object_for_the_mask_model_alone_in_their_share_of_the_pictures():
    mixed = PictureConfig(
        photographs="there", photograph_share=0.2, random_share=0.25, close_share=0.35
    )
    domains = [domain_of(seed, mixed) for seed in range(2000)]
    shares = {name: domains.count(name) / 2000 for name in set(domains)}
    wanted = {"photographs": 0.2, "random": 0.25, "close": 0.35, "street": 0.2}
    assert shares == pytest.approx(wanted, abs=0.01)
    size = (180, 320)
    scenes = (render_scene(seed, size, domain="close") for seed in range(20))
    scene = next(each for each in scenes if any(i.rides_track_id > 0 for i in each.instances))
    kept = [as_asked(scene, seed, 0.5) for seed in range(100)]
    assert 40 < sum(each is scene for each in kept) < 60
    joined = as_asked(scene, 0, 1.0)
    (row,) = [n for n, i in enumerate(joined.instances, 1) if i.label == RIDER_LABEL][:1]
    picture = Picture.empty(size)
    picture.clear()
    draw_scene(joined, picture)
    assert picture.classes[row] == RIDER
    assert (picture.ids == row).sum() == joined.instances[row - 1].area_px


def write_photographs(folder):
    """One photograph with a mask and a box, of which persons may be unlabeled."""

    pixels = np.full((60, 100, 3), 200, np.uint8)
    mask = np.zeros((60, 100), np.uint8, order="F")
    mask[10:30, 20:50] = 1
    encoded = coco_mask.encode(mask)
    encoded["counts"] = encoded["counts"].decode()
    (folder / "truth.json").write_text(json.dumps({
        "images": [{
            "id": 1, "file_name": "a.png", "width": 100, "height": 60, "source": "here",
            "split": "train", "not_exhaustive_category_ids": [7],
        }],
        "annotations": [
            {"image_id": 1, "category_id": 3, "bbox": [20, 10, 30, 20], "area": 600, "iscrowd": 0,
             "segmentation": encoded},
            {"image_id": 1, "category_id": 3, "bbox": [60, 5, 30, 50], "area": 1500, "iscrowd": 0},
        ],
        "categories": [{"id": 3, "name": "car"}, {"id": 7, "name": "person"}],
    }))  # fmt: skip
    cv2.imwrite(str(folder / "a.png"), pixels)


def test_photographs_are_drawn_with_their_masks_boxes_and_what_they_do_not_label(tmp_path):
    write_photographs(tmp_path)
    car, person = LABELS.index("car"), LABELS.index("person")
    photographs = Photographs(tmp_path, {"here": 1.0}, with_masks=False)
    boxed = masked = 0
    for seed in range(12):
        picture = Picture.empty((144, 256))
        picture.clear()
        photographs.draw(seed, picture)
        for row in np.flatnonzero(picture.classes != UNUSED):
            assert picture.classes[row] in (car, IGNORED)
            box = picture.boxes_px[row].astype(int)
            inside = picture.ids == row
            assert inside.any() != (box[2:] > box[:2]).all()  # pixels or a box, never both
            if inside.any():
                ys, xs = np.nonzero(inside)
                box = np.array([xs.min(), ys.min(), xs.max(), ys.max()])
            middle = (box[:2] + box[2:]) // 2
            assert (picture.image[middle[1], middle[0]] == 200).all()
            assert picture.unlabeled[middle[1] // CELL_PX, middle[0] // CELL_PX] == 1 << person
            masked, boxed = masked + inside.any(), boxed + (not inside.any())
    assert masked > 5
    assert boxed > 5
    with pytest.raises(AutolabelError, match="no photograph of elsewhere"):
        Photographs(tmp_path, {"elsewhere": 1.0}, with_masks=False)


def test_what_has_no_labels_is_not_taught_as_background():
    grid, strides = cells((64, 64), torch.device("cpu"))
    truth = TrueBoxes(
        torch.tensor([[[8.0, 8, 40, 40]]]), torch.tensor([[1]]), torch.tensor([[True]])
    )
    unlabeled = torch.zeros(1, len(grid), 3, dtype=torch.bool)
    unlabeled[..., 2] = True
    logits = torch.zeros(1, len(grid), 3, requires_grad=True)
    raw = torch.zeros(1, len(grid), 4)
    loss, _ = detector_loss(raw, logits, truth, unlabeled, grid=grid, strides=strides)
    loss.backward()
    outside = (logits.grad[0, :, 1] > 0) & (logits.grad[0, :, 0] > 0)
    assert outside.sum() > 50
    taught = logits.grad[0, :, 2] != 0
    assert 0 < taught.sum() <= 10  # only the cells that stand for the box
    assert (logits.grad[0, ~taught, 0] > 0).all()


@pytest.mark.parametrize("job", ["detector", "mask"])
def test_training_writes_weights_and_goes_on_from_its_checkpoint(job, tmp_path):
    name = {"detector": "smoke_detector.toml", "mask": "smoke_masks.toml"}[job]
    config = load_config(CONFIGS / name).model_copy(update={"steps": 2})
    first = train(config, tmp_path)
    assert first.trained.steps == 2
    more = config.model_copy(update={"steps": 3})
    second = train(more, tmp_path)
    assert second.trained.steps == 3
    assert second.rendered_before >= config.pictures.warm_up
    points = json.loads((tmp_path / "curves.json").read_text())
    steps = [point["steps"] for point in points]
    assert steps == sorted(steps)
    assert steps[-1] == 3
    assert 2 in steps
    assert load_weights(tmp_path / f"{job}.safetensors").keys() == second.trained.kept().keys()
    with pytest.raises(AutolabelError, match="own configuration"):
        train(config.model_copy(update={"name": "other"}), tmp_path)


def test_decoding_a_view_is_decoding_its_prompts_one_by_one():
    model = random_weights(preset_named("micro"), 0)
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(6, 3, 2, generator=generator) * 128
    labels = torch.tensor([[2, 3, -1]] * 4 + [[1, -1, -1]] * 2)
    with torch.no_grad():
        features = model.encode(torch.rand(2, 128, 128, 3, generator=generator) * 255)
        shared = decode_views(model, features, points, labels)
        index = torch.arange(2).repeat_interleave(3)
        single = model.decode(features, points, labels, index)
    for ours, theirs in zip(shared, single, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_the_optimizer_sees_what_the_model_computes_with():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).bfloat16()
    flat = FlatWeights(model)
    assert flat.decayed == 12
    flat.values += 1.0
    flat.publish()
    state = flat.state(flat.values)
    assert state.keys() == model.state_dict().keys()
    torch.testing.assert_close(model[1].weight, torch.full((4,), 2.0).bfloat16())
    model[1].weight.sum().backward()
    assert flat.gradient().sum() == 4
    flat.follow(0.5)
    torch.testing.assert_close(flat.state(flat.average)["1.weight"], torch.full((4,), 1.5))


def test_muon_steps_every_matrix_on_its_own_and_queries_keys_and_values_apart():
    torch.manual_seed(0)
    model = torch.nn.Module()
    model.qkv = torch.nn.Linear(4, 12)
    model.proj = torch.nn.Conv2d(3, 5, 2)
    model.token = torch.nn.Parameter(torch.randn(2, 6))
    weights = FlatWeights(model)
    before = weights.state(weights.values.clone())
    gradient = torch.randn_like(weights.values)
    named = weights.state(gradient)
    Optimizers(weights, 0.1, "muon").step(gradient, 0.01)
    after = weights.state(weights.values)

    def alone(value, slope):
        one = torch.nn.Parameter(value.clone())
        one.grad = slope
        torch.optim.Muon([one], 0.01, 0.1, adjust_lr_fn="match_rms_adamw").step()
        return one.detach()

    for part in range(3):
        rows = slice(4 * part, 4 * part + 4)
        expected = alone(before["qkv.weight"][rows], named["qkv.weight"][rows])
        torch.testing.assert_close(after["qkv.weight"][rows], expected)
    flat = (before["proj.weight"].flatten(1), named["proj.weight"].flatten(1))
    torch.testing.assert_close(after["proj.weight"].flatten(1), alone(*flat))
    # AdamW's first step is the learning rate, along the sign.
    for name in ("token", "qkv.bias"):
        moved = before[name] - 0.01 * named[name].sign()
        torch.testing.assert_close(after[name], moved, atol=1e-5, rtol=0)


def test_a_steeper_model_draws_the_same_outlines_with_larger_logits():
    preset = preset_named("micro")
    plain, steep = fresh_model(preset, 1).eval(), fresh_model(preset, 1).eval()
    steep.load_state_dict(steeper(plain.state_dict(), 4.0))
    image = torch.rand(1, preset.image_size, preset.image_size, 3) * 255
    points, labels = torch.tensor([[[20.0, 20.0], [60.0, 70.0]]]), torch.tensor([[2, 3]])
    with torch.no_grad():
        features = plain.encode(image)
        first, iou, _ = plain.decode_rows(features, points, labels, None)
        other, other_iou, _ = steep.decode_rows(features, points, labels, None)
        torch.testing.assert_close(other, 4 * first)
        torch.testing.assert_close(other_iou, iou)
        again = plain.decode_rows(features, points, labels, first[:, :1])[0]
        torch.testing.assert_close(
            steep.decode_rows(features, points, labels, other[:, :1])[0], 4 * again
        )


def test_bundled_models_fit_unseen_scenes_better_than_the_box():
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
    reached = [mask_iou(a, b, size_hw) for a, b in zip(ours.rle, truth, strict=True)]
    sides = boxes.xyxy_px[:, 2:] - boxes.xyxy_px[:, :2]
    filled = [i.area_px / area for i, area in zip(scene.instances, sides.prod(1), strict=True)]
    assert np.mean(reached) > max(0.65, np.mean(filled) + 0.05)


def test_the_bundle_is_small_enough():
    folder = Path(__file__).parents[2] / "sam2_core" / "weights"
    sizes = {p.name: p.stat().st_size for p in folder.rglob("*") if p.suffix != ".jpg"}
    mask = sum(sizes[n] for n in ("compact.safetensors", "encoder.onnx", "decoder.onnx"))
    assert mask <= 12e6
    assert sizes["detector_compact.onnx"] <= 6e6
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) <= 30 * 2**20


def test_close_ups_show_what_resizing_the_crop_shows():
    smooth = np.random.default_rng(0).integers(0, 256, (2, 12, 20, 3), np.uint8)
    pictures = np.stack([np.asarray(Image.fromarray(p).resize((200, 120), 3)) for p in smooth])
    boxes = torch.tensor([[0, 0, 20, 30], [50, 20, 150, 120], [3, 5, 200, 119]])
    picture, flipped = torch.tensor([1, 0, 1]), torch.tensor([False, True, False])
    found = cut_close_ups(torch.from_numpy(pictures), picture, Crops(boxes, flipped), 64)
    for row, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
        crop = Image.fromarray(pictures[picture[row], y1:y2, x1:x2])
        expected = np.asarray(crop.resize((64, 64), Image.Resampling.BILINEAR)).astype(float)
        if flipped[row]:
            expected = expected[:, ::-1]
        difference = np.abs(found[row].permute(1, 2, 0).numpy() - expected)
        assert difference.mean() < 1.5


def test_training_and_labeling_cut_the_same_close_ups():
    corners = np.random.default_rng(0).uniform(0, (160, 90), (200, 2, 2)).astype(np.float32)
    boxes = np.concatenate([corners.min(1), corners.max(1)], 1)
    expected = regions_xyxy_px(boxes, (90, 160))
    assert (regions_px(torch.from_numpy(boxes), (90, 160)).numpy() == expected).all()


def picture_batch(images, ids, classes, boxes, area):
    """A batch whose objects all have masks."""

    return PictureBatch(images, ids, classes, boxes, area, area < 0, ids, boxes, area)


def test_a_close_up_holds_its_box_and_its_truth():
    ids = torch.zeros((2, 90, 160), dtype=torch.uint8)
    ids[0, 10:40, 20:30], ids[0, 60:64, 100:104], ids[1, 50:90, 0:70] = 1, 2, 1
    classes = torch.full((2, 256), -1)
    classes[0, 1:3] = classes[1, 1] = 0
    boxes, area = torch.zeros((2, 256, 4)), torch.zeros((2, 256))
    boxes[0, 1], boxes[0, 2], boxes[1, 1] = (
        torch.tensor(b).float() for b in ((20, 10, 30, 40), (100, 60, 104, 64), (0, 50, 70, 90))
    )
    area[0, 1], area[0, 2], area[1, 1] = 300, 16, 2800
    batch = picture_batch(torch.zeros((2, 90, 160, 3)), ids, classes, boxes, area)
    generator = torch.Generator().manual_seed(0)
    drawn = draw_close_ups(batch, PromptSampler(generator), MaskPhase(close_ups=40))
    assert set(drawn.targets.instance.flatten().tolist()) == {0, 1}  # 16 pixels are too few
    frame, box = drawn.crops.boxes_px, drawn.boxes_px[:, 0]
    assert (frame[:, :2] <= box[:, :2]).all()
    assert (frame[:, 2:] >= box[:, 2:]).all()
    points = draw_points(ids, drawn.crops, drawn.targets, 24, generator, picture=drawn.picture)
    is_one = drawn.targets.instance[:, 0] > 0
    assert points.near_truth[~is_one].sum() == 0
    shares = points.near_truth[is_one].mean(1)
    margins = torch.where(drawn.picture[is_one] == 0, 300 / (26 * 54), 2800 / (90 * 54))
    assert (shares - margins).abs().max() < 0.12


def test_emphasis_chooses_some_kinds_more_often_and_only_what_may_be_asked_for():
    kinds = (0, 1, HIDDEN, RIDER)  # rows 1 to 4; the other rows are unused
    classes = torch.full((4000, 256), -1)
    classes[:, 1:5] = torch.tensor(kinds)
    boxes, area = torch.zeros((4000, 256, 4)), torch.zeros((4000, 256))
    boxes[:, 1:5] = torch.tensor([10.0, 10, 20, 20])
    area[:, 1:5] = 100
    nothing = torch.zeros(1)
    batch = picture_batch(nothing, nothing, classes, boxes, area)
    weights = choice_weights(("car", "bicycle"), {"bicycle": 4.0, "rider": 2.0, "hidden": 1.0})
    prompts = PromptSampler(torch.Generator().manual_seed(0), weights)
    frames = torch.tensor([[0, 0, 1280, 720]]).expand(4000, -1)
    chosen = prompts.targets(batch, (boxes, area), frames, torch.ones(4000), 1).instance.flatten()
    shares = torch.bincount(chosen[chosen > 0], minlength=5)[1:] / (chosen > 0).sum()
    assert chosen.max() <= len(kinds)
    assert (shares - torch.tensor([1.0, 4, 1, 2]) / 8).abs().max() < 0.03
    with pytest.raises(AutolabelError, match="'bycicle' is none of car, bicycle, rider, hidden"):
        choice_weights(("car", "bicycle"), {"bycicle": 2.0})


def test_training_goes_on_from_the_bundled_weights_with_the_logits_they_were_trained_with():
    section = load_config(CONFIGS / "masks.toml").mask
    start = start_weights(section)
    bundled = load_weights(bundled_checkpoint(preset_named("compact")))
    kept = steeper(start, section.steeper)
    assert all(torch.equal(kept[name], value) for name, value in bundled.items())
    assert any(not torch.equal(start[name], value) for name, value in bundled.items())
    assert start_weights(section.model_copy(update={"init_from": ""})) is None
    with pytest.raises(AutolabelError, match="no weights of micro"):
        start_weights(section.model_copy(update={"preset": "micro"}))
