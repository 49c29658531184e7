"""Objects that a detector misses for some frames: what following adds, and how labels say so."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from flows.params import LabelParams
from flows.plan.plan import job_of
from sam2_core.backends.model_folder import MEMORY_OUTPUTS
from sam2_core.types import AutolabelError, Boxes
from tasks.dataset.documents import Origin, label_documents
from tasks.export.run import Choice, export
from tasks.masks.crops import crops_of
from tasks.masks.follow import (
    MOST_DOUBTED,
    MOST_UNDETECTED,
    follow_objects,
    with_boxes_around,
)
from tasks.masks.model import choose_model
from tasks.masks.rules import MaskRules, tidied
from tasks.risk.compute_risk import compute_risk
from tasks.store.artifacts import read_chunk
from tasks.store.manifests import read_manifest, write_manifest
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import read_tracks, write_tracks
from tasks.tracks.linking import make_tracks
from tasks.types import FrameFailure
from tests.cli.test_refused import refused
from tests.integration.runs import MICRO, write_image
from tests.planted_graphs import as_exported
from tests.sam2_core.test_follow import CAR, VAN, WHITE, StandIn
from tests.tracks.test_track import filled, labeled, stored

SIZE = WHITE.shape[:2]
# What the stand-in draws in a box of 4 pixels to the cell, enlarged.
DRAWN = [0.0, 0.0, 24.0, 24.0]


def seen(index, *boxes, **more):
    rows = [("car" if box == CAR else "van", box) for box in boxes]
    masks = [filled(box, SIZE) for box in boxes]
    return labeled(index, *rows, masks=masks, size_hw=SIZE, **more)


def failed(index):
    one = seen(index)
    failure = FrameFailure.of(one.frame, "decode", "cut off")
    return LabeledFrame(one.frame, Boxes.empty(), failure=failure)


def followed(*frames, missing=(), predicted_iou=0.9):
    """What becomes of the frames of a chunk; labels of some of its frames never come."""
    present = [one for one in frames if one.frame.index not in missing]
    every = [one.frame for one in frames]
    return list(follow_objects(StandIn(predicted_iou), every, present, lambda _: WHITE))


def test_a_missed_object_is_a_row_behind_the_detected_ones_until_it_was_missed_too_often():
    frames = [seen(0, CAR, VAN, scores=[0.8, 0.6]), *(seen(i, VAN) for i in range(1, 15))]
    made = followed(*frames)
    assert made[0] is frames[0]
    for age, (before, one) in enumerate(zip(frames[1:], made[1:], strict=True), 1):
        assert one.detected == 1
        if age > MOST_UNDETECTED:
            assert one is before
            continue
        assert one.followed == (age,)
        assert one.boxes.labels == ("van", "car")
        assert one.boxes.scores.tolist() == pytest.approx([0.5, 0.8])
        np.testing.assert_array_equal(one.boxes.xyxy_px, [VAN, DRAWN])
        assert one.masks.rle[0] == before.masks.rle[0]
        np.testing.assert_allclose(one.masks.predicted_iou, [1, 0.9])
        assert one.masks.area_px[1] == pytest.approx(24 * 24, abs=4)  # corners are round


def test_a_mask_that_the_model_doubts_is_a_row_if_its_object_is_detected_soon_again():
    there, end = seen(0, CAR, VAN), MOST_DOUBTED + 1
    gap = [seen(i, VAN) for i in range(1, end)]
    closed = followed(there, *gap, seen(end, VAN, CAR), seen(end + 1, VAN), predicted_iou=0.4)
    added = [one.followed for one in closed]
    assert added == [(), *((age,) for age in range(1, end)), (), ()], "the last has no end"
    late = followed(there, *gap, seen(end, VAN), seen(end + 1, VAN, CAR), predicted_iou=0.4)
    assert not any(one.followed for one in late)
    often = [seen(i, CAR) for i in range(3, 3 + 2 * end)]
    made = followed(there, seen(1), seen(2, CAR), *often, predicted_iou=0.4)
    assert [one.followed for one in made[:3]] == [(), (1,), ()], "the van's gap stays open"
    assert not any(one.followed for one in made[3:])


def test_frames_wait_for_no_more_than_a_mask_is_doubted():
    frames, taken = [seen(i, CAR) for i in range(9)], list[int]()
    labeled = (taken.append(one.frame.index) or one for one in frames)
    made = follow_objects(StandIn(), [one.frame for one in frames], labeled, lambda _: WHITE)
    for index, one in enumerate(made):
        assert one is frames[index]
        assert len(taken) == min(index + MOST_DOUBTED + 1, 9)


def test_frames_without_labels_count_and_other_chunks_begin_anew():
    made = followed(seen(0, CAR), failed(1), seen(2), seen(3), missing={2})
    assert [one.followed for one in made] == [(), (), (3,)]
    assert [one.followed for one in followed(seen(4), seen(5, CAR))] == [(), ()]


def test_what_another_label_covers_is_not_added():
    half = [0.0, 0.0, 48.0, 13.0]  # too wide to be the object
    assert [one.followed for one in followed(seen(0, CAR), seen(1, half))] == [(), ()]
    less = [0.0, 0.0, 48.0, 11.0]
    assert [one.followed for one in followed(seen(0, CAR), seen(1, less))] == [(), (1,)]
    nan = seen(1, CAR, scores=[np.nan])
    assert [one.followed for one in followed(seen(0, CAR), nan)] == [(), ()]


def test_an_object_that_the_detector_always_doubted_is_not_followed():
    def of_scores(*scores):
        there = [seen(i, CAR, VAN, scores=[score, 0.9]) for i, score in enumerate(scores)]
        return followed(*there, seen(len(scores), VAN))[-1].followed

    assert of_scores(0.49, 0.3) == ()
    assert of_scores(0.5, 0.3) == (1,), "one sure detection is enough"


def test_a_box_stays_around_its_mask_when_rules_take_a_piece_away():
    frames = [seen(0, CAR, VAN, scores=[0.8, 0.6]), seen(1, VAN)]
    _, one = followed(*frames)
    speck = coco_mask.encode(filled([SIZE[1] - 4, SIZE[0] - 4, *SIZE[::-1]], SIZE))
    wide = replace(one.boxes, xyxy_px=np.array([VAN, [0, 0, *SIZE[::-1]]], np.float32))
    own = {"size": list(SIZE), "counts": one.masks.rle[1]}
    both = coco_mask.merge([own, speck])["counts"]
    masks = replace(one.masks, rle=(one.masks.rle[0], both))
    masks = tidied(masks, wide, MaskRules(clean=0.1))
    tidy = with_boxes_around(replace(one, boxes=wide, masks=masks))
    np.testing.assert_array_equal(tidy.boxes.xyxy_px, [VAN, DRAWN])
    assert with_boxes_around(frames[1]) is frames[1]


def test_given_track_ids_stay_and_one_that_is_there_is_not_followed():
    first = seen(0, CAR, VAN, tracks=(7, 9))
    missed, elsewhere = seen(1, VAN, tracks=(9,)), seen(2, [0.0, 40.0, 20.0, 60.0], tracks=(7,))
    made = followed(first, missed, elsewhere, seen(3))
    assert [one.boxes.track_ids.tolist() for one in made] == [[7, 9], [9, 7], [7, 9], [7, 9, 7]]
    assert [one.followed for one in made] == [(), (1,), (1,), (1, 2, 3)]


def test_followed_labels_say_so_wherever_they_go(tmp_path):
    out = str(tmp_path / "run")
    made = followed(seen(0, CAR, VAN), seen(1, VAN), seen(2, CAR, VAN))
    manifest = stored(out, made, 2)
    write_manifest(out, manifest)
    (chunk, other) = manifest.chunks
    assert (chunk.followed + other.followed, "followed" in chunk.as_json()) == (1, True)
    assert "followed" not in other.as_json()
    key = (manifest.stamp.run_key, manifest.sequence_id, manifest.content_key)
    assert read_manifest(out, *key).chunks[0].followed == 1
    back = read_chunk(out, chunk.stem, chunk.key).labeled[1]
    assert (back.followed, back.detected, back.boxes.labels) == ((1,), 1, ("van", "car"))
    plain = stored(str(tmp_path / "plain"), [replace(one, followed=()) for one in made], 2)
    assert [one.key for one in plain.chunks] == [one.key for one in manifest.chunks]
    assert plain.chunks[0].masks_sha256 != chunk.masks_sha256
    assert plain.chunks[1] == manifest.chunks[1], "nothing was followed in it"

    tracks = make_tracks(out, manifest)
    write_tracks(out, manifest, tracks.frames, tracks.made)
    joined = read_tracks(out, manifest).joined(back)
    assert joined.boxes.track_ids.tolist() == [2, 1]
    (judgement,) = compute_risk([joined])
    assert "followed" in judgement.reasons[1]
    assert "low_score" not in judgement.reasons[1]
    assert "followed" not in judgement.reasons[0]
    assert judgement.risk[1] > compute_risk([replace(joined, followed=())])[0].risk[1]
    crops = crops_of(joined.boxes.xyxy_px, joined.masks.rle, joined.masks.size_hw)
    documents = label_documents(joined, crops, Origin("run", "model", {}), judgement)
    said = [(one.get("source"), one.get("undetected_frames")) for one in documents]
    assert said == [(None, None), ("followed", 1)]
    export(out, "coco", str(tmp_path / "to"), Choice(), images="none")
    coco = json.loads((tmp_path / "to" / "annotations" / "instances.json").read_text())
    said = [(one.get("source"), one.get("undetected_frames")) for one in coco["annotations"]]
    assert said == [(None, None)] * 3 + [("followed", 1)] + [(None, None)] * 2


def test_only_what_has_a_memory_follows_and_the_sentence_says_what_has(tmp_path):
    write_image(tmp_path / "in" / "0.jpg")
    label = ["label", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--follow"]
    code, said = refused(*label, "--model", str(MICRO), "--backend", "onnxruntime-cpu")
    assert (code, said[:50]) == (2, "micro has no memory to follow objects with. compac")
    code, said = refused(*label, "--backend", "triton")
    assert (code, "runs on the backends torch and onnxruntime-cpu" in said) == (2, True)
    choice = choose_model(str(MICRO), "onnxruntime-cpu")
    params = LabelParams(sources=str(tmp_path), out=str(tmp_path / "out"), follow=True)
    with pytest.raises(AutolabelError, match="micro has no memory to follow"):
        job_of(params, model=choice)
    with pytest.raises(AutolabelError, match="tensorrt cannot follow objects: choose --backend"):
        job_of(params, model=replace(choice, backend="tensorrt"))
    assert not (tmp_path / "out" / "labels").exists()


def test_the_key_has_the_memory_and_the_code_and_the_models_own_stamp_does_not(
    tmp_path, monkeypatch
):
    folder = shutil.copytree(MICRO, tmp_path / "model")
    for name in MEMORY_OUTPUTS:
        (folder / f"{name}.onnx").write_bytes(b"a graph")
        as_exported(folder / f"{name}.onnx")
    plain, choice = choose_model(str(MICRO)), choose_model(str(folder))
    assert plain.stamp == choice.stamp
    params = LabelParams(sources=str(tmp_path), out=str(tmp_path / "out"))
    keys = [job_of(params, model=choice).stamp.run_key]
    assert job_of(params, model=plain).stamp.run_key == keys[0]
    shorter = params.model_copy(update={"chunk_frames": 5})
    assert job_of(shorter, model=plain).stamp.run_key == keys[0], "nothing depends on it"
    params = params.model_copy(update={"follow": True})
    keys.append(job_of(params, model=choice).stamp.run_key)
    shorter = params.model_copy(update={"chunk_frames": 5})
    keys.append(job_of(shorter, model=choice).stamp.run_key)
    (folder / "memory_mask.onnx").write_bytes(b"another")
    with pytest.raises(AutolabelError, match="is not the file that was exported"):
        job_of(params, model=choice)
    as_exported(folder / "memory_mask.onnx")
    keys.append(job_of(params, model=choice).stamp.run_key)
    assert len(set(keys)) == 4
