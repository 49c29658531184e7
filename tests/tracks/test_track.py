"""Track ids and classes along tracks: by boxes, by masks, by ids that came with the boxes."""

from dataclasses import replace

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from sam2_core.types import Boxes, Masks
from tasks.dataset.documents import Origin, label_documents
from tasks.masks.crops import crops_of
from tasks.risk.compute_risk import compute_risk
from tasks.store import storage
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import FrameTracks, list_tracked, path_of, read_tracks, write_tracks
from tasks.tracks import linking
from tasks.tracks.linking import agreements, make_tracks, shapes_of, track
from tasks.types import FrameFailure, FrameRef
from tests.export import labeled_runs
from tests.store.test_artifacts import STAMP

SIZE_HW = (480, 800)
RAIL = (0.0, 300.0, 400.0, 420.0)


def filled(box, size_hw=SIZE_HW):
    """A mask that fills its box."""
    mask = np.zeros(size_hw, np.uint8, order="F")
    left, top, right, bottom = (int(max(side, 0)) for side in np.nan_to_num(box))
    mask[top:bottom, left:right] = 1
    return mask


def labeled(index, *rows, tracks=(), masks=None, scores=None, size_hw=SIZE_HW):
    """One frame of (class, box) rows."""
    boxes = Boxes(
        np.array([box for _, box in rows], np.float32).reshape(-1, 4),
        scores or [0.5] * len(rows), tuple(name for name, _ in rows),
        np.array(tracks, np.int64) if tracks else None, "test",
    )  # fmt: skip
    pixels = masks or [filled(box) for _, box in rows]
    rle = tuple(coco_mask.encode(np.asfortranarray(one))["counts"] for one in pixels)
    ones = np.ones(len(rows), np.float32)
    areas = np.array([int(one.sum()) for one in pixels], np.int64)
    frame = FrameRef("drive", "", index, None, f"s3://b/{index}.jpg", size_hw, f"e{index}")
    whole = Masks(rle, size_hw, ones, ones, ones, areas, ("",) * len(rows))
    return LabeledFrame(frame, boxes, whole)


def ids(*frames):
    return [one.ids.tolist() for one in track(list(frames)).frames]


def moved(box, x):
    return (box[0] + x, box[1], box[2] + x, box[3])


def test_a_guard_rail_of_a_hundred_frames_is_one_object():
    car = (500.0, 300.0, 600.0, 360.0)
    frames = [labeled(i, ("truck", moved(RAIL, 3 * i % 7)), ("person", car)) for i in range(102)]
    assert ids(*frames) == [[1, 2]] * 102


def test_what_moves_steadily_is_followed_even_past_its_own_width():
    start = (0.0, 100.0, 40.0, 140.0)
    places = np.cumsum([0, 8, 16, 24, 32, 40, 48, 56])
    frames = [labeled(i, ("car", moved(start, x))) for i, x in enumerate(places)]
    assert {one for names in ids(*frames) for one in names} == {1}
    jumps = [labeled(i, ("car", moved(start, x))) for i, x in enumerate((0, 400))]
    assert ids(*jumps) == [[1], [2]], "without a motion known before it is another one"


def test_an_object_may_be_missed_for_a_second_or_so():
    frames = [labeled(i, ("truck", RAIL)) if i in {0, 1, 9} else labeled(i) for i in range(10)]
    assert ids(*frames)[-1] == [1]
    failure = FrameFailure.of(frames[5].frame, "decode", "cut off")
    frames[5] = LabeledFrame(frames[5].frame, Boxes.empty(), failure=failure)
    assert ids(*frames)[-1] == [1], "a failed frame is a frame without boxes"
    long = [labeled(i, ("truck", RAIL)) if i in {0, 60} else labeled(i) for i in range(61)]
    assert ids(*long)[-1] == [2]


def test_an_object_keeps_its_id_when_the_detector_changes_its_mind_and_has_one_class():
    names = ["car", "truck", "car", "car", "bus"]
    frames = [labeled(i, (name, RAIL)) for i, name in enumerate(names)]
    tracked = track(frames)
    assert [one.ids.tolist() for one in tracked.frames] == [[1]] * 5
    assert [one.labels for one in tracked.frames] == [("car",)] * 5
    assert [one.boxes.labels[0] for one in frames] == names, "what the detector said stays"
    assert (tracked.measures["class_changes"], tracked.measures["other_class"]) == (3, 2)
    sure = [replace_scores(one, [0.1 if one.boxes.labels[0] == "car" else 0.9]) for one in frames]
    assert track(sure).frames[0].labels == ("bus",), "scores count; of equal ones the first by name"
    other = [labeled(0, ("car", RAIL)), labeled(1, ("person", RAIL))]
    assert ids(*other) == [[1], [2]], "a car becomes no person"


def replace_scores(one, scores):
    return replace(one, boxes=replace(one.boxes, scores=np.array(scores, np.float32)))


def test_masks_part_what_boxes_join():
    left, right = filled(RAIL), filled(RAIL)
    left[:, 190:] = 0
    right[:, :210] = 0
    frames = [
        labeled(i, ("car", RAIL), masks=[left if i < 3 else right]) for i in range(6)
    ]  # fmt: skip
    assert ids(*frames) == [[1]] * 3 + [[2]] * 3
    empty = [labeled(i, ("car", RAIL), masks=[filled(RAIL) * (i != 1)]) for i in range(3)]
    assert ids(*empty) == [[1]] * 3, "an empty mask says nothing of its object"


def test_masks_join_what_boxes_have_lost(monkeypatch):
    """A bus that a tracker loses where its box shrinks to what is seen of it beside a truck."""
    bus = (100.0, 100.0, 500.0, 220.0)
    seen = (100.0, 100.0, 134.0, 220.0)
    shown = filled(bus)
    shown[:, 130:] = 0
    frames = [labeled(i, ("bus", bus), masks=[shown]) for i in range(4)]
    frames += [labeled(4), labeled(5, ("bus", seen)), labeled(6, ("bus", seen))]
    assert ids(*frames) == [[1]] * 4 + [[], [1], [1]]
    monkeypatch.setattr(linking, "REACH_FRAMES", 0)
    assert ids(*frames) == [[1]] * 4 + [[], [2], [2]], "by its boxes it is another one"


def test_ids_that_came_with_the_boxes_are_kept_and_others_follow_them():
    far = (600.0, 0.0, 660.0, 60.0)
    frames = [
        labeled(0, ("car", RAIL), ("car", far), tracks=(7, -1)),
        labeled(1, ("car", far), ("truck", RAIL), tracks=(-1, 7)),
        labeled(2, ("car", far)),
    ]
    tracked = track(frames)
    assert [one.ids.tolist() for one in tracked.frames] == [[7, 8], [8, 7], [8]]
    assert tracked.frames[1].labels == ("car", "truck"), "so are their classes"


@pytest.mark.parametrize(
    ("rows", "tracks", "pairs"),
    [
        ([("car", 7), ("truck", 7), ("bus", 7)], 1, 2),
        ([("car", 7), ("truck", 7), ("car", 7), ("truck", -1)], 2, 2),
        ([("car", 7), None, ("van", 7), ("van", 7), ("van", 9)], 2, 1),
    ],
)
def test_tracks_and_their_pairs_are_of_the_ids_that_the_labels_have(rows, tracks, pairs):
    frames = [
        labeled(index, (row[0], RAIL), tracks=(row[1],)) if row else labeled(index)
        for index, row in enumerate(rows)
    ]
    tracked = track(frames)
    assert len({number for one in tracked.frames for number in one.ids.tolist()}) == tracks
    assert (tracked.measures["tracks"], tracked.measures["pairs"]) == (tracks, pairs)


def test_boxes_that_are_none_and_equal_ones():
    broken = [labeled(i, ("car", (np.nan, 0, 1, 1)), ("car", (50, 50, 10, 10))) for i in range(2)]
    assert ids(*broken) == [[1, 2], [3, 4]]
    assert ids() == []
    twins = [labeled(i, *[("car", RAIL)] * 5, *[("car", moved(RAIL, 3))] * 5) for i in range(12)]
    assert len({str(ids(*twins)) for _ in range(8)}) == 1, "equal boxes: the same ids every time"


def test_a_shape_is_the_mask_in_its_box():
    one = labeled(0, ("car", RAIL), ("car", (500, 10, 560, 70)))
    half = filled(RAIL)
    half[360:] = 0
    other = labeled(1, ("car", RAIL), masks=[half])
    shapes = shapes_of(one.masks, one.boxes.xyxy_px)
    assert agreements(shapes[:1], shapes[1:])[0] == 1, "wherever and however large the box is"
    cut = shapes_of(other.masks, other.boxes.xyxy_px)
    assert agreements(shapes[:1], cut)[0] == pytest.approx(0.5)
    beyond = labeled(2, ("car", (-40, -40, 40, 40)))
    inside = shapes_of(beyond.masks, beyond.boxes.xyxy_px)
    assert agreements(inside, shapes[:1])[0] == pytest.approx(0.25, abs=0.02)


def test_measures_count_what_flickers_and_what_is_missing():
    half = filled(RAIL)
    half[360:] = 0
    frames = [
        labeled(0, ("car", RAIL)), labeled(1, ("car", RAIL), masks=[half]), labeled(2),
        labeled(3, ("car", RAIL)), labeled(4, ("car", RAIL)),
    ]  # fmt: skip
    frames[2] = labeled(2, ("bus", (500, 20, 600, 90)), masks=[np.zeros(SIZE_HW, np.uint8)])
    assert track(frames).measures["tracks"] == 1, "a box without a mask is none"
    frames[2] = labeled(2)
    assert track(frames).measures == {
        "labels": 4, "tracks": 1, "pairs": 2, "agreement": 0.75, "flicker": 1, "gaps": 1,
        "gap_frames": 1, "class_changes": 0, "other_class": 0,
    }  # fmt: skip


def stored(out, frames, size):
    return labeled_runs.stored(out, "s3://b", frames, STAMP, size)


def test_ids_do_not_depend_on_how_a_sequence_was_cut_and_are_kept(memory):
    frames = [
        labeled(i, ("car", moved(RAIL, 9 * i)), *[("bus", (500, 20, 600, 90))] * (i > 3))
        for i in range(11)
    ]
    made = {size: make_tracks(memory, stored(memory, frames, size)) for size in (2, 5, 11)}
    every = {str([one.ids.tolist() for _, one in some.frames]) for some in made.values()}
    assert every == {str([[1]] * 4 + [[1, 2]] * 7)}

    manifest = stored(memory, frames, 5)
    assert read_tracks(memory, manifest) is None
    write_tracks(memory, manifest, made[5].frames, {"settings": {"tracker": "an old one"}})
    found = read_tracks(memory, manifest)
    assert found.made["settings"]["tracker"] == "an old one", "whatever made them"
    joined = found.joined(frames[6])
    assert (joined.boxes.track_ids.tolist(), joined.track_labels) == ([1, 2], ("car", "bus"))
    assert list_tracked(memory, STAMP.run_key) == {("drive", manifest.content_key)}
    partial = replace(manifest, partial=True)
    assert path_of(partial) != path_of(manifest)
    assert read_tracks(memory, partial) is None
    others = replace(manifest, chunks=manifest.chunks[:1])
    assert read_tracks(memory, others) is None, "tracks of other labels are none"


def test_a_gap_is_filled_by_a_mask_that_agrees_with_both_neighbours():
    here = [("car", moved(RAIL, 6 * i)) for i in range(6)]
    frames = [labeled(i, row) if i not in {2, 3} else labeled(i) for i, row in enumerate(here)]
    assert track(frames, 1).gaps == [], "longer than asked for"
    assert track(frames, 1).no_gaps == {"lost for more than 1 frame": 2}
    first, second = track(frames, 2).gaps
    assert (first.frame, second.frame, first.track_id, first.label) == (2, 3, 1, "car")
    np.testing.assert_allclose(second.box_px, moved(RAIL, 18), atol=0.01)
    (whole,) = shapes_of(frames[0].masks, frames[0].boxes.xyxy_px)
    assert not first.why_not_by(whole, 0.9)
    assert first.why_not_by(whole, 0.5) == "the model doubts its mask"
    assert first.why_not_by(np.zeros_like(whole), 0.9) == "no mask there"
    half = filled(RAIL)
    half[360:] = 0
    (cut,) = shapes_of(labeled(0, ("car", RAIL), masks=[half]).masks, np.array([RAIL]))
    assert first.why_not_by(cut, 0.9) == "mask unlike those before and after"
    frames[2] = labeled(2, ("person", moved(RAIL, 12)))
    covered = track(frames, 2).gaps[0]
    assert covered.why_not_by(whole, 0.9) == "another label is there"


def test_interpolated_labels_follow_a_frames_own_and_say_what_they_are(memory):
    frames = [labeled(i, ("car", RAIL), ("person", (500, 10, 530, 90))) for i in range(4)]
    frames[1] = labeled(1, ("person", (500, 10, 530, 90)))
    manifest = stored(memory, frames, 2)
    made = make_tracks(memory, manifest, 3)
    ((frame, gap),) = made.gaps
    assert (frame.index, gap.label) == (1, "car")
    more = labeled(1, ("car", RAIL))
    tracks = dict(made.frames)
    ids = np.append(tracks[frame].ids, gap.track_id)
    tracks[frame] = FrameTracks(ids, (*tracks[frame].labels, "car"))
    row = (frame, more.boxes, more.masks)
    write_tracks(memory, manifest, tracks.items(), made.made, [row])
    found = read_tracks(memory, manifest)
    joined = found.joined(frames[1])
    assert (joined.interpolated, joined.boxes.labels) == (1, ("person", "car"))
    assert joined.boxes.track_ids.tolist() == [2, 1]
    assert joined.masks.rle[1] == frames[0].masks.rle[0]
    assert found.joined(frames[0]).interpolated == 0
    assert list_tracked(memory, STAMP.run_key) == {("drive", manifest.content_key)}
    crops = crops_of(joined.boxes.xyxy_px, joined.masks.rle, joined.masks.size_hw)
    origin, judgement = Origin("run", "model", {}), compute_risk([joined])[0]
    documents = label_documents(joined, crops, origin, judgement)
    assert [one.get("source") for one in documents] == [None, "interpolated"]
    assert [one["track"] for one in documents] == ["/2", "/1"]
    name = path_of(manifest).replace(".parquet", ".interpolated.parquet")
    storage.write_bytes(storage.join(memory, name), b"damaged")
    assert read_tracks(memory, manifest) is None, "made again as a whole"
