"""Clicks on an open image: what is encoded, what is decoded, and that every click is followed."""

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco

from sam2_core.clicks import NO_BOX, OpenImage, hold_clicks
from sam2_core.load import load_backend
from sam2_core.prompts import PointPrompts
from sam2_core.segmenter import Segmenter
from sam2_core.types import AutolabelError, Boxes
from tests.sam2_core.fake_backend import FakeDeviceBackend

BOX = (100, 60, 180, 120)


def prompts(clicks=(), box=BOX):
    """One prompt of (x, y, label) clicks and a box."""
    points = np.array([[c[:2] for c in clicks]], np.float32).reshape(1, -1, 2)
    labels = np.array([[c[2] for c in clicks]], np.int32).reshape(1, -1)
    return PointPrompts(points, labels, None if box is None else np.array([box], np.float32))


def decoded(masks):
    return coco.decode({"counts": masks.rle[0], "size": list(masks.size_hw)}).astype(bool)


def street():
    """Grey, with two red blocks side by side, touching."""
    image = np.full((200, 320, 3), 110, np.uint8)
    image[70:110, 110:150] = (200, 40, 40)
    image[70:110, 150:190] = (190, 50, 45)
    return image


@pytest.fixture(scope="module")
def compact():
    return load_backend("compact", "onnxruntime-cpu", threads=1)


def test_a_box_alone_is_the_mask_of_labeling(compact):
    image = street()
    opened = OpenImage(compact, image).segment(prompts())
    with Segmenter(compact) as segmenter:
        (labeled,) = segmenter.segment([image], [Boxes([BOX], [1.0], ("car",))])
    assert opened.area_px[0] > 100
    assert opened.rle == labeled.rle
    assert opened.predicted_iou[0] == pytest.approx(labeled.predicted_iou[0], abs=1e-5)


@pytest.mark.parametrize("close_ups", [True, False])
def test_every_click_is_followed_and_encodes_nothing_anew(compact, close_ups, monkeypatch):
    model = compact if close_ups else load_backend("compact", "onnxruntime-cpu", close_ups=False)
    opened = OpenImage(model, street())
    clicks = [(130, 90, 1), (170, 90, 0), (105, 65, 0)]
    encoded = counted(monkeypatch, model)
    for count in range(len(clicks) + 1):
        mask = decoded(opened.segment(prompts(clicks[:count])))
        assert [bool(mask[y, x]) for x, y, _ in clicks[:count]] == [
            kind == 1 for *_, kind in clicks[:count]
        ]
    assert len(encoded) == 1


def counted(monkeypatch, backend):
    """List of how many images each later call of the encoder had."""
    encoded, encode = [], backend.encode

    def count(images):
        encoded.append(len(images))
        return encode(images)

    monkeypatch.setattr(backend, "encode", count)
    return encoded


def test_many_boxes_share_calls_and_those_with_clicks_stay_alone(compact, monkeypatch):
    boxes = np.float32(BOX) + np.arange(40, dtype=np.float32)[:, None] % 9
    points, labels = np.zeros((40, 1, 2), np.float32), np.full((40, 1), -1, np.int32)
    points[5, 0], labels[5, 0] = (130, 90), 1
    opened, encoded = OpenImage(compact, street()), counted(monkeypatch, compact)
    many = opened.segment(PointPrompts(points, labels, boxes))
    assert len(encoded) == 3  # the one with a click; 32; 7
    with Segmenter(compact) as segmenter:
        (labeled,) = segmenter.segment([street()], [Boxes(boxes, [1.0] * 40, ("car",) * 40)])
    rest = [row for row in range(40) if row != 5]
    assert [many.rle[row] for row in rest] == [labeled.rle[row] for row in rest]
    alone = OpenImage(compact, street()).segment(PointPrompts(points[5:6], labels[5:6], boxes[5:6]))
    assert many.rle[5] == alone.rle[0]


def test_the_close_up_and_the_box_grow_until_they_hold_the_clicks():
    backend = FakeDeviceBackend(close_ups=True)
    opened = OpenImage(backend, np.zeros((200, 320, 3), np.uint8))
    mask = decoded(opened.segment(prompts([(300, 90, 1), (20, 20, 0)])))
    assert mask[90, 299]
    assert mask[90, 130]
    assert not mask[20, 20]
    (call,) = backend.calls
    assert call.labels.tolist() == [[2, 3, 1, 0, -1]]
    assert ((call.points_model >= 0) & (call.points_model <= 128)).all()


def test_what_is_no_prompt_says_why(compact):
    opened = OpenImage(compact, street())
    assert opened.segment(prompts([(5, 5, 1)], box=None)).reasons == (NO_BOX,)
    assert opened.segment(prompts([(999, 5, 1)])).reasons[0].startswith("invalid")
    assert opened.segment(prompts(box=None)).reasons == ("no point",)
    assert opened.segment(prompts(box=(9, 9, 9, 9))).reasons == ("invalid box: zero area",)
    refined = PointPrompts(*[getattr(prompts(), n) for n in ("points_px", "labels", "xyxy_px")],
                           np.zeros((1, 64, 64), np.float32))  # fmt: skip
    with pytest.raises(AutolabelError, match="close_ups=False"):
        opened.segment(refined)


@pytest.mark.parametrize(
    "click", [(np.nan, 90, 1), (130, np.nan, 0), (np.inf, 90, 1), (130, -np.inf, 1)]
)
def test_a_click_at_no_place_is_refused(click):
    with pytest.raises(ValueError, match="expected clicks at finite x, y"):
        prompts([(130, 90, 1), click])
    assert len(prompts([(*click[:2], -1)])) == 1, "what is no point may be anywhere"


def test_a_held_click_spreads_over_what_looks_alike_and_stops_at_an_edge():
    image = street()[40:140, 90:210]
    image = np.ascontiguousarray(image)
    image[:, 60:] = 110  # the right block is gone: grey from column 60
    logits = np.full((64, 64), -0.1, np.float32)
    logits[:, :10] = -5
    at = np.array([[40 / 120, 50 / 100]])  # on the red block
    held = cv2.resize(hold_clicks(logits, image, at, np.array([True])), (120, 100)) > 0
    block = np.zeros((100, 120), bool)
    block[30:70, 20:60] = True
    assert held[50, 40]
    assert (held & block).sum() > 0.3 * block.sum()
    assert (held & ~block).sum() < 0.2 * held.sum()
    undone = hold_clicks(-logits, image, at, np.array([False]))
    assert undone[32, 21] < 0 < undone[2, 60]
