"""Evaluation held against pycocotools, DAVIS's own definitions, and cases computed by hand."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from sam2_core.types import AutolabelError, Boxes, Masks
from tasks.dataset.coco_truth import Truth, TruthImage
from tasks.evaluate.evaluate import (
    evaluate,
    first_of_each,
    jittered_boxes,
    load_png_truth,
    next_click,
    one_by_one,
    true_boxes,
)
from tasks.evaluate.metrics import (
    Record,
    Scores,
    boundary_map,
    davis_boundary_f,
    interval,
    j_and_f,
    paired,
    read_run,
    write_report,
    write_run,
)

H, W = 60, 80


def rle(mask):
    return bytes(coco_mask.encode(np.asfortranarray(mask, np.uint8))["counts"])


def rect(x1, y1, x2, y2):
    mask = np.zeros((H, W), bool)
    mask[y1:y2, x1:x2] = True
    return mask


def blobs(random, count):
    """Ellipses of any size, cut by the image's border."""
    y, x = np.ogrid[:H, :W]
    found = []
    for _ in range(count):
        cx, cy = random.uniform(0, W), random.uniform(0, H)
        rx, ry = random.uniform(3, 30, 2)
        found.append(((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2 < 1)
    return [one for one in found if one.any()]


def image_of(masks, labels, number=1, **more):
    return TruthImage.of_masks(number, f"{number}.png", (H, W), labels, [*map(rle, masks)], **more)


def masks_of(arrays, scores=None):
    ones = np.ones(len(arrays), np.float32)
    area = np.array([a.sum() for a in arrays], np.int64)
    scores = ones if scores is None else np.array(scores, np.float32)
    reasons = ("",) * len(arrays)
    return Masks(tuple(map(rle, arrays)), (H, W), scores, ones, ones, area, reasons)


# --- average precision -------------------------------------------------------------------------


def pycocotools_says(truth, found, kind):
    """Average precision over 0.5:0.95 and at 0.5 by COCO's own code: of all, by class, by size."""
    reference = COCO()
    reference.dataset = truth
    reference.createIndex()
    run = COCOeval(reference, reference.loadRes(found), kind)
    run.evaluate()
    run.accumulate()
    precision = run.eval["precision"][..., -1]  # threshold, recall, class, size
    whole = precision[..., 0]
    parts = {"all": whole, "car": whole[:, :, :1], "person": whole[:, :, 1:]}
    parts |= {name: precision[..., 1 + i] for i, name in enumerate(("small", "medium", "large"))}
    return {
        name: [some[some > -1].mean() if (some > -1).any() else None for some in (part, part[0])]
        for name, part in parts.items()
    }


@pytest.mark.parametrize("seed", range(4))
def test_average_precision_is_pycocotools(seed, capsys):
    random = np.random.default_rng(seed)
    names = ("car", "person")
    scores = Scores(names)
    images, annotations, found = [], [], []
    for number in range(1, 6):
        true = blobs(random, 4)
        image = image_of(true, random.choice(names, len(true)), number)
        guessed = [np.roll(one, random.integers(-3, 4, 2), (0, 1)) for one in true]
        # COCO counts a picture's best hundred of each class: here some true ones are behind them.
        guessed += blobs(random, 300 if number == 1 else 2)
        labels = tuple(random.choice(names, len(guessed) - len(true)))
        given_boxes = image_of(guessed, (*image.labels, *labels))
        confidence = random.uniform(0.1, 1, len(guessed)).round(3)
        boxes = Boxes(given_boxes.boxes_xyxy_px, confidence, given_boxes.labels)
        scores.add(image, boxes, masks_of(guessed), by_row=False)
        images.append({"id": number, "height": H, "width": W})
        for part, target, extra in ((image, annotations, {}), (given_boxes, found, None)):
            for row, (label, text, box) in enumerate(
                zip(part.labels, part.rle, part.boxes_xyxy_px.tolist(), strict=True)
            ):
                x1, y1, x2, y2 = box
                target.append({
                    "id": len(target) + 1, "image_id": number, "iscrowd": 0,
                    "category_id": names.index(label) + 1, "area": float(part.area_px[row]),
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "segmentation": {"counts": text.decode(), "size": [H, W]},
                } | ({"score": float(boxes.scores[row])} if extra is None else {}))  # fmt: skip
    truth = {"images": images, "annotations": annotations,
             "categories": [{"id": i + 1, "name": n} for i, n in enumerate(names)]}  # fmt: skip
    result = scores.result()
    for kind, ap, ap50 in (("bbox", "ap", "ap50"), ("segm", "mask_ap", "mask_ap50")):
        theirs = [{k: v for k, v in one.items() if kind == "segm" or k != "segmentation"}
                  for one in found]  # fmt: skip
        expected = pycocotools_says(truth, theirs, kind)
        ours = {"all": result, **result["by_class"], **result["by_size"]}
        assert {name: [one[ap], one[ap50]] for name, one in ours.items()} == {
            name: pytest.approx(one, abs=1e-4) for name, one in expected.items()
        }
        assert 0 < expected["all"][0] < expected["all"][1] < 1
        assert expected["car"] != expected["person"]
    low, high = result["by_class"]["car"]["miou_interval"]
    assert low < result["by_class"]["car"]["miou"] < high
    capsys.readouterr()


# --- J and F -----------------------------------------------------------------------------------


def davis_boundary(mask):
    """Boundary map as written in the DAVIS toolkit's `seg2bmap` for an unchanged size."""
    e, s, se = (np.zeros_like(mask) for _ in range(3))
    e[:, :-1], s[:-1, :], se[:-1, :-1] = mask[:, 1:], mask[1:, :], mask[1:, 1:]
    b = mask ^ e | mask ^ s | mask ^ se
    b[-1, :] = mask[-1, :] ^ e[-1, :]
    b[:, -1] = mask[:, -1] ^ s[:, -1]
    b[-1, -1] = 0
    return b


def davis_f(first, second, radius):
    """Its F measure, pixel by pixel: no dilation, distances."""
    a, b = (np.argwhere(davis_boundary(one)) for one in (first, second))
    if not len(a) and not len(b):
        return 1.0
    if not len(a) or not len(b):
        return 0.0
    near = ((a[:, None] - b[None]) ** 2).sum(-1) <= radius**2
    precision, recall = near.any(1).mean(), near.any(0).mean()
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), radius=st.integers(1, 5), noise=st.sampled_from([0, 0.02]))
def test_j_and_f_are_davis_own(seed, radius, noise):
    random = np.random.default_rng(seed)
    first, second = ((sum(blobs(random, 2), np.zeros((H, W))) > 0) for _ in range(2))
    first = first ^ (random.uniform(size=first.shape) < noise)
    np.testing.assert_array_equal(boundary_map(first), davis_boundary(first))
    assert davis_boundary_f(first, second, radius) == pytest.approx(davis_f(first, second, radius))


def test_j_and_f_by_hand():
    square, nothing = rect(10, 10, 30, 30), np.zeros((H, W), bool)
    for first, second, f in (
        (square, square, 1),
        (square, rect(11, 10, 31, 30), 1),  # 0.8% of 100 px, rounded up: 1 px
        (square, rect(45, 35, 65, 55), 0),
        (nothing, nothing, 1),
        (square, nothing, 0),
    ):
        assert davis_boundary_f(first, second) == f
    frames = [("a", 1, 1.0, 0.5), ("a", 1, 0.0, 0.5), ("a", 2, 0.5, 1.0), ("b", 1, 1.0, 1.0)]
    records = [
        Record("a.png", 0, "", 9, (0, 0, 3, 3), j, 0, sequence=name, track_id=track, davis_f=f)
        for name, track, j, f in frames
    ]
    expected = {  # of an object first: (0.5 + 0.5 + 1) / 3, 2.5 / 3
        "j": 0.6667, "f": 0.8333, "j_and_f": 0.75, "objects": 3, "sequences": 2,
    }  # fmt: skip
    assert j_and_f(records) == {"davis": expected}


# --- ground truth ------------------------------------------------------------------------------


def write_png(path, ids, mode="P"):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(ids.astype(np.uint16 if mode == "I;16" else np.uint8))
    if mode == "P":
        image.putpalette([value for i in range(256) for value in (i, 255 - i, i // 2)])
    image.save(path)


def write_picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (W, H)).save(path)


def test_davis_and_mose_folders(tmp_path):
    ids = rect(0, 0, 10, 10) * 1 + rect(20, 20, 40, 50) * 3 + rect(60, 0, 70, 5) * 255
    for name in ("bear", "dog"):
        for frame in ("00000", "00001"):
            write_png(tmp_path / "truth" / name / f"{frame}.png", ids)
            write_picture(tmp_path / "images" / name / f"{frame}.jpg")
    truth = load_png_truth(tmp_path / "truth", tmp_path / "images")
    assert [one.file_name for one in truth.images] == [
        "bear/00000.jpg", "bear/00001.jpg", "dog/00000.jpg", "dog/00001.jpg"
    ]  # fmt: skip
    image = truth.images[0]
    assert (image.sequence, image.track_ids.tolist(), image.area_px.tolist()) == (
        "bear", [1, 3], [100, 600]
    )  # fmt: skip
    np.testing.assert_array_equal(image.boxes_xyxy_px[1], [20, 20, 40, 50])
    assert len(image.crowd_rle) == 1
    first = load_png_truth(tmp_path / "truth", tmp_path / "images", first_frames=True)
    assert [one.file_name for one in first.images] == ["bear/00000.jpg", "dog/00000.jpg"]
    assert first_of_each(truth).images == tuple(truth.images[::2])
    alone = tuple(replace(one, sequence="") for one in truth.images)
    assert len(first_of_each(Truth(alone, truth.categories)).images) == 4
    (tmp_path / "truth" / "dog" / "._00000.png").write_bytes(b"macOS")
    assert len(load_png_truth(tmp_path / "truth", tmp_path / "images").images) == 4
    with pytest.raises(AutolabelError, match="its picture would be the truth itself"):
        load_png_truth(tmp_path / "truth", tmp_path / "truth")
    (tmp_path / "images" / "dog" / "00001.jpg").unlink()
    *sound, bad = load_png_truth(tmp_path / "truth", tmp_path / "images").images
    assert not any(one.unreadable for one in sound)
    assert re.fullmatch(r"its picture .*00001\.jpg is not there", bad.unreadable)


def test_davis_2016_in_grey_and_white_is_one_object(tmp_path):
    masks = rect(20, 20, 40, 50), rect(0, 0, 0, 0), rect(30, 20, 50, 50)
    for number, mask in enumerate(masks):
        write_png(tmp_path / "truth" / "scooter" / f"{number}.png", mask * 255, "L")
        write_picture(tmp_path / "images" / "scooter" / f"{number}.jpg")
    images = load_png_truth(tmp_path / "truth", tmp_path / "images").images
    assert [one.area_px.tolist() for one in images] == [[600], [], [600]]
    assert [one.track_ids.tolist() for one in images] == [[1], [], [1]]
    assert not any(one.crowd_rle for one in images)


def test_truth_without_an_instance_is_refused(tmp_path):
    truth = Truth((image_of([], ()), image_of([], (), 2)), ("car",))
    with pytest.raises(AutolabelError, match=r"holds no instance.*count"):
        list(evaluate(truth, tmp_path, one_by_one(lambda *_: None)))


def test_cityscapes_folders(tmp_path):
    ids = rect(0, 0, 10, 10) * 26001 + rect(20, 20, 40, 50) * 24000 + rect(60, 0, 70, 5) * 26
    ids += rect(0, 50, 80, 60) * 7
    write_png(tmp_path / "t" / "ulm" / "ulm_0_gtFine_instanceIds.png", ids, "I;16")
    write_png(tmp_path / "t" / "ulm" / "ulm_0_gtFine_labelIds.png", ids // 1000)
    write_picture(tmp_path / "i" / "ulm" / "ulm_0_leftImg8bit.png")
    (image,) = load_png_truth(tmp_path / "t", tmp_path / "i").images
    assert image.file_name == "ulm/ulm_0_leftImg8bit.png"
    assert (image.labels, image.crowd_labels) == (("person", "car"), ("car",))
    assert image.area_px.tolist() == [600, 100]


# --- prompts -----------------------------------------------------------------------------------


def test_jittered_boxes_stay_near_and_are_the_same_again():
    image = image_of([rect(10, 10, 50, 40), rect(2, 2, 6, 6)], ("car", "car"))
    one, other = jittered_boxes(image), jittered_boxes(image)
    np.testing.assert_array_equal(one.xyxy_px, other.xyxy_px)
    off = np.abs(one.xyxy_px - true_boxes(image).xyxy_px)
    assert off.max() > 0
    assert (off <= 0.2 * np.array([[40, 30, 40, 30], [4, 4, 4, 4]]) + 1e-4).all()
    assert not np.array_equal(jittered_boxes(image, 1).xyxy_px, one.xyxy_px)


def test_the_next_click_is_put_in_the_middle_of_the_largest_error():
    truth, nothing = rect(20, 10, 41, 31), np.zeros((H, W), bool)
    assert next_click(truth, nothing) == pytest.approx((30.5, 20.5, 1), abs=1)
    too_much = truth | rect(50, 30, 79, 59)
    x, y, label = next_click(truth, too_much)
    assert (x, y) == pytest.approx((64.5, 44.5), abs=1)
    assert label == 0
    x, _, label = next_click(truth, truth & rect(0, 0, 28, H))  # the right part is missing
    assert (28 < x < 41, label) == (True, 1)


# --- records, comparison, report ---------------------------------------------------------------


def records_of(ious, images=10):
    return [
        Record(f"{i % images}.png", i // images, "car", 500 + 40 * i, (0, 0, 9, 9), iou, iou,
               visible=1.0 if i % 2 else 0.5)
        for i, iou in enumerate(ious)
    ]  # fmt: skip


def test_the_bootstrap_covers_the_mean_and_shrinks_with_more_pictures():
    random = np.random.default_rng(0)
    few, many = (records_of(random.uniform(0.6, 1, n), n) for n in (20, 500))
    spans = [interval([(one.image, one.iou) for one in some]) for some in (few, many)]
    for (low, high), some in zip(spans, (few, many), strict=True):
        assert low < np.mean([one.iou for one in some]) < high
    assert spans[1][1] - spans[1][0] < (spans[0][1] - spans[0][0]) / 2
    # 95% of a mean of 500 uniform values: 1.96 * 0.4 / sqrt(12) / sqrt(500) on each side.
    assert spans[1][1] - spans[1][0] == pytest.approx(2 * 1.96 * 0.4 / 12**0.5 / 500**0.5, rel=0.2)
    assert interval([(few[0].image, few[0].iou)]) is None


def test_two_runs_are_compared_in_pairs(tmp_path):
    random = np.random.default_rng(1)
    before = random.uniform(0.5, 0.9, 100)
    better = before + random.normal(0.01, 0.005, 100)
    found = paired(records_of(before), records_of(better))
    assert found["miou_gain"] == pytest.approx(0.01, abs=0.002)
    low, high = found["miou_gain_interval"]
    assert 0.008 < low < high < 0.012  # far less than the spread between instances
    assert found["p_value"] < 1e-6
    same = paired(records_of(before), records_of(before))
    assert (same["miou_gain"], same["p_value"], same["better"]) == (0, None, 0)
    with pytest.raises(AutolabelError, match="no instance in common"):
        paired(records_of(before), [])
    write_run(tmp_path / "run.json", {"miou": 0.7}, records_of(before))
    result, records = read_run(tmp_path / "run.json")
    assert (result, records) == ({"miou": 0.7}, records_of(before))
    kept = json.loads((tmp_path / "run.json").read_text())
    wrong = [
        ("iou", "x"), ("iou", float("nan")), ("iou", 5), ("boundary_f", 2), ("visible", True),
        ("predicted_iou", [1]), ("box_xyxy_px", [1, 2, 3]), ("box_xyxy_px", [1, 2, 3, "x"]),
        ("area_px", None), ("label", 3), ("image", None),
    ]  # fmt: skip
    cases = [{"records": [kept["records"][0] | {name: value}]} for name, value in wrong]
    for change in (*cases, {"records": []}, {"records": [None]}, {"result": 5}):
        (tmp_path / "run.json").write_text(json.dumps(kept | change))
        with pytest.raises(AutolabelError, match="no evaluation that --save wrote"):
            read_run(tmp_path / "run.json")


def test_results_and_report_are_by_size_class_and_occlusion(tmp_path):
    image = image_of(
        [rect(0, 0, 40, 40), rect(60, 40, 70, 50)], ("car", "person"),
        visible_fraction=np.array([1.0, 0.5], np.float32), track_ids=np.array([1, 2]),
        sequence="drive",
    )  # fmt: skip
    scores = Scores(("car", "person"))
    given_masks = masks_of([rect(0, 0, 40, 20), rect(60, 40, 70, 50)], [0.8, 0.9])
    scores.add(image, true_boxes(image), given_masks, by_row=True)
    nameless = Scores(("car", "person"))
    nameless.add(replace(image, track_ids=None), true_boxes(image), given_masks, by_row=True)
    assert "davis" not in nameless.result()  # nobody knows which masks are of one object
    result = scores.result()
    hidden = result["by_occlusion"]
    assert (hidden["whole"]["miou"], hidden["mostly hidden"]["miou"]) == (0.5, 1)
    assert result["davis"]["j"] == 0.75
    json.dumps(result)
    drawn = []
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "worst-09.png").touch()  # of an earlier report
    failed = [{"file_name": "x[/b]*y*\n.png", "reason": "<absent>"}]
    result["by_class"]["a|$\\frac{$\n[b]"] = result["by_class"]["car"]
    odd = [replace(scores.records[0], label="a$\\frac{$", found=False)]
    page = write_report(
        tmp_path / "report", result | {
            "model": "m", "prompt": "boxes", "failed_images": failed,
            "against": paired(scores.records, scores.records),
        },
        [*scores.records, *odd], lambda record, path: drawn.append((record.iou, path.name)),
    )  # fmt: skip
    text = page.read_text()
    for words in (
        "| mostly hidden | 1 | 1.000 |", "J&amp;F 0.",
        "against the other run: mean IoU +0.0000", r"- x\[/b\]\*y\*\\n.png: &lt;absent&gt;",
        r"| a\|\$\\frac{\$\\n\[b\] | 1 |", "1 instance without a mask not among them",
    ):  # fmt: skip
        assert words in text
    assert not list(page.parent.glob("worst-09*"))
    assert drawn == [(0.5, "worst-01.png"), (1.0, "worst-02.png")]
    assert (page.parent / "plots.png").stat().st_size > 10_000
