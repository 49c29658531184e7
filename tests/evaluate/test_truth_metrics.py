"""Evaluation on cases whose answers are known by construction."""

import json
import re

import cv2
import numpy as np
import pytest
from PIL import Image
from PIL.ExifTags import Base
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from sam2_core.mask_geometry import boundary_f, mask_iou, size_class
from sam2_core.types import AutolabelError, Boxes, Masks
from tasks.dataset.coco_truth import read_truth
from tasks.evaluate.evaluate import evaluate, one_by_one, open_truth, true_boxes
from tasks.evaluate.metrics import Scores, box_iou, headline, matched

H, W = 120, 160
SIZE = [H, W]


def rect(x1, y1, x2, y2):
    mask = np.zeros((H, W), np.uint8)
    mask[y1:y2, x1:x2] = 1
    return mask


def rle(mask):
    return bytes(coco_mask.encode(np.asfortranarray(mask))["counts"])


def masks_of(*arrays, score=1.0):
    n = len(arrays)
    area = np.array([a.sum() for a in arrays], np.int64)
    ones = np.full(n, score, np.float32)
    return Masks(tuple(rle(a) for a in arrays), (H, W), ones, ones, ones, area, ("",) * n)


def write_truth(folder, annotations, *, images=None, names=("car", "person")):
    path = folder / "truth.json"
    path.write_text(json.dumps({
        "images": images or [{"id": 7, "file_name": "a.png", "height": H, "width": W}],
        "annotations": [
            {"id": i, "image_id": 7, "iscrowd": 0} | a for i, a in enumerate(annotations)
        ],
        "categories": [{"id": 10 + i, "name": name} for i, name in enumerate(names)],
    }))  # fmt: skip
    return path


def uncompressed(mask):
    flat = mask.flatten(order="F")
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flat]))).tolist()
    bounds = [0, *edges, flat.size]
    return {"counts": np.diff(bounds).tolist(), "size": SIZE}


def test_the_three_ways_to_write_a_mask_are_one(tmp_path):
    mask = rect(10, 20, 50, 60)
    compressed = {"counts": rle(mask).decode(), "size": SIZE}
    polygon = [[10, 20, 50, 20, 50, 60, 10, 60]]
    path = write_truth(tmp_path, [
        {"category_id": 10, "segmentation": compressed},
        {"category_id": 10, "segmentation": uncompressed(mask)},
        {"category_id": 11, "segmentation": polygon, "bbox": [9, 19, 42, 42]},
    ])  # fmt: skip
    (image,) = read_truth(path).images
    assert image.labels == ("car", "car", "person")
    for encoded in image.rle:
        decoded = coco_mask.decode({"counts": encoded, "size": SIZE})
        np.testing.assert_array_equal(decoded, mask)
    np.testing.assert_array_equal(image.boxes_xyxy_px[0], [10, 20, 50, 60])
    np.testing.assert_array_equal(image.boxes_xyxy_px[2], [9, 19, 51, 61])
    assert image.area_px.tolist() == [1600] * 3


SOUND = {"category_id": 10, "segmentation": [[10, 20, 50, 20, 50, 60, 10, 60]]}
DAMAGED = rle(rect(10, 20, 50, 60)).decode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segmentation": [[1, 2, 3, 4]]}, "three points"),
        ({"segmentation": [[1, 2, 9, 2, 9, 9, 1]]}, "an even count of numbers"),
        ({"segmentation": [[1, 2, float("nan"), 2, 9, 9]]}, "not a finite number near the picture"),
        ({"segmentation": [[1, 2, 1e12, 2, 9, 9]]}, "not a finite number near the picture"),
        ({"segmentation": [[500, 500, 600, 500, 600, 600]]}, "no pixel in the picture"),
        ({"segmentation": {"counts": [H * W], "size": SIZE}}, "no pixel in the picture"),
        ({"segmentation": {"counts": "x", "size": [1, 2]}}, "the image 120x160"),
        ({"segmentation": {"counts": "x", "size": [120]}}, r"mask is \[120\], the image 120x160"),
        ({"segmentation": {"counts": DAMAGED[:-1], "size": SIZE}}, "no run lengths of 120x160"),
        ({"segmentation": {"counts": [3], "size": SIZE}}, "no run lengths of 120x160"),
        ({"segmentation": {"counts": [-3, H * W + 3], "size": SIZE}}, "no run lengths of 120x160"),
        ({"segmentation": {"counts": DAMAGED[:-4], "size": SIZE}}, "no run lengths of 120x160"),
        ({"segmentation": {"counts": "hällo", "size": SIZE}}, "no run lengths of 120x160"),
        ({"segmentation": {"counts": None, "size": SIZE}}, "no run lengths of 120x160"),
        ({"segmentation": None}, "a segmentation is a list of polygons"),
        ({"category_id": 99}, "category_id 99 is none of the file's"),
        ({"bbox": [1, 2]}, "bbox: 2: Field required"),
        ({"bbox": [float("nan"), 2, 9, 9]}, "bbox: 0: Input should be a finite number"),
        ({"bbox": [10, 20, -9, 9]}, "no box in the picture"),
        ({"bbox": [500, 20, 9, 9]}, "no box in the picture"),
        *(({"visible_fraction": value}, f"visible_fraction: Input should be .*, and is {value!r}")
          for value in ("x", -1, 2, float("nan"))),
        ({"iscrowd": "yes"}, "iscrowd: Input should be .*, and is 'yes'"),
        ({"iscrowd": 2}, "iscrowd: Input should be less than or equal to 1, and is 2"),
    ],
)  # fmt: skip
def test_a_bad_annotation_is_named_and_costs_its_picture(tmp_path, change, message):
    second = SOUND | {"image_id": 8}
    images = [{"id": i, "file_name": f"{i}.png", "height": H, "width": W} for i in (7, 8)]
    path = write_truth(tmp_path, [SOUND, second, SOUND | change], images=images)
    bad, good = read_truth(path).images
    assert re.search(f"annotation 2: .*{message}", bad.unreadable)
    assert (len(bad), len(good), good.unreadable) == (0, 1, "")


@pytest.mark.parametrize(
    ("key", "content", "message"),
    [
        ("annotations", [SOUND | {"id": 5, "image_id": 99}],
         "annotation 5: its image_id 99 is no image"),
        ("annotations", [None], "annotations: 0: Input should be .*, and is None"),
        ("images", [{"id": [7], "file_name": "a"}], "images: 0: id: "),
        ("images", [{"id": 7, "file_name": None}], "images: 0: file_name: Input should"),
        ("images", [{"id": 7, "file_name": "a"}], "give a its width and height, in pixels"),
        ("images", [{"id": 7, "file_name": name, "height": H, "width": W} for name in "ab"],
         "images share the id 7: "),
        ("categories", [{"id": 1, "name": " "}], "categories: 0: name: String should match"),
        ("categories", [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}],
         "categories share the id 1: "),
    ],
)  # fmt: skip
def test_a_truth_whose_pictures_nobody_can_tell_is_refused(tmp_path, key, content, message):
    path = write_truth(tmp_path, [SOUND])
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: content}))
    with pytest.raises(AutolabelError, match=rf"truth\.json.*{message}"):
        read_truth(path)


def test_a_file_that_is_no_truth_is_refused(tmp_path):
    for content in ("{", "[]", '{"images": []}'):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(AutolabelError, match=r"x\.json"):
            read_truth(tmp_path / "x.json")
    for path, first_frames, message in (
        (tmp_path / "absent.json", False, "no such file"),
        (write_truth(tmp_path, [SOUND]), True, "says of no picture which sequence"),
        ("s3://bucket/truth.json", False, "read from this machine"),
    ):
        with pytest.raises(AutolabelError, match=message):
            open_truth(str(path), tmp_path, first_frames=first_frames)


def test_a_byte_order_mark_and_ids_written_as_text_are_read(tmp_path):
    path = write_truth(tmp_path, [SOUND | {"image_id": "7", "category_id": 10.0, "iscrowd": "0"}])
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert read_truth(path).images[0].labels == ("car",)


def test_mask_iou_and_size_classes():
    a, b, nothing = (rle(rect(*one)) for one in ((0, 0, 40, 40), (20, 0, 60, 40), (0, 0, 0, 0)))
    ious = [mask_iou(*pair, (H, W)) for pair in ((a, b), (a, nothing), (nothing, nothing))]
    assert ious == pytest.approx([1 / 3, 0, 1])
    assert [size_class(a) for a in (1023, 1024, 9215, 9216)] == [
        "small",
        "medium",
        "medium",
        "large",
    ]


SQUARE, FULL = (20, 20, 60, 60), (0, 0, W, H)


@pytest.mark.parametrize(
    ("first", "second", "radius_px", "f"),
    [
        (SQUARE, SQUARE, 1, 1),
        # A shift within the tolerance is no error; one beyond it leaves only the crossings.
        (SQUARE, (22, 20, 62, 60), 2, 1),
        (SQUARE, (90, 80, 130, 119), 2, 0),
        # Top and bottom overlap for 30 px and one more within tolerance, plus nothing else.
        (SQUARE, (30, 20, 70, 60), 1, pytest.approx((2 * 31 + 2) / 156, abs=0.02)),
        (SQUARE, (0, 0, 0, 0), 1, 0),
        (FULL, FULL, 2, 1),
    ],
)
def test_boundary_f_is_exact_on_shifted_squares(first, second, radius_px, f):
    assert boundary_f(rle(rect(*first)), rle(rect(*second)), (H, W), radius_px) == f


def test_box_iou_with_nan():
    boxes = np.array([[0, 0, 10, 10], [np.nan, 0, 10, 10], [20, 20, 10, 10]], np.float32)
    np.testing.assert_allclose(box_iou(boxes, np.array([[0, 0, 10, 5]])), [[0.5], [0], [0]])


def two_cars(tmp_path):
    masks = [rect(0, 0, 40, 40), rect(60, 60, 80, 80)]
    rows = [{"category_id": 10, "segmentation": uncompressed(m)} for m in masks]
    return read_truth(write_truth(tmp_path, rows)), masks


def test_a_missed_instance_counts_zero(tmp_path):
    truth, _ = two_cars(tmp_path)
    # One detection whose mask is half of the first car; a person that is not there.
    boxes = Boxes([[0, 0, 40, 40], [100, 100, 140, 119]], [0.9, 0.8], ("car", "person"))
    scores = Scores(truth.categories)
    found = masks_of(rect(0, 0, 40, 20), rect(100, 100, 140, 119))
    scores.add(truth.images[0], boxes, found, by_row=False)
    assert [one.iou for one in scores.records] == [0.5, 0.0]
    result = scores.result()
    assert (result["miou"], result["miou_matched"], result["recall"]) == (0.25, 0.5, 0.5)
    # COCO's 101-point interpolation: precision 1 up to recall 0.5. No person in the truth: no AP.
    assert result["ap50"] == pytest.approx(51 / 101, abs=1e-4)


def test_where_nothing_is_found_precision_is_0_and_none_where_there_is_no_truth(tmp_path):
    truth, _ = two_cars(tmp_path)
    scores = Scores(truth.categories)
    nothing = Boxes(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), ())
    scores.add(truth.images[0], nothing, masks_of(), by_row=False)
    result = scores.result()
    assert (result["ap50"], result["by_size"]["small"]["mask_ap"]) == (0, 0)
    assert (result["by_size"]["large"]["ap50"], result["by_size"]["large"]["mask_ap"]) == (
        None,
    ) * 2


def test_matching_is_by_class_score_and_box_or_mask(tmp_path):
    truth, (first, second) = two_cars(tmp_path)
    boxes = Boxes(
        [[0, 0, 40, 38], [0, 0, 40, 40], [0, 0, 40, 40], [60, 60, 80, 82]],
        [0.5, 0.7, 0.9, 0.4], ("car", "car", "person", "car"),
    )  # fmt: skip
    nothing = masks_of(*[rect(0, 0, 0, 0)] * 4)
    assert matched(truth.images[0], boxes, nothing) == {0: 1, 1: 3}
    # The box of a detector is around what is hidden, too, and its mask is right.
    around = Boxes([[0, 0, 160, 40], [60, 60, 160, 120]], [0.9, 0.8], ("car", "car"))
    assert matched(truth.images[0], around, masks_of(first, second)) == {0: 0, 1: 1}


def test_crowds_count_neither_way(tmp_path):
    car = {"category_id": 10, "segmentation": uncompressed(rect(0, 0, 40, 40))}
    crowd = car | {"segmentation": uncompressed(rect(80, 0, 160, 60)), "iscrowd": 1}
    truth = read_truth(write_truth(tmp_path, [car, crowd]))
    boxes = Boxes([[90, 10, 120, 50], [0, 0, 40, 40]], [0.9, 0.8], ("car", "car"))
    scores = Scores(truth.categories)
    found = masks_of(rect(90, 10, 120, 50), rect(0, 0, 40, 40))
    scores.add(truth.images[0], boxes, found, by_row=False)
    result = scores.result()
    assert (result["instances"], result["ap50"], result["miou"]) == (1, 1, 1)


@pytest.mark.parametrize("mask", [{}, {"segmentation": []}, {"segmentation": None}])
def test_a_truth_of_boxes_alone_is_measured_by_boxes(tmp_path, mask):
    rows = [
        {"category_id": 10, "bbox": [10.5, 20, 40, 30], "area": 1200, "id": 1} | mask,
        {"category_id": 11, "bbox": [90, 10, 31.5, 32], "area": 1008, "id": 2} | mask,
        {"category_id": 11, "bbox": [20, 100, 0.4, 0.4], "area": 0.16, "id": 3} | mask,
    ]
    truth = read_truth(write_truth(tmp_path, rows))
    boxes = Boxes([[10.5, 20, 50.5, 40], [90, 10, 119, 42], [0, 0, 9, 9]], [0.9, 0.8, 0.7],
                  ("car", "person", "person"))  # fmt: skip
    masks = masks_of(rect(0, 0, 0, 0), rect(90, 10, 95, 15), rect(0, 0, 9, 9))
    scores = Scores(truth.categories)
    scores.add(truth.images[0], boxes, masks, by_row=False)
    result = scores.result()
    assert [one.iou for one in scores.records] == [
        pytest.approx(2 / 3),
        pytest.approx(29 / 31.5),
        0,
    ]
    assert (result["boxes_alone"], result["instances"], result["recall"]) == (True, 3, 0.6667)
    assert [result[name] for name in ("boundary_f", "mask_ap", "mask_ap50")] == [None] * 3
    assert "the truth has no masks" in headline(result | {"model": "x", "prompt": "detector"})
    theirs = coco_says(tmp_path / "truth.json", boxes)
    sizes = [result["by_size"][name]["ap"] for name in ("small", "medium", "large")]
    ours = [result["ap"], result["ap50"], *sizes]
    assert ours == [value if value is None else pytest.approx(value, abs=1e-4) for value in theirs]


def coco_says(truth, boxes):
    """AP over 0.5:0.95, at 0.5, and of each size, by pycocotools; None where there is no truth."""
    reference = COCO(str(truth))
    names = {one["name"]: one["id"] for one in reference.loadCats(reference.getCatIds())}
    found = [
        {"image_id": 7, "category_id": names[label], "score": float(score),
         "bbox": [float(one) for one in (*box[:2], *(box[2:] - box[:2]))]}
        for box, score, label in zip(boxes.xyxy_px, boxes.scores, boxes.labels, strict=True)
    ]  # fmt: skip
    run = COCOeval(reference, reference.loadRes(found), "bbox")
    run.evaluate()
    run.accumulate()
    run.summarize()
    values = [run.stats[i] for i in (0, 1, 3, 4, 5)]
    return [None if value == -1 else value for value in values]


def test_an_annotation_without_a_mask_among_masks_is_told(tmp_path):
    bare = {"category_id": 10, "bbox": [1, 1, 20, 20], "segmentation": []}
    for wrong in (bare, {"category_id": 10, "segmentation": []}):
        (image,) = read_truth(write_truth(tmp_path, [SOUND, wrong])).images
        assert image.unreadable.startswith("annotation 1: ")
    (image,) = read_truth(write_truth(tmp_path, [{"category_id": 10}])).images
    assert "annotation 0: " in image.unreadable, "neither mask nor box"


def test_evaluate_reports_bad_frames_and_goes_on(tmp_path):
    images = [
        {"id": i, "file_name": f"{name}.png", "height": H, "width": W}
        for i, name in (
            (7, "good"), (8, "absent"), (9, "broken"), (10, "small"), (11, "../out"), (12, "odd"),
            (13, "turned"), (14, "tagged"), (15, "twice"), (16, "below/twice"),
        )
    ]  # fmt: skip
    rows = [
        {"category_id": 10, "segmentation": uncompressed(rect(40, 30, 100, 90))},
        {"category_id": 10, "segmentation": [], "image_id": 12},
    ]
    (tmp_path / "pictures").mkdir()
    (tmp_path / "out.png").write_bytes(b"of somebody else")
    tmp_path = tmp_path / "pictures"
    truth = read_truth(write_truth(tmp_path, rows, images=images))
    picture = cv2.GaussianBlur(np.dstack([rect(40, 30, 100, 90) * 200] * 3), (3, 3), 0)
    cv2.imwrite(str(tmp_path / "good.png"), picture)
    cv2.imwrite(str(tmp_path / "small.png"), picture[:50])
    cv2.imwrite(str(tmp_path / "turned.png"), picture.swapaxes(0, 1))
    tag = Image.Exif()
    tag[Base.Orientation] = 6
    Image.fromarray(picture).save(tmp_path / "tagged.png", exif=tag)
    cv2.imwrite(str(tmp_path / "twice.png"), picture)
    (tmp_path / "broken.png").write_bytes(b"no image")
    masks = masks_of(rect(40, 30, 100, 90))
    steps = list(evaluate(truth, tmp_path, one_by_one(lambda _, image: (true_boxes(image), masks))))
    assert len(steps) == 10
    result = steps[-1].result()
    assert result["miou"] == 1
    reasons = {entry["file_name"]: entry["reason"] for entry in result["failed_images"]}
    twice = "images 15 and 16 of the truth are of this one file"
    told = {
        "absent.png": "", "broken.png": "", "../out.png": "../out.png is not in",
        "odd.png": "annotation 1: a polygon needs at least three points",
        "small.png": "the image is 50x160 as displayed, the truth says 120x160 (h x w)",
        "turned.png": "160x120 as displayed, the truth says 120x160",
        "tagged.png": "160x120 as displayed, the truth says 120x160",
        "twice.png": twice, "below/twice.png": twice,
    }  # fmt: skip
    assert reasons.keys() == told.keys()
    for name, words in told.items():
        assert words in reasons[name]


def test_an_image_may_have_more_instances_than_a_byte_counts(tmp_path):
    """`pycocotools.mask.area` of more than 255 masks fails with NumPy 2."""
    one = {"category_id": 10, "segmentation": uncompressed(rect(3, 4, 8, 9)), "bbox": [3, 4, 5, 5]}
    (image,) = read_truth(write_truth(tmp_path, [one] * 300)).images
    assert image.area_px.tolist() == [25] * 300
