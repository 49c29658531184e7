"""One mask that somebody has decided on, carried through its sequence as the page asks for it."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from pycocotools import mask as coco_mask

from tasks.dataset import schema
from tasks.export.run import Choice, export
from tasks.load.into_fiftyone import rebuild
from tasks.review.actions import accept, fix_class, reject
from tasks.review.app import run_app
from tasks.review.events import read_events
from tasks.review.export import export_reviews
from tasks.review.mask_repair import MODEL_VARIABLE
from tests.integration.runs import MICRO
from tests.review.app_page import (
    READY,
    browser_page,
    needs_chromium,
    open_first_sample,
    open_view,
    press,
    review_state,
)
from tests.review.labels import PLACES, disc, picture_with
from tests.review.reviewed import ask, load_run, pick, state
from tests.sam2_core.test_follow import StandIn

CAR, VAN, TRUCK = PLACES
OFF = (150, 300, 330, 450)  # what a detector drew in the place of the car


class Still(StandIn):
    """A mask stays where it is; there is nothing on frames without the van."""

    image_size = 256

    def encode(self, image):
        x, y = (VAN[0] + VAN[2]) // 2, (VAN[1] + VAN[3]) // 2
        return super().encode(image * (abs(image[y, x].astype(int) - 90).max() > 9))

    def run(self, graph, inputs):
        if graph != "memory_mask":
            return super().run(graph, inputs)
        (mask,) = inputs["masks"][:, 2::4, 2::4]
        self.masks.append(np.where(mask > 0, np.float32(5), np.float32(-5)))
        return [np.array([len(self.masks) - 1]), self.masks[-1][None], self.masks[-1][None, None]]


@pytest.fixture
def drive(database, tmp_path, monkeypatch):
    """The car is labeled well on frames 0 to 2, badly on 3, missed on 4 and 5, and gone on 6."""
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "tester")
    places = [[CAR, VAN]] * 3 + [[OFF, VAN], [VAN], [VAN], [TRUCK]]
    frames = []
    for index, some in enumerate(places):
        labels = tuple("car" if place in (CAR, OFF) else "van" for place in some)
        one = picture_with(tmp_path, index, some, labels, 0.4)
        ids = np.array([("car", "van").index(label) + 1 for label in labels])
        frames.append(replace(one, boxes=replace(one.boxes, track_ids=ids)))
    name = f"followed-{tmp_path.name}"
    load_run(name, tmp_path / "out", frames)
    return name


def follow(dataset):
    """Press the key, and wait as the page does; return what is said at the end."""
    far = ask(dataset, "follow_begin")
    assert far["ok"], far["message"]
    while not far["done"]:
        far |= ask(dataset, "follow_step", following=far["following"])
    assert (far["frames"], far["of"]) == (6, 6)
    return ask(dataset, "follow_take", following=far["following"])


def reviewed(name):
    """By frame: decision, source, frames since and area of reviewed labels."""
    dataset = schema.open_dataset(name)
    return {
        sample.frame_number: [
            (
                one.decision,
                getattr(one, "source", None),
                getattr(one, "undetected_frames", None),
                one.area_px,
            )
            for one in sample.reviewed.detections
        ]
        for sample in dataset
        if sample.reviewed.detections
    }


def test_a_mask_is_carried_on_and_decisions_of_people_stay(drive, tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.masks.model.load_follow_backend", lambda *_, **__: Still())
    dataset, out = schema.open_dataset(drive), str(tmp_path / "out")
    reject(*pick(drive, 0, 0))
    fix_class(*pick(drive, 2, 0), "tram")
    before = state(drive)
    done = follow(dataset)
    assert done["message"] == (
        "masks of the tram on 3 frames ahead, 0 back, decided as corrected: look at them; "
        "none where the object is not seen (1), its label agrees (1), somebody has decided (1)"
    )
    assert len(done["samples"]) == 3
    acts = [event.action for event in read_events(out, drive)]
    assert acts == ["reject", "fix_class", "follow", "follow", "follow"]
    found = reviewed(drive)
    area = found[2][0][3]
    assert sorted(found) == [2, 3, 4, 5]
    for age, frame in enumerate((3, 4, 5), 1):
        ((decision, source, since, own),) = found[frame]
        assert (decision, source, since) == ("corrected", "followed", age)
        assert own == pytest.approx(area, rel=0.05)
    sample = dataset.match({"frame_number": 3}).first()
    sample.reload()
    assert [one.decision for one in sample.detections.detections] == ["corrected", ""]

    table = pq.read_table(export_reviews(drive).table_uri).to_pylist()
    made = [row for row in table if row["changed"].startswith("mask: followed")]
    assert [(row["index"], len(row["sources"])) for row in made] == [(3, 1), (4, 0), (5, 0)]
    assert {row["label"] for row in made} == {"tram"}, "as corrected where it began"
    np.testing.assert_allclose([row["predicted_iou"] for row in made], 0.9, atol=1e-6)
    rebuild(drive, out)
    assert reviewed(drive) == found
    export(drive, "coco", str(tmp_path / "to"), Choice(), images="none")
    coco = json.loads((tmp_path / "to" / "annotations" / "instances.json").read_text())
    since = [one["undetected_frames"] for one in coco["annotations"] if one.get("source")]
    assert sorted(since) == [1, 2, 3]

    dataset = schema.open_dataset(drive)
    assert ask(dataset, "undo")["message"] == "undo: follow"
    assert [one[:5] for one in state(drive)] == [one[:5] for one in before]
    assert ask(dataset, "redo")["ok"]
    assert reviewed(drive) == found


def test_who_stops_keeps_what_is_there_and_what_others_decide_meanwhile_stays(drive, monkeypatch):
    monkeypatch.setattr("tasks.masks.model.load_follow_backend", lambda *_, **__: Still())
    monkeypatch.setattr("tasks.review.follow_from.STEP_S", 0.0)
    dataset = schema.open_dataset(drive)
    accept(*pick(drive, 2, 0))
    accept(*pick(drive, 2, 1))
    assert ask(dataset, "follow_begin")["object"] == "van", "the last one"
    sample = dataset.match({"frame_number": 2}).first()
    focus = {"sample_id": sample.id, "label_id": sample.detections.detections[0].id}
    far = ask(dataset, "follow_begin", focus=focus)
    assert far["object"] == "car"
    for _ in range(2):
        ask(dataset, "follow_step", following=far["following"])
    reject(*pick(drive, 3, 0))
    done = ask(dataset, "follow_take", following=far["following"])
    assert done["message"] == (
        "masks of the car on 1 frame ahead, 0 back, decided as corrected: look at them; "
        "none where somebody has decided (1)"
    )
    assert sorted(reviewed(drive)) == [2, 4]


def test_without_a_memory_or_a_mask_the_page_is_told_what_to_do(drive, monkeypatch):
    monkeypatch.setenv(MODEL_VARIABLE, str(MICRO))
    dataset = schema.open_dataset(drive)
    assert "repair or accept a mask, or select one" in ask(dataset, "follow_begin")["message"]
    accept(*pick(drive, 2, 0))
    said = ask(dataset, "follow_begin")["message"]
    assert "micro has no memory to follow objects with. compact, tiny" in said
    assert f"{MODEL_VARIABLE} names another model" in said
    reject(*pick(drive, 2, 1))
    assert "rejected: repair it first" in ask(dataset, "follow_begin")["message"]
    assert "not followed any more" in ask(dataset, "follow_step", following="x")["message"]


@needs_chromium
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_key_carries_a_mask_on_says_how_far_it_is_and_one_undo_takes_it_back(
    database, tmp_path, monkeypatch
):
    monkeypatch.delenv("FIFTYONE_PLUGINS_DIR", raising=False)
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "tester")
    name = f"page-{tmp_path.name}"
    frames = [picture_with(tmp_path, i, [CAR, VAN], ("car", "van"), 0.4) for i in range(30)]
    small = coco_mask.encode(np.asfortranarray(disc((600, 220, 720, 340))))["counts"]
    frames[1:] = [  # none agrees with the van
        replace(one, masks=replace(one.masks, rle=(one.masks.rle[0], small))) for one in frames[1:]
    ]
    dataset = load_run(name, tmp_path / "out", frames)
    with run_app() as app, browser_page() as page:
        open_view(page, app.link(name))
        open_first_sample(page)
        press(page, "Shift+A")
        before = state(name)
        page.keyboard.press("Shift+T")
        which = "what you decided on last, the van"
        page.get_by_text(f"following {which} forward from frame 0: ").first.wait_for()
        page.get_by_text("of 29 frames").first.wait_for()
        page.wait_for_function("() => /masks so far: [1-9]/.test(document.body.innerText)")
        page.keyboard.press("Escape")
        page.get_by_text("ahead, 0 back").first.wait_for()
        page.wait_for_function(READY)
        assert page.get_by_test_id("modal").count() == 1, "Escape closes the frame otherwise"
        found = reviewed(name)
        assert 2 <= len(found) < 30
        assert {one[1] for frame in found if frame for one in found[frame]} == {"followed"}
        press(page, "Shift+Z")
        assert [one[:5] for one in state(name)] == [one[:5] for one in before]
        sample = dataset.match({"frame_number": 1}).first()
        assert review_state(page)["reviewSample"] == sample.id
        press(page, "Shift+Y")
        assert reviewed(name) == found
