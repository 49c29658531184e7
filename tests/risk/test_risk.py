"""Risk: every reason on a label made for it, and the fit on rendered drives."""

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask

from sam2_core.types import Boxes, Masks
from tasks.risk.compute_risk import (
    COLUMN,
    FEATURES,
    REASONS,
    compute_risk,
    measure_frames,
    risk_model,
)
from tasks.store.tables import LabeledFrame
from tasks.types import FrameRef

SIZE = (200, 300)


def frame(boxes: list, masks: list[np.ndarray], **columns: list) -> LabeledFrame:
    count = len(boxes)
    rle = [coco_mask.encode(np.asfortranarray(m, np.uint8))["counts"] for m in masks]
    good = Masks(
        tuple(rle), SIZE, columns.get("iou", [0.95] * count), columns.get("stability", [1] * count),
        columns.get("object_score", [9] * count), [int(m.sum()) for m in masks], ("",) * count,
    )  # fmt: skip
    prompts = Boxes(
        np.array(boxes, np.float32).reshape(-1, 4), columns.get("score", [0.9] * count),
        tuple(columns.get("labels", ["car"] * count)),
        np.array(columns["tracks"]) if "tracks" in columns else None,
    )  # fmt: skip
    return LabeledFrame(FrameRef("s", "", 0, None, "/0.jpg", SIZE), prompts, good)


def disc(box: tuple[int, int, int, int]) -> np.ndarray:
    image = np.zeros(SIZE, np.uint8)
    x0, y0, x1, y1 = box
    cv2.ellipse(image, ((x0 + x1) // 2, (y0 + y1) // 2), ((x1 - x0) // 2, (y1 - y0) // 2),
                0, 0, 360, 1, -1)  # fmt: skip
    return image.astype(bool)


BOX = (100, 60, 180, 120)
GOOD = disc(BOX)


def reasons(one: LabeledFrame, **around: list[LabeledFrame]) -> tuple[str, ...]:
    return compute_risk([one], **around)[0].reasons[0]


def block() -> np.ndarray:
    image = np.zeros(SIZE, bool)
    image[60:120, 100:180] = True
    return image


def with_specks() -> np.ndarray:
    image = GOOD.copy()
    image[70:110, 128:150] = False
    image[80:100, 130:148] = True
    image[60:66, 100:106] = True
    return image


def with_holes() -> np.ndarray:
    image = GOOD.copy()
    image[66:114:4, 110:170] = False
    image[66:114, 135:137] = True
    return image


@pytest.mark.parametrize(
    ("reason", "one"),
    [
        ("empty", frame([BOX], [np.zeros(SIZE, bool)])),
        ("low_predicted_iou", frame([BOX], [GOOD], iou=[0.5])),
        ("unstable", frame([BOX], [GOOD], stability=[0.7])),
        ("low_object_score", frame([BOX], [GOOD], object_score=[-1])),
        ("low_score", frame([BOX], [GOOD], score=[0.2])),
        ("spill", frame([BOX], [disc((60, 40, 200, 150))])),
        ("underfill", frame([BOX], [disc((100, 60, 120, 120))])),
        ("overfill", frame([BOX], [block()])),
        ("fragmented", frame([BOX], [with_specks()])),
        ("ragged", frame([BOX], [with_holes()])),
        ("box_mismatch", frame([BOX], [disc((170, 100, 240, 160))])),
        ("overlap", frame([BOX, (110, 70, 175, 118)], [GOOD, disc((110, 70, 175, 118))])),
        ("duplicate", frame([BOX, (101, 61, 180, 120)], [GOOD, disc((100, 60, 150, 120))])),
        ("tiny", frame([(50, 50, 58, 58)], [disc((50, 50, 58, 58))])),
        ("truncated", frame([(0, 60, 80, 120)], [disc((0, 60, 80, 120))])),
    ],
)  # fmt: skip
def test_a_reason_is_given_where_it_belongs(reason: str, one: LabeledFrame) -> None:
    assert reason in reasons(one)
    assert reason not in reasons(frame([BOX], [GOOD]))


def test_reasons_that_need_the_frames_beside() -> None:
    still = frame([BOX], [GOOD], tracks=[7])
    assert reasons(still, before=[still], after=[still]) == ()
    half = frame([BOX], [disc((100, 60, 130, 120))], tracks=[7])
    assert "flicker" in reasons(half, before=[still], after=[still])
    bus = frame([BOX], [GOOD], labels=["bus"], tracks=[7])
    assert "class_change" in reasons(bus, before=[still])
    nothing = frame([], [])
    assert "lonely" in reasons(still, before=[nothing], after=[nothing])
    assert "lonely" not in reasons(still), "no neighbours, no doubt"
    jumped = frame([(100, 60, 140, 80)], [disc((100, 60, 140, 80))], tracks=[7])
    assert "shape_change" in reasons(jumped, before=[still])


def test_unusual_size_for_its_class() -> None:
    usual = [frame([BOX], [GOOD]) for _ in range(40)]
    odd = frame([(100, 100, 110, 120)], [disc((100, 100, 110, 120))])
    judged = compute_risk([*usual, odd])
    assert "unusual_size" in judged[-1].reasons[0]
    assert "unusual_size" not in judged[0].reasons[0]


def test_bad_boxes_and_empty_frames_are_judged_without_a_word() -> None:
    nan = frame([[np.nan] * 4, [90, 90, 10, 10], [-50, -50, 900, 900]], [GOOD * False, GOOD, GOOD])
    for one in (nan, frame([], [])):
        features = measure_frames([one], [nan], [nan])[0]
        assert features.shape == (len(one.boxes), len(FEATURES))
        assert np.isfinite(features).all()
        risk = compute_risk([one])[0].risk
        assert ((risk >= 0) & (risk <= 1)).all()


def test_shared_pixels_are_exact() -> None:
    rng = np.random.default_rng(0)
    masks = [rng.random(SIZE) < 0.3 for _ in range(2)]
    masks += [disc((100, 60, 140, 80)), disc((120, 50, 170, 130)), np.ones(SIZE, bool)]
    one = frame([(0, 0, 300, 200)] * 5, masks)
    measured = measure_frames([one])[0][:, COLUMN["overlap"]]
    for row, mask in enumerate(masks):
        wanted = max(
            (mask & other).sum() / min(mask.sum(), other.sum())
            for i, other in enumerate(masks)
            if i != row
        )
        assert measured[row] == pytest.approx(wanted, rel=1e-5)


def test_fragments_are_what_opencv_finds() -> None:
    rng = np.random.default_rng(1)
    masks = [cv2.blur(rng.random(SIZE), (9, 9)) > 0.52 for _ in range(4)]
    measured = measure_frames([frame([BOX] * 4, masks)])[0][:, COLUMN["fragmented"]]
    for row, mask in enumerate(masks):
        _, _, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=4)
        assert measured[row] == pytest.approx(1 - stats[1:, 4].max() / mask.sum(), abs=1e-6)


def test_the_shipped_weights_belong_to_these_features() -> None:
    assert len(risk_model().weights) == len(FEATURES)
    assert min(risk_model().weights) >= 0, "more doubt is never less risk"
    assert set(REASONS) == set(FEATURES)
    knots = risk_model().calibration
    assert knots is not None
    for row in (knots.odds, knots.risk):
        assert (np.diff(row) > 0).all(), "calibrated, labels keep their order"


def test_labels_stranger_than_any_rendered_one_still_have_an_order() -> None:
    """Of a dashcam clip, a quarter had a risk of 1.00: log-odds of 5 to 17."""
    model = risk_model()
    strange = np.zeros((100, len(FEATURES)))
    strange[:, COLUMN["unstable"]] = np.linspace(0.5, 2, 100)
    risk = model.risk(strange)
    assert model.odds(strange).min() < 2
    assert model.odds(strange).max() > 17
    assert (np.diff(risk) > 0).all()
    assert risk.max() < 0.995, "1.00 is shown of nothing"
