"""Clicks on a label to a mask to a correction, without the App."""

import base64
from pathlib import Path

import cv2
import numpy as np
import pytest

from sam2_core.types import AutolabelError
from tasks.dataset import schema
from tasks.load.into_fiftyone import rebuild
from tasks.review.actions import accept, choose
from tasks.review.app import FIFTYONE_SETTINGS
from tasks.review.events import read_events
from tasks.review.mask_repair import Clicked, mend, open_label, take, tidied, warm_up
from tests.review.labels import PLACES
from tests.review.reviewed import decided_labels


def opened(name: str, row: int = 0) -> tuple:
    dataset = schema.open_dataset(name)
    sample = dataset.first()
    about = open_label(dataset, sample.id, sample.detections.detections[row].id)
    return dataset, about


def clicked(about: dict, points: list, box: list | None = None) -> Clicked:
    """What the page sends, as JSON brings it."""
    wanted = {name: about[name] for name in ("sample_id", "label_id", "version")}
    return Clicked.of({**wanted, "points": points, "box_xyxy_px": box})


def painted(shown: dict) -> np.ndarray:
    """The mask in a picture that the page draws."""
    png = base64.b64decode(shown["href"].partition(",")[2])
    pixels = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_UNCHANGED)
    assert pixels.shape == (shown["height"], shown["width"], 4)
    return pixels[..., 3] > 0


@pytest.fixture
def name(one_frame: str) -> str:
    return one_frame


def test_clicks_become_a_mask_and_a_correction_that_is_exported_and_rebuilt(
    name: str, tmp_path: Path
) -> None:
    dataset, about = opened(name)
    assert about["label"] == "car"
    assert painted(about["mask"]).sum() > 50_000
    assert warm_up(dataset, about["sample_id"], about["label_id"]) == "compact/close-ups"
    x0, y0, x1, y1 = PLACES[0]
    middle = [(x0 + x1) / 2, (y0 + y1) / 2, True]
    away = [x0 + 20, (y0 + y1) / 2, False]
    wanted = clicked(about, [middle, away])
    _, made = mend(dataset, wanted)
    left, top, right, bottom = made.box_xyxy_px
    assert made.mask[int(middle[1]) - top, int(middle[0]) - left]
    inside = top <= away[1] < bottom and left <= away[0] < right
    assert not inside or not made.mask[int(away[1]) - top, int(away[0]) - left]
    assert (painted(made.shown()["mask"]) == made.mask).all()
    (event,) = take(dataset, wanted)
    (noted,) = event.changes.values()
    assert (event.action, noted["source"], noted["changed"]) == (
        "repair", "clicks", "mask: 2 clicks",
    )  # fmt: skip
    assert noted["model"].startswith("compact/close-ups@")
    assert noted["prompts"]["points_xy_px"] == [middle, away]
    (row,) = decided_labels(name)
    assert (row["label"], row["decision"], row["changed"], row["reviewer"]) == (
        "car", "corrected", "mask: 2 clicks", "tester",
    )  # fmt: skip
    assert row["area_px"] == int(made.mask.sum())
    assert row["box_xyxy_px"] == list(made.box_xyxy_px)
    rebuild(name, str(tmp_path / "out"))
    sample = schema.open_dataset(name).first()
    assert [d.decision for d in sample.detections.detections] == ["corrected", "", ""]
    assert [event.action for event in read_events(str(tmp_path / "out"), name)] == ["repair"]
    _, again = opened(name)
    assert again["label_id"] == str(sample.reviewed.detections[0].id), "the correction is repaired"
    assert painted(again["mask"]).sum() == row["area_px"]


def test_a_dragged_box_moves_the_mask_to_another_object(name: str) -> None:
    dataset, about = opened(name)
    x0, y0, x1, y1 = PLACES[1]
    _, made = mend(dataset, clicked(about, [], [x0 - 5, y0 - 5, x1 + 5, y1 + 5]))
    left, top, right, bottom = made.box_xyxy_px
    assert x0 - 20 < left < right < x1 + 20
    assert y0 - 20 < top < bottom < y1 + 20


def test_a_label_that_somebody_else_decided_on_is_told(name: str) -> None:
    dataset, about = opened(name)
    accept(dataset, choose(dataset, [about["sample_id"]], [about["label_id"]]))
    with pytest.raises(AutolabelError, match="changed since you opened it"):
        take(dataset, clicked(about, [[200, 200, True]]))
    assert len(read_events(schema.open_dataset(name).info["out_uris"][-1], name)) == 1


def test_a_broken_picture_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, about = opened(name)
    picture = Path(about["filepath"])
    whole = picture.read_bytes()
    # The version stays: a disk that gives half of a file, not a file that was replaced.
    monkeypatch.setattr("tasks.review.actions.refuse_changed", lambda *_: None)
    picture.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AutolabelError, match=r"truncated|damaged|cut"):
        warm_up(dataset, about["sample_id"], about["label_id"])
    cv2.imwrite(str(picture), np.zeros((72, 128, 3), np.uint8))
    with pytest.raises(AutolabelError, match="is 128x72 and was labeled as 1280x720"):
        warm_up(dataset, about["sample_id"], about["label_id"])


def test_a_picture_that_was_replaced_is_told(name: str) -> None:
    dataset, about = opened(name)
    cv2.imwrite(about["filepath"], np.zeros((720, 1280, 3), np.uint8))
    with pytest.raises(AutolabelError, match="picture has changed since it was labeled"):
        mend(dataset, clicked(about, [[200, 200, True]]))


def test_without_a_click_nothing_is_taken(name: str) -> None:
    dataset, about = opened(name)
    with pytest.raises(AutolabelError, match="nothing was clicked"):
        take(dataset, clicked(about, []))


@pytest.mark.parametrize(
    "wrong",
    [{"points": [[1, 2]]}, {"points": [["a", 2, True]]}, {"points": [[float("nan"), 2, True]]},
     {"points": [[1, 1, True]] * 65}, {"points": [], "box_xyxy_px": [1, 2, 3]},
     {"points": [], "box_xyxy_px": [0, 0, float("inf"), 9]}],
)  # fmt: skip
def test_what_is_no_click_is_refused(wrong: dict) -> None:
    with pytest.raises(AutolabelError, match="clicks"):
        Clicked.of({"sample_id": "a", "label_id": "b", "version": "c", **wrong})


def test_operators_read_no_plugin_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """FiftyOne knows the setting: without it each click compiles the plugin anew."""
    from fiftyone.core.config import FiftyOneConfig

    monkeypatch.delenv("FIFTYONE_PLUGINS_CACHE_ENABLED", raising=False)
    assert not FiftyOneConfig({}).plugins_cache_enabled
    for name, value in FIFTYONE_SETTINGS.items():
        monkeypatch.setenv(name, value)
    assert FiftyOneConfig({}).plugins_cache_enabled is True


def object_with_flaws() -> np.ndarray:
    """A square of 40 pixels with a pinhole and a hole; a crumb and a smaller part beside it."""
    mask = np.zeros((60, 120), bool)
    mask[10:50, 10:50] = True
    mask[20:23, 20:23] = False  # a pinhole
    mask[30:40, 30:40] = False  # a hole
    mask[5:8, 80:83] = True  # a crumb
    mask[30:50, 70:90] = True  # a part behind a pole
    return mask


@pytest.mark.parametrize(
    ("points", "box", "pinhole", "hole", "crumb", "part"),
    [
        ([], None, True, False, False, True),
        ([(181, 106, True)], None, True, False, True, True),
        ([(121, 121, False)], None, False, False, False, True),
        ([], (105, 100, 155, 160), True, False, False, False),
        ([(175, 135, True)], (105, 100, 155, 160), True, False, False, True),
    ],
)
def test_what_nobody_meant_goes(points, box, pinhole, hole, crumb, part):
    corner = (100, 100)
    made = tidied(object_with_flaws(), corner, points, box)
    assert made.shape == (60, 120)
    assert made[12, 12]
    assert (made[21, 21], made[35, 35], made[6, 81]) == (pinhole, hole, crumb)
    assert made[35, 72] == part
    assert not made[:, 95:].any()


def test_a_mask_outside_the_box_is_nothing():
    assert not tidied(object_with_flaws(), (0, 0), [], (100, 0, 120, 20)).any()
