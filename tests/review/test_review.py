"""Decisions: recorded, shown, kept by a reload, exported, and back after a rebuild."""

import datetime
import json
import uuid
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask

from sam2_core.types import AutolabelError
from tasks.dataset import layout, schema
from tasks.dataset.coco_truth import read_truth
from tasks.dataset.documents import reviewed_id
from tasks.export.run import Choice, export
from tasks.load import into_fiftyone as load
from tasks.load.into_fiftyone import prepare_dataset, rebuild
from tasks.review.actions import accept, choose, fix_class, merge
from tasks.review.events import now_text, read_events, reviews_uri
from tasks.review.set_aside import harvest
from tasks.store import storage
from tasks.store.checksums import encode_json
from tests.load.test_into_fiftyone import store
from tests.review.labels import SIZE_HW, labeled_frames
from tests.review.reviewed import (
    decide_everything,
    decided_labels,
    follow_here,
    pick,
    state,
)


def test_decisions_show_in_the_dataset_and_lie_in_storage(name: str, out: Path) -> None:
    decide_everything(name)
    frames = list(schema.open_dataset(name).sort_by("frame_number"))
    assert [d.decision for d in frames[0].detections.detections] == [
        "accepted", "corrected", "rejected", "", "",
    ]  # fmt: skip
    assert [d.decision for d in frames[1].detections.detections] == [
        "corrected", "merged", "merged", "deleted", "",
    ]  # fmt: skip
    assert {d.label for d in frames[0].reviewed.detections} >= {"bus"}
    assert sorted(d.decision for d in frames[1].reviewed.detections) == ["corrected", "merged"]
    tram = next(d for d in frames[1].reviewed.detections if d.label == "tram")
    assert tram.changed.endswith("-> tram")
    assert tram.sources == [frames[1].detections.detections[0].id]
    assert {one.review_status for one in frames} == {"done"}
    events = read_events(str(out), name)
    assert [e.action for e in events if e.frame_key.endswith("0")] == [
        "accept", "reject", "fix_class", "done",
    ]  # fmt: skip
    assert all(e.by and e.at and e.model.startswith("compact/restructured@") for e in events)


def test_a_merged_mask_is_the_union(name: str) -> None:
    dataset, chosen = pick(name, 2, 0, 1)
    parts = [label for _, label in chosen[0].labels]
    merge(dataset, chosen)
    sample = dataset.match({"frame_number": 2}).first()
    merged = sample.reviewed.detections[0]
    one = labeled_frames(4)[2]
    full = [
        coco_mask.decode({"counts": one.masks.rle[row], "size": list(SIZE_HW)}).astype(bool)
        for row in (0, 1)
    ]
    assert merged.area_px == (full[0] | full[1]).sum()
    assert merged.mask.sum() == merged.area_px
    assert set(merged.sources) == {str(part["_id"]) for part in parts}


def test_bad_choices_are_explained(name: str) -> None:
    dataset, chosen = pick(name, 0, 0)
    with pytest.raises(AutolabelError, match="two labels or more"):
        merge(dataset, chosen)
    with pytest.raises(AutolabelError, match="needs a name"):
        fix_class(dataset, chosen, "  ")
    with pytest.raises(AutolabelError, match="gone"):
        choose(dataset, [dataset.first().id], ["0" * 24])


def test_a_failed_write_to_storage_decides_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(name)

    def full(uri: str, data: bytes) -> None:
        raise storage.StorageError("no space left")

    monkeypatch.setattr(storage, "write_bytes", full)
    with pytest.raises(AutolabelError, match="no space"):
        accept(*pick(name, 0, 0))
    assert state(name) == before


def test_reload_and_rebuild_give_every_decision_back(name: str, out: Path) -> None:
    decide_everything(name)
    follow_here(name)
    before = state(name)
    rebuild(name, str(out))
    assert state(name) == before, "a reload over the decisions"
    schema.open_dataset(name).delete()
    report = rebuild(name, str(out))
    assert (report.frames, report.instances) == (4, 20)
    assert state(name) == before, "a rebuild from artifacts alone"


def test_events_of_labels_sent_back_are_counted_and_passed_over(
    name: str, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As an earlier version wrote them: asked for, made again with another mask, undecided."""
    dataset, (chosen,) = pick(name, 0, 0)
    accept(dataset, [chosen])
    before = state(name)
    label = str(chosen.labels[0][1]["_id"])
    empty = coco_mask.encode(np.zeros(SIZE_HW, np.uint8, order="F"))["counts"].decode()
    again = {"id": label, "label": "car", "rle": empty, "size_hw": list(SIZE_HW), "area_px": 0}
    gone = (str(reviewed_id(label)),)
    asked = chosen.event("relabel", decisions={label: "relabel"}, removed=gone)
    made = chosen.event("relabeled", decisions={label: ""}, overrides={label: again})
    for number, event in enumerate((asked, made)):
        values = asdict(event) | {"event_id": f"{number}", "at": now_text(), "relabel": "back"}
        uri = storage.join(reviews_uri(str(out), name), "events", f"9{number}.json")
        storage.write_bytes(uri, encode_json({"dataset": name, "events": [values]}))
    dataset.delete()
    rebuild(name, str(out))
    assert state(name) == before, "what was accepted stands, on the mask of the run"
    assert f"decisions on '{name}': 2 events of labels sent back to a model" in caplog.text


def test_decisions_on_masks_that_lie_on_disk(
    name: str, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOLABEL_MASK_DIR", str(tmp_path / "masks"))
    rebuild(name, str(out))
    accept(*pick(name, 3, 0))
    follow_here(name)
    dataset = schema.open_dataset(name)
    assert harvest(dataset) == [], "nobody edited anything"
    before = state(name)
    rebuild(name, str(out))
    assert state(name) == before
    sample = dataset.match({"frame_number": 3}).first()
    accepted, again = sample.reviewed.detections[0], sample.detections.detections[1]
    from_disk = cv2.imread(sample.detections.detections[0].mask_path, cv2.IMREAD_GRAYSCALE)
    assert np.array_equal(accepted.mask, from_disk > 0)
    assert (again.mask.sum(), again.mask_path) == (400, None), "followed: not the old file's"


def test_edits_with_fiftyones_own_tools_are_honoured(name: str, out: Path) -> None:
    import fiftyone as fo

    accept(*pick(name, 0, 0, 1))
    dataset = schema.open_dataset(name)
    sample = dataset.first()
    edited, removed = sample.reviewed.detections
    # The App gives an edited mask back on another grid than the box has pixels.
    edited.mask = np.pad(np.ones((100, 60), bool), ((100, 0), (0, 60)))
    drawn = fo.Detection(label="dog", bounding_box=[0.1, 0.1, 0.05, 0.1])
    sample.reviewed.detections = [edited, drawn]
    sample.detections.detections[3].label = "van"
    sample.save()
    events = harvest(dataset)
    assert [event.action for event in events] == ["edit"]
    assert harvest(dataset) == [], "seen once"
    sample.reload()
    labels = {d.label: d for d in sample.reviewed.detections}
    assert set(labels) == {edited.label, "dog", "van"}
    assert sample.detections.detections[3].decision == "edited"
    height, width = labels[edited.label].mask.shape
    assert (height, width) != (200, 120), "on the box's own pixels"
    assert labels[edited.label].mask[height // 2 + 1 :, : width // 2 - 1].all()
    before = state(name)
    schema.open_dataset(name).delete()
    rebuild(name, str(out))
    rebuilt = state(name)
    assert [one[4] for one in rebuilt] == [one[4] for one in before]
    assert removed.id not in {d.id for d in schema.open_dataset(name).first().reviewed.detections}


def test_labels_that_fiftyones_own_tools_deleted_stay_deleted(name: str, out: Path) -> None:
    accept(*pick(name, 0, 0))
    merge(*pick(name, 0, 1, 2))
    accept(*pick(name, 0, 3))
    dataset = schema.open_dataset(name)
    sample = dataset.first()
    kept = sample.reviewed.detections[2]
    sample.reviewed.detections = [kept]  # the accepted and the merged one are gone
    # Of the machine's, one that has been accepted and one that nobody has decided on.
    sample.detections.detections = sample.detections.detections[:3]
    sample.save()
    (event,) = harvest(dataset)
    assert (event.action, len(event.removed)) == ("remove", 2)
    assert harvest(dataset) == [], "seen once"
    load.load_sequence(name, str(out), store(out, list(labeled_frames(4))))
    sample.reload()
    assert [d.decision for d in sample.detections.detections] == [
        "deleted", "deleted", "deleted", "accepted", "deleted",
    ]  # fmt: skip
    assert [d.id for d in sample.reviewed.detections] == [kept.id]
    decided = Counter(row["decision"] for row in decided_labels(name))
    assert decided == {"accepted": 1, "deleted": 4}
    before = state(name)
    schema.open_dataset(name).delete()
    rebuild(name, str(out))
    rebuilt = state(name)
    # FiftyOne compressed the mask of the reviewed one anew: its id says enough.
    assert [(one[2], one[4]) for one in rebuilt] == [(one[2], one[4]) for one in before]
    assert [d.id for d in schema.open_dataset(name).first().reviewed.detections] == [kept.id]


def test_of_two_edits_of_one_object_the_reviewed_one_counts(name: str) -> None:
    accept(*pick(name, 0, 0))
    dataset = schema.open_dataset(name)
    sample = dataset.first()
    sample.detections.detections[0].label = "van"
    sample.reviewed.detections[0].label = "bus"
    sample.save()
    harvest(dataset)
    sample.reload()
    assert [d.label for d in sample.reviewed.detections] == ["bus"]


def test_masks_that_the_app_compressed_anew_are_no_edits(name: str) -> None:
    """The App writes all labels of a frame when one of them is edited."""
    from fiftyone.core.utils import deserialize_numpy_array, serialize_numpy_array

    dataset = schema.open_dataset(name)
    collection = layout.sample_collection(dataset)
    sample = collection.find_one({"frame_number": 0})
    labels = sample["detections"]["detections"]
    old = [label["mask"] for label in labels]
    for label in labels:
        label["mask"] = serialize_numpy_array(deserialize_numpy_array(label["mask"]))
    assert [label["mask"] for label in labels] != old
    labels[1]["label"] = "tram"
    change = {"detections": sample["detections"], "last_modified_at": datetime.datetime.now()}
    collection.update_one({"_id": sample["_id"]}, {"$set": change})
    (event,) = harvest(dataset)
    assert [one["label"] for one in event.upserts] == ["tram"]


def test_an_edit_made_just_before_a_reload_is_not_lost(name: str, out: Path) -> None:
    dataset = schema.open_dataset(name)
    sample = dataset.first()
    sample.detections.detections[0].label = "ambulance"
    sample.save()
    load.load_sequence(name, str(out), store(out, list(labeled_frames(4))))
    sample.reload()
    assert [d.label for d in sample.reviewed.detections] == ["ambulance"]
    assert sample.detections.detections[0].decision == "edited"


def test_an_export_says_who_decided_what_and_when(name: str, tmp_path: Path) -> None:
    decide_everything(name)
    export(name, "coco", str(tmp_path / "to"), Choice(reviewed=True), images="none")
    coco = json.loads((tmp_path / "to/annotations/instances.json").read_text())
    classes = {one["id"]: one["name"] for one in coco["categories"]}
    annotations = coco["annotations"]
    told = Counter(one["attributes"]["decision"] for one in annotations)
    assert told == {"accepted": 1, "corrected": 2, "merged": 1, "passed": 13}
    (tram,) = (one["attributes"] for one in annotations if classes[one["category_id"]] == "tram")
    assert (tram["reviewer"], tram["reviewed_at"] > "2") != ("", False)
    assert tram["changed"].endswith("-> tram")
    passed = {one["segmentation"]["counts"] for one in annotations if one["image_id"] == 4}
    assert passed == {rle.decode() for rle in labeled_frames(4)[3].masks.rle}
    assert read_truth(tmp_path / "to/annotations/instances.json").instances == 17


def test_decisions_go_where_the_labels_are_in_whatever_folder_the_review_starts(
    name: str, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(out.parent)
    (tmp_path / "link").symlink_to(out)
    for spelling in ("link", out.name, f"./{out.name}/", f"file://{out}", f"{out}/../{out.name}"):
        prepare_dataset(name, out_uri=spelling)
    assert schema.open_dataset(name).info["out_uris"] == [str(out)]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    accept(*pick(name, 0, 0))
    decided_labels(name)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert [event.action for event in read_events(str(out), name)] == ["accept"]


def test_a_bucket_is_remembered_once_however_it_is_spelled(database: str, s3: str) -> None:
    name = f"bucket {uuid.uuid4().hex[:8]}"
    for spelling in (s3.replace("s3:", "s3a:"), f"{s3}/", s3):
        schema.bootstrap_dataset(name, out_uri=spelling)
    assert schema.open_dataset(name).info["out_uris"] == [s3]
