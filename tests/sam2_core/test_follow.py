"""Objects followed through video: what `Follower` does with any model, on a simple stand-in."""

from __future__ import annotations

import numpy as np
import pytest

from sam2_core.backends.follow_backends import FollowBackend, overlaps
from sam2_core.follow import Follower, FollowRules

SIZE, GRID = 64, 16
CAR, VAN = [0, 0, 24, 24], [36, 36, 60, 60]


class StandIn(FollowBackend):
    """Boxes become rectangles, which stay where they are; on a black image nothing is there.

    A pointer is the number of the last mask that was not empty.
    """

    image_size, width = SIZE, 1

    def __init__(self, predicted_iou: float = 0.9) -> None:
        self.predicted_iou = predicted_iou
        self.calls: list[tuple[str, dict]] = []
        self.masks: list[np.ndarray] = []

    def encode(self, image):
        self.black = not image.any()
        return dict.fromkeys(("embedding", "high_res_s0", "high_res_s1"), np.zeros(0))

    def run(self, graph, inputs):
        self.calls.append((graph, dict(inputs)))
        if graph == "memory_encoder":
            return [inputs["logits"]]
        if graph == "memory_attention":
            ages = inputs["pointer_ages"]
            return [inputs["pointers"][np.arange(len(ages)), ages.argmin(1), 0].astype(int)]
        if not len(inputs["conditioned"]):
            cell = np.arange(GRID) * 4 + 2
            low, high = inputs["points"][:, 0, :, None], inputs["points"][:, 1, :, None]
            inside = (cell > low) & (cell < high)
            logits = np.where(inside[:, 1, :, None] & inside[:, 0, None], 5, -5)
            pointers = len(self.masks) + np.arange(len(logits))
            self.masks.extend(logits)
        else:
            pointers = inputs["conditioned"][inputs["conditioned_index"]]
            logits = np.stack([self.masks[number] for number in pointers])
        if self.black:
            logits = np.full_like(logits, -1024)
        score = np.full(len(logits), -1 if self.black else 1, np.float32)
        iou = np.full(len(logits), self.predicted_iou, np.float32)
        return [logits.astype(np.float32), iou, score, pointers.astype(np.float32)[:, None]]

    def stacked(self, memories):
        return np.array(memories)

    def rows(self, array):
        return list(array)

    def to_numpy(self, array):
        return array


WHITE = np.full((SIZE, SIZE, 3), 255, np.uint8)
BLACK = np.zeros_like(WHITE)


def boxes(*some):
    return np.array(some, np.float32).reshape(-1, 4)


def shifted(box, pixels):
    return [box[0] + pixels, box[1], box[2] + pixels, box[3]]


def test_a_detection_joins_the_object_that_it_covers_and_others_begin_objects():
    follower = Follower(StandIn())
    first = follower.step(WHITE, boxes(CAR, [np.nan, 0, 9, 9], VAN))
    assert first.tracks.tolist() == [0, 1]
    assert first.detections.tolist() == [0, 2]  # the invalid box is a row that begins nothing
    missed = follower.step(WHITE, boxes(shifted(VAN, 4)))
    assert missed.tracks.tolist() == [0, 1]
    assert missed.detections.tolist() == [-1, 0]
    assert missed.undetected_frames.tolist() == [1, 0]
    assert overlaps(list(missed.masks.logits), list(first.masks.logits))[0].tolist() == [1, 0]
    new = follower.step(WHITE, boxes(VAN, CAR, [4, 40, 20, 60]))
    assert new.tracks.tolist() == [0, 1, 2]
    assert new.detections.tolist() == [1, 0, 2]


def test_what_nearly_covers_an_objects_last_mask_is_that_object_which_is_not_tracked():
    backend = StandIn()
    follower = Follower(backend, FollowRules(refresh_frames=2))
    follower.step(WHITE, boxes(CAR, VAN))
    for frame in (1, 2, 3):
        moved = shifted(CAR, frame)
        backend.calls.clear()
        shown = follower.step(WHITE, boxes(VAN, moved) if frame < 3 else boxes(moved))
        recalled = [
            len(one["memories"]) for name, one in backend.calls if name == "memory_attention"
        ]
        assert recalled == ([] if frame < 3 else [1])  # the van alone
        assert shown.detections.tolist() == ([1, 0] if frame < 3 else [0, -1])
        assert (shown.masks.logits[0] > 0).any(0).nonzero()[0].min() == (frame + 2) // 4
        encoded = [
            one["prompted"].tolist() for name, one in backend.calls if name == "memory_encoder"
        ]
        assert encoded == ([] if frame < 3 else [[True]] * 3)  # what is read, when it is read
    assert [list(track.conditioning) for track in follower.tracks.values()] == [[0, 2], [0, 2]]
    assert all(list(track.recent) == [1, 3] for track in follower.tracks.values())


def test_an_object_is_conditioned_again_where_a_detection_disagrees_or_long_after():
    follower = Follower(StandIn(), FollowRules(refresh_frames=4, still_iou=0.99))
    follower.step(WHITE, boxes(CAR))
    moved = shifted(CAR, 4)
    for frame, box, conditioned in (
        (1, CAR, [0]),
        (2, moved, [0, 2]),
        (3, moved, [0, 2]),
        (5, None, [0, 2]),
        (6, moved, [0, 2, 6]),
    ):
        while follower.frame < frame:
            shown = follower.step(WHITE, None if box is None else boxes(box))
        assert list(follower.tracks[0].conditioning) == conditioned
        if frame == 2:  # the detection's mask is the object's
            assert (shown.masks.logits[0] > 0).any(0).nonzero()[0].min() == 1


def test_an_absent_object_stays_for_a_while_and_its_name_is_not_given_again():
    follower = Follower(StandIn(), FollowRules(absent_frames=3))
    follower.step(WHITE, boxes(CAR))
    absent = [follower.step(BLACK, boxes()) for _ in range(3)]
    assert [one.masks.object_score.tolist() for one in absent] == [[-1], [-1], []]
    assert follower.step(BLACK, boxes(CAR)).tracks.tolist() == []  # nothing is seen there
    assert follower.step(WHITE, boxes(CAR)).tracks.tolist() == [1]


def test_objects_that_no_detector_confirms_end_and_there_are_never_too_many():
    follower = Follower(StandIn(), FollowRules(undetected_frames=3, objects=2))
    follower.step(WHITE, boxes(CAR))
    shown = follower.step(WHITE, boxes(VAN, [0, 40, 20, 60]))
    assert shown.tracks.tolist() == [1, 2]  # the car was detected longest ago
    counts = [len(follower.step(WHITE, boxes()).tracks) for _ in range(4)]
    assert counts == [2, 2, 0, 0]


def test_of_an_object_no_more_is_held_than_is_read():
    backend = StandIn()
    follower = Follower(backend, FollowRules(refresh_frames=2))
    for frame in range(60):
        follower.step(WHITE, boxes(CAR) if frame % 2 else None)
    (track,) = follower.tracks.values()
    assert len(track.conditioning) == 8
    assert max(follower.frame - frame for frame in track.recent) <= 15
    held = [frame for frame, moment in track.recent.items() if moment.memory is not None]
    assert max(follower.frame - frame for frame in held) <= 6
    read = [inputs for graph, inputs in backend.calls if graph == "memory_attention"][-1]
    assert read["memory_places"].shape[1] == 8 + 3  # every second frame conditions
    assert read["memories"].shape[1] == 8 + 3
    assert read["pointer_ages"].shape[1] == 8 + 7


def test_a_prompt_on_a_tracked_frame_corrects_and_one_before_conditions():
    backend = StandIn()
    follower = Follower(backend)
    follower.see(WHITE)
    points, labels = boxes(CAR).reshape(1, 2, 2), np.array([[2, 3]], np.int32)
    assert follower.condition(points, labels) == [0]
    assert not backend.calls[0][1]["has_mask"].any()
    follower.see(WHITE)
    follower.track()
    click, positive = np.full((1, 1, 2), 9, np.float32), np.array([[1]], np.int32)
    follower.condition(click, positive, [0])
    graph, inputs = backend.calls[-1]
    assert graph == "memory_decoder"
    assert inputs["has_mask"].all()
    assert inputs["ambiguous"].all()  # one click
    assert inputs["labels"].tolist() == [[1, -1]]
    assert follower.tracks[0].recent[1].mask.prompted
    assert list(follower.tracks[0].conditioning) == [0]
    follower.see(WHITE)
    follower.condition(click, positive, [0])
    assert list(follower.tracks[0].conditioning) == [0, 2]
    with pytest.raises(ValueError, match="empty mask"):
        follower.condition_on_masks(np.zeros((1, 9, 9), np.bool_), [0])


@pytest.mark.parametrize("count", [1, 4, 5, 10])
def test_objects_run_in_batches(count):
    backend = StandIn()
    follower = Follower(backend)
    follower.see(WHITE)
    points = np.tile(boxes(CAR).reshape(1, 2, 2), (count, 1, 1))
    names = follower.condition(points, np.tile(np.array([[2, 3]], np.int32), (count, 1)))
    assert names == list(range(count))
    follower.see(WHITE)
    follower.track()
    sizes = [len(inputs["pointers"]) for graph, inputs in backend.calls if "attention" in graph]
    assert sum(sizes) == count
    assert max(sizes) <= 4
    assert len(follower.followed().tracks) == count
