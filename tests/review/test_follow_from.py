"""One mask that somebody has decided on, carried through its sequence as the page asks for it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from tasks.dataset import schema
from tasks.export.run import Choice, export
from tasks.load.into_fiftyone import load_sequence, rebuild
from tasks.review.actions import accept, choose, fix_class, reject
from tasks.review.app import run_app
from tasks.review.events import read_events
from tasks.review.mask_repair import MODEL_VARIABLE
from tasks.review.queue import build_queue, queue_standing, spread
from tasks.review.stats import review_stats
from tasks.store.manifests import list_manifests, read_listed
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
from tests.review.reviewed import ask, decided_labels, load_run, pick, state
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
    assert far["way"] == "backward"
    return ask(dataset, "follow_take", following=far["following"])


def followed(name):
    """By frame: decision, class, what happened, frames since and area of followed labels."""
    return {
        sample.frame_number: (one.decision, one.label, one.changed, one.undetected_frames,
                              one.area_px)
        for sample in schema.open_dataset(name)
        for one in sample.detections.detections
        if getattr(one, "source", None) == "followed"
    }  # fmt: skip


def exported(name):
    """Class, decision and frame of what people hold to be right."""
    rows = [(row["label"], row["decision"], row["index"]) for row in decided_labels(name)]
    return {row for row in rows if row[1] != "rejected"}


def test_a_mask_is_carried_on_and_decisions_of_people_stay(drive, tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.masks.model.load_follow_backend", lambda *_, **__: Still())
    dataset, out = schema.open_dataset(drive), str(tmp_path / "out")
    reject(*pick(drive, 0, 0))
    fix_class(*pick(drive, 2, 0), "tram")
    before = state(drive)
    done = follow(dataset)
    assert done["message"] == (
        "looked at 6 of 6 frames: 3 got a mask of the tram, 3 got none: the object is not seen "
        "(1), its label agrees (1), somebody has decided (1). Nobody has seen these masks: 'Order "
        "again' above the grid (in a narrow window behind the orange arrow there) asks about them "
        "first"
    )
    assert len(done["samples"]) == 3
    acts = [event.action for event in read_events(out, drive)]
    assert acts == ["reject", "fix_class", "follow", "follow", "follow"]
    found = followed(drive)
    assert sorted(found) == [3, 4, 5]
    (tram,) = dataset.match({"frame_number": 2}).first().reviewed.detections
    for since, frame in enumerate((3, 4, 5), 1):
        *said, area = found[frame]
        assert said == ["", "tram", "mask: followed from frame 2", since], "nobody has seen it"
        assert area == pytest.approx(tram.area_px, rel=0.05)
    stats = review_stats(dataset)
    assert (stats.labels, stats.decided, stats.decisions.get("added")) == (13, 2, 0)

    opened = dataset.match({"frame_number": 5}).first().id
    asked = ask(dataset, "sequence_done", current_sample=opened)["question"]
    assert "also 4 labels that were followed and not seen" in asked, "one is of the rejected car"

    # The queue asks about them first, once; only what people decide is exported.
    queue = build_queue(dataset, 1)
    assert (queue.decisions, queue.threshold) == (1, 1.0)
    (asked,) = queue_standing(dataset).label_ids
    assert exported(drive) == {("tram", "corrected", 2)}
    rebuild(drive, out)
    assert followed(drive) == found
    dataset = schema.open_dataset(drive)
    where = {one.id: sample.id for sample in dataset for one in sample.detections.detections}
    accept(dataset, choose(dataset, [where[asked]], [asked]))
    assert review_stats(dataset).decided == 3
    spread(dataset, choose(dataset, [where[asked]], [asked]))
    stats = review_stats(dataset)
    assert stats.decisions == {"accepted": 3, "corrected": 1, "rejected": 1, "added": 0}
    assert build_queue(dataset, 1).threshold < 1, "and not again"
    right = {("tram", "accepted", index) for index in (3, 4, 5)}
    assert exported(drive) == {("tram", "corrected", 2), *right}
    export(drive, "coco", str(tmp_path / "to"), Choice(), images="none")
    coco = json.loads((tmp_path / "to" / "annotations" / "instances.json").read_text())
    since = [one["undetected_frames"] for one in coco["annotations"] if one.get("source")]
    assert sorted(since) == [1, 2, 3]

    for _ in range(2):
        ask(dataset, "undo")
    assert ask(dataset, "undo")["message"] == "undo: follow"
    assert [one[:4] for one in state(drive)] == [one[:4] for one in before]
    assert review_stats(dataset).labels == 11
    assert ask(dataset, "redo")["ok"]
    assert followed(drive) == found
    ((manifest,), _) = read_listed(out, list_manifests(out))
    load_sequence(drive, out, manifest)
    assert followed(drive) == found, "a load brings them, too"
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "ana")
    reject(*pick(drive, 4, 1))
    monkeypatch.setenv("AUTOLABEL_REVIEWER", "tester")
    assert "decided on again since" in ask(dataset, "undo")["message"]


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
    assert done["message"].startswith(
        "looked at 2 of 6 frames: 1 got a mask of the car, 1 got none: somebody has decided (1). "
    )
    assert sorted(followed(drive)) == [4]


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
        page.wait_for_function("() => /frames, [1-9]\\d* got a mask/.test(document.body.innerText)")
        page.keyboard.press("Escape")
        page.get_by_text("of 29 frames: ").first.wait_for()
        page.wait_for_function(READY)
        assert page.get_by_test_id("modal").count() == 1, "Escape closes the frame otherwise"
        found = followed(name)
        assert 1 <= len(found) < 29
        press(page, "Shift+Z")
        assert [one[:5] for one in state(name)] == [one[:5] for one in before]
        sample = dataset.match({"frame_number": 1}).first()
        assert review_state(page)["reviewSample"] == sample.id
        press(page, "Shift+Y")
        assert followed(name) == found
        said = set()
        for _ in range(2):
            press(page, "Shift+N")
            said.add(page.get_by_test_id("strip-reasons").inner_text().partition(", not")[0])
        assert "followed from frame 0" in said
