"""Chunks, manifests and reports on every kind of storage."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pydantic import TypeAdapter

from sam2_core.types import Boxes, Masks, ModelStamp
from tasks.store import storage
from tasks.store.artifacts import (
    RunStamp,
    chunk_key,
    chunks_of,
    content_key,
    find_boxes,
    find_chunk,
    read_chunk,
    write_boxes,
    write_labels,
)
from tasks.store.manifests import (
    ChunkRecord,
    Manifest,
    complete_keys,
    list_manifests,
    read_manifest,
    write_manifest,
)
from tasks.store.tables import LabeledFrame
from tasks.types import FrameFailure, FrameRef

MODEL = ModelStamp("tiny", "c" * 64, "e" * 64, "onnxruntime", "fp32", "0.1.0")
STAMP = RunStamp("yolox_nano@abc", MODEL, {"min_score": 0.3, "classes": ["car"]})


def frames(count=5, camera="", sequence_id="drive"):
    return [
        FrameRef(
            sequence_id,
            camera,
            i,
            1_000_000_000 * i,
            f"s3://b/{camera}/{i}.jpg",
            (48, 64),
            f"e{i}",
            9,
        )
        for i in range(count)
    ]


def first_pixels(area_px, size_hw):
    """Run lengths of a mask of the first pixels, column by column."""
    pixels = np.arange(size_hw[0] * size_hw[1]) < area_px
    return coco_mask.encode(pixels.astype(np.uint8).reshape(size_hw, order="F"))["counts"]


def labeled(frame, count, rng=None):
    rng = rng or np.random.default_rng(frame.index)
    corners = rng.uniform(0, 60, (count, 4)).astype(np.float32)
    if count:
        corners[0] = [np.nan, 1, -5, 1e6]
    boxes = Boxes(corners, rng.random(count), ("car",) * count, np.arange(count), "yolox_nano@abc")
    scores = rng.random((3, count))
    rle = tuple(first_pixels(area_px, (48, 64)) for area_px in range(count))
    reasons = ("",) * (count - 1) + ("empty",) if count else ()
    masks = Masks(rle, (48, 64), *scores, np.arange(count), reasons)
    return LabeledFrame(frame, boxes, masks)


def failed(frame):
    reason = FrameFailure(
        frame.sequence_id, frame.camera, frame.index, frame.uri, "decode", "cut off"
    )
    return LabeledFrame(frame, Boxes.empty(STAMP.detector), failure=reason)


def a_chunk(count=5, sequence_id="drive"):
    chunk = chunks_of(frames(count, sequence_id=sequence_id), STAMP.run_key)[0]
    # frame 1 has no boxes, frame 2 failed, frame 3 has 500 boxes
    counts = [4, 0, None, 500] + [1] * count
    outcomes = [
        failed(f) if c is None else labeled(f, c)
        for f, c in zip(chunk.frames, counts, strict=False)
    ]
    return chunk, outcomes


def assert_same(left: LabeledFrame, right: LabeledFrame):
    """Equal in every field; without boxes there are no tracks to compare."""
    if not len(left.boxes):
        boxes = replace(left.boxes, track_ids=right.boxes.track_ids)
        left = replace(left, boxes=boxes)
    np.testing.assert_equal(asdict(left), asdict(right))


@pytest.fixture(params=["local", "memory", "s3"])
def out(request, tmp_path):
    if request.param == "local":
        return str(tmp_path / "a folder" / "out")
    return request.getfixturevalue(request.param) + "/out"


def test_keys_change_with_everything_that_labels_depend_on():
    one = frames()
    keys = {
        content_key(one),
        content_key(one[:-1]),
        content_key([*one[:-1], replace(one[-1], etag="new")]),
        content_key([*one[:-1], replace(one[-1], uri="s3://b/other.jpg")]),
        content_key([replace(f, camera="left") for f in one]),
        chunk_key("a", one),
        chunk_key("b", one),
        STAMP.run_key,
        replace(STAMP, detector="other").run_key,
        replace(STAMP, model=None).run_key,
        replace(STAMP, model=replace(MODEL, code_version="other code")).run_key,
        replace(STAMP, code="other code").run_key,
        replace(STAMP, model=replace(MODEL, precision="fp16")).run_key,
        replace(STAMP, parameters={"min_score": 0.4, "classes": ["car"]}).run_key,
    }
    assert len(keys) == 14
    assert content_key(one) == content_key([replace(f, local_path="/tmp/x") for f in one])
    reordered = RunStamp("yolox_nano@abc", MODEL, {"classes": ["car"], "min_score": 0.3})
    assert STAMP.run_key == reordered.run_key
    assert TypeAdapter(RunStamp).validate_python(STAMP.as_json()) == STAMP


def test_chunks_hold_at_most_64_frames_of_one_camera_and_every_frame_once():
    everything = frames(130, "left") + frames(3, "right")
    chunks = chunks_of(everything, "run")
    assert [len(c.frames) for c in chunks] == [64, 64, 2, 3]
    assert [f for c in chunks for f in c.frames] == everything
    assert len({c.key for c in chunks}) == 4
    assert chunks[1].stem == f"labels/drive/left/000064-000128-{chunks[1].key}"
    assert chunks_of([], "run") == []


def test_labels_and_boxes_come_back_as_written(out):
    chunk, outcomes = a_chunk()
    assert find_chunk(out, chunk) is None
    assert find_boxes(out, chunk) is None
    boxes = {one.frame.index: one.boxes for one in outcomes if one.failure is None}
    write_boxes(out, chunk, boxes, STAMP)
    back = find_boxes(out, chunk)
    assert list(back) == [0, 1, 3, 4]  # frame 1 was looked at and has none; frame 2 was not
    assert len(back[1]) == 0
    np.testing.assert_array_equal(back[0].xyxy_px, outcomes[0].boxes.xyxy_px)
    assert find_chunk(out, chunk) is None  # boxes alone are not labels
    written = write_labels(out, chunk, outcomes[::-1], STAMP)
    stored = read_chunk(out, chunk.stem, chunk.key)
    assert written.labels_key == stored.labels_key
    assert (written.frames_sha256, written.masks_sha256) == (
        stored.frames_sha256, stored.masks_sha256,
    )  # fmt: skip
    for before, after in zip(outcomes, find_chunk(out, chunk).labeled, strict=True):
        assert_same(before, after)
    again = write_labels(out, chunk, outcomes, STAMP)
    assert again.masks_sha256 == stored.masks_sha256, "equal input gives equal bytes"


def test_boxes_come_back_in_frame_order_beyond_ten(memory):
    chunk = chunks_of(frames(12), STAMP.run_key)[0]
    boxes = {i: Boxes(np.full((1, 4), i), np.ones(1), ("a",)) for i in range(12)}
    write_boxes(memory, chunk, boxes, STAMP)
    back = find_boxes(memory, chunk)
    assert [(i, int(b.xyxy_px[0, 0])) for i, b in back.items()] == [(i, i) for i in range(12)]


def test_every_frame_must_be_in_a_chunk_once(memory):
    chunk, outcomes = a_chunk()
    for wrong in (outcomes[:-1], [*outcomes, outcomes[0]], [*outcomes[:-1], outcomes[0]]):
        with pytest.raises(ValueError, match="labeled frames"):
            write_labels(memory, chunk, wrong, STAMP)
    assert find_chunk(memory, chunk) is None


def a_manifest(sequence_id="drive"):
    chunk, outcomes = a_chunk(sequence_id=sequence_id)
    record = ChunkRecord.of(chunk, outcomes)
    return Manifest(sequence_id, "s3://b/drive", content_key(chunk.frames), STAMP, (record,))


def test_manifests_say_in_one_listing_what_is_complete(out):
    assert complete_keys(list_manifests(out, STAMP.run_key)) == set()
    manifest = a_manifest("drive@night")
    write_manifest(out, manifest)
    write_manifest(out, a_manifest("drive2"))
    empty = storage.join(out, "manifests", STAMP.run_key, f"drive3@{'0' * 20}.json")
    storage.write_bytes(empty, b"")
    found = complete_keys(list_manifests(out, STAMP.run_key))
    assert found == {("drive@night", manifest.content_key), ("drive2", manifest.content_key)}
    assert complete_keys(list_manifests(out, "another run")) == set()
    back = read_manifest(out, STAMP.run_key, "drive@night", manifest.content_key)
    assert back == manifest
    assert (back.frames, back.failed, back.instances) == (5, 1, 505)
