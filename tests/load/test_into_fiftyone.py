"""Labels into FiftyOne: layout, idempotence, several writers, people's fields, cameras."""

import multiprocessing
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bson import ObjectId
from pycocotools import mask as coco_mask

from sam2_core.types import AutolabelError, Boxes, Masks
from tasks.dataset import layout, schema
from tasks.dataset.documents import (
    label_id,
    sample_id,
)
from tasks.frames.download import keep_cached
from tasks.frames.identity import frame_key
from tasks.frames.images import as_jpeg
from tasks.load import into_fiftyone as load
from tasks.load.into_fiftyone import prepare_dataset
from tasks.review.queue import everything, sequence_view
from tasks.store import artifacts
from tasks.store.manifests import Manifest
from tasks.store.tables import LabeledFrame
from tasks.types import FrameFailure, FrameRef
from tests.export.labeled_runs import stored
from tests.review.labels import (
    OTHER_STAMP,
    SIZE_HW,
    STAMP,
    labeled_frames,
    load_frames,
)


@pytest.fixture
def name(database: str) -> str:
    return f"test {uuid.uuid4().hex[:8]}"


def store(out: Path, labeled: list[LabeledFrame], stamp: artifacts.RunStamp = STAMP) -> Manifest:
    """Write artifacts as a run does."""
    return stored(str(out), f"memory://frames/{labeled[0].frame.sequence_id}", labeled, stamp)


def documents(name: str) -> list[dict]:
    dataset = schema.open_dataset(name)
    found = layout.sample_collection(dataset).find({}).sort("frame_key")
    return [{k: v for k, v in one.items() if not k.endswith("_at")} for one in found]


def kinds(value: object) -> object:
    """A stored document without what is not set, as FiftyOne leaves it in or out."""
    if isinstance(value, dict):
        return {k: kinds(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [kinds(one) for one in value]
    return "id" if isinstance(value, ObjectId) else value


@pytest.mark.parametrize("cameras", [[""], ["l", "r"]])
def test_our_documents_are_those_that_fiftyone_writes_for_the_same_samples(
    name: str, tmp_path: Path, cameras: list[str]
) -> None:
    import fiftyone as fo
    import fiftyone.core.utils as fou

    labeled = [one for camera in cameras for one in labeled_frames(2, camera=camera)]
    prepare_dataset(name, cameras)
    load.load_sequence(name, str(tmp_path), store(tmp_path, labeled))
    dataset = schema.open_dataset(name)
    copy = fo.Dataset()
    if len(cameras) > 1:
        copy.add_group_field("group", default="l")
    copy.add_samples([one.copy() for one in everything(dataset)])
    assert len(documents(name)) == len(labeled)
    for ours, theirs in zip(*(stored_documents(one) for one in (dataset, copy)), strict=True):
        for document in (ours, theirs):
            for own in ("created_at", "last_modified_at", "loaded_at", "_rand", "filepath"):
                assert document.pop(own)
            for label in document["detections"]["detections"]:
                label["mask"] = fou.deserialize_numpy_array(label["mask"]).tolist()
        assert kinds(ours) == kinds(theirs)
    copy.delete()


def stored_documents(dataset: object) -> list[dict]:
    return list(layout.sample_collection(dataset).find({}).sort("frame_key"))


def test_another_fiftyone_is_refused_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fiftyone as fo

    manifest = store(tmp_path, labeled_frames(2))
    prepare_dataset(name)
    monkeypatch.setattr(fo, "__version__", "1.23.0")
    layout.refuse_other_version.cache_clear()
    with pytest.raises(AutolabelError, match=r"fiftyone 1\.23\.0 may .* another way than 1\.22, "):
        load.load_sequence(name, str(tmp_path), manifest)
    monkeypatch.undo()
    assert documents(name) == []


def test_a_sequence_comes_out_as_it_went_in(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    labeled, picture = [*labeled_frames(10, 6)], as_jpeg(np.zeros((*SIZE_HW, 3), np.uint8))
    shown = replace(labeled[2].frame, size_bytes=len(picture))
    labeled[2] = replace(labeled[2], frame=shown)
    failed = FrameRef("drive", "", 10, None, "memory://frames/drive/000010.jpg", (0, 0), "e")
    failure = FrameFailure("drive", "", 10, failed.uri, "download", "truncated")
    labeled = [*labeled, LabeledFrame(failed, Boxes.empty(), failure=failure)]
    manifest = store(tmp_path, labeled)
    prepare_dataset(name, out_uri=str(tmp_path))
    here = keep_cached(shown.uri, shown.etag, picture)
    report = load.load_sequence(name, str(tmp_path), manifest)
    assert (report.frames, report.instances) == (11, 60)

    dataset = schema.open_dataset(name)
    assert (dataset.persistent, dataset.media_type, len(dataset)) == (True, "image", 11)
    assert dataset.list_saved_views() == [], "a view for each sequence would be thousands"
    for sample in dataset.sort_by("frame_number"):
        one = labeled[sample.frame_number]
        if one.masks is None:
            assert sample.reasons == ["failed_download"]
            continue
        assert sample.id == str(sample_id(frame_key(one.frame, manifest.frames_uri)))
        shown = str(here) if one.frame.index == 2 else one.frame.uri
        assert sample.filepath == shown
        assert sample.timestamp_ns == one.frame.timestamp_ns
        assert (sample.metadata.height, sample.metadata.width) == SIZE_HW
        assert sample.stamp["model"]["checkpoint_sha256"] == "ab" * 32
        for row, detection in enumerate(sample.detections.detections):
            assert detection.id == str(label_id(sample.frame_key, STAMP.run_key, row))
            assert detection.label == one.boxes.labels[row]
            assert detection.predicted_iou == pytest.approx(float(one.masks.predicted_iou[row]))
            assert detection.model == "compact/restructured@abababababab onnxruntime fp32 1"
            full = coco_mask.decode({"counts": one.masks.rle[row], "size": list(SIZE_HW)})
            x, y = (round(detection.bounding_box[i] * SIZE_HW[1 - i]) for i in (0, 1))
            height, width = detection.mask.shape
            assert np.array_equal(full[y : y + height, x : x + width], detection.mask)
            assert full.sum() == detection.mask.sum()


def test_bad_boxes_and_empty_masks_keep_their_rows(name: str) -> None:
    empty = coco_mask.encode(np.zeros(SIZE_HW, np.uint8, order="F"))["counts"]
    boxes = Boxes([[np.nan] * 4, [50, 50, 10, 10], [5, 5, 90, 70]], [1, 1, 1], ("a", "b", "c"))
    rejected = Masks(
        (empty,) * 3, SIZE_HW, [0] * 3, [0] * 3, [0] * 3, [0] * 3, ("invalid_box",) * 3
    )
    frame = FrameRef("drive", "", 0, None, "/frames/0.jpg", SIZE_HW)
    prepare_dataset(name)
    load_frames(name, [LabeledFrame(frame, boxes, rejected)], STAMP)
    sample = schema.open_dataset(name).first()
    assert [d.label for d in sample.detections.detections] == ["a", "b", "c"]
    assert all(d.mask is None for d in sample.detections.detections)
    assert sample.detections.detections[0].bounding_box == [0, 0, 0, 0]
    assert sample.detections.detections[2].mask_reason == "invalid_box"


def test_loading_again_changes_nothing_and_people_keep_their_fields(
    name: str, tmp_path: Path
) -> None:
    manifest = store(tmp_path, labeled_frames(9))
    prepare_dataset(name)
    load.load_sequence(name, str(tmp_path), manifest)
    before = documents(name)
    load.load_sequence(name, str(tmp_path), manifest)
    assert documents(name) == before

    import fiftyone as fo

    dataset = schema.open_dataset(name)
    sample = dataset.first()
    machine = sample.detections.detections[1]
    sample["reviewed"] = fo.Detections(
        detections=[fo.Detection(label="tram", bounding_box=[0] * 4)]
    )
    sample["review_status"] = "done"
    accepted = {machine.id: "accepted"}
    decided = {"at": "2026-11-24T00:00:00+00:00", "action": "accept", "decisions": accepted}
    sample["review_log"] = [decided]
    sample.tags.append("mine")
    sample.save()
    other = store(tmp_path, labeled_frames(9, seed=5), OTHER_STAMP)
    load.load_sequence(name, str(tmp_path), other)
    load.load_sequence(name, str(tmp_path), other)
    sample.reload()
    assert sample.reviewed.detections[0].label == "tram"
    assert (sample.review_status, sample.tags) == ("done", ["mine"])
    assert sample.run_key == OTHER_STAMP.run_key
    assert sample.previous.detections[1].id == machine.id, "the old labels are kept to compare"
    load.load_sequence(name, str(tmp_path), manifest)
    sample.reload()
    assert [d.decision for d in sample.detections.detections] == ["", "accepted", "", "", ""]
    assert len(dataset) == 9


def test_cameras_become_groups(name: str, tmp_path: Path) -> None:
    labeled = [one for camera in "lr" for one in labeled_frames(3, camera=camera)]
    manifest = store(tmp_path, labeled)
    prepare_dataset(name, cameras=["l", "r"])
    load.load_sequence(name, str(tmp_path), manifest)
    load.load_sequence(name, str(tmp_path), manifest)
    dataset = schema.open_dataset(name)
    assert (dataset.media_type, dataset.group_slices, len(dataset)) == ("group", ["l", "r"], 3)
    group = dataset.get_group(dataset.first().group.id)
    assert {slice_: sample.camera for slice_, sample in group.items()} == {"l": "l", "r": "r"}
    prepare_dataset(name, cameras=["l", "r", "top"])
    assert schema.open_dataset(name).group_slices == ["l", "r", "top"]
    load.load_sequence(name, str(tmp_path), store(tmp_path, labeled_frames(3, sequence_id="alone")))
    view = sequence_view(schema.open_dataset(name), "alone")  # of one camera, beside groups
    assert view.values("frame_number") == [0, 1, 2]


def test_masks_on_disk(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labeled = labeled_frames(2)
    manifest = store(tmp_path, labeled)
    prepare_dataset(name)
    monkeypatch.setenv("AUTOLABEL_MASK_DIR", str(tmp_path / "masks"))
    load.load_sequence(name, str(tmp_path), manifest)
    detection = schema.open_dataset(name).first().detections.detections[0]
    assert detection.mask is None
    assert Path(detection.mask_path).is_relative_to(tmp_path / "masks")
    assert detection.get_mask().shape[0] > 1
    area = schema.open_dataset(name).first().detections.detections[0].area_px
    assert (detection.get_mask() > 0).sum() == area


def test_names_and_foreign_datasets_are_refused(name: str) -> None:
    import fiftyone as fo

    fo.Dataset(name).add_sample(fo.Sample("/x.mp4"))
    for use, wrong, message in (
        (prepare_dataset, "../x", "not a dataset name"),
        (schema.open_dataset, "never seen", "no dataset"),
        (lambda it: prepare_dataset(it, out_uri="/out"), name, "holds video samples"),
        (lambda it: schema.refuse_before_labeling(it, "/out"), name, "holds video samples"),
        (schema.open_dataset, name, "not made by autolabel"),
    ):
        with pytest.raises(AutolabelError, match=message):
            use(wrong)


def write_one(name: str, out: str, manifests: list[Manifest]) -> None:
    prepare_dataset(name)
    for manifest in manifests:
        load.load_sequence(name, out, manifest)


def write_two(name: str, out: str, orders: list[list[Manifest]]) -> None:
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(write_one, name, out, order) for order in orders]:
            done.result()


@pytest.mark.ci
def test_four_writers_also_of_the_same_sequence(name: str, tmp_path: Path) -> None:
    manifests = [store(tmp_path, labeled_frames(12, sequence_id=f"drive{i}")) for i in range(3)]
    orders = [manifests, manifests, manifests[::-1], [manifests[1]]]
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=write_two, args=(name, str(tmp_path), orders[i : i + 2]))
        for i in (0, 2)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(250)
    assert [writer.exitcode for writer in writers] == [0, 0]
    dataset = schema.open_dataset(name)
    assert len(dataset) == 36
    assert len(set(dataset.values("frame_key"))) == 36
    assert dataset.count("detections.detections") == 36 * 5
    assert dataset.distinct("sequence_id") == [f"drive{i}" for i in range(3)]
    assert all(sample.detections.detections[0].predicted_iou > 0 for sample in dataset)
    alone = f"{name} alone"
    write_one(alone, str(tmp_path), manifests)
    drop = {"_dataset_id"}
    for ours, theirs in zip(documents(name), documents(alone), strict=True):
        assert {k: ours[k] for k in ours.keys() - drop} == {
            k: theirs[k] for k in theirs.keys() - drop
        }
