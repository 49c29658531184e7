"""One object over time: joined by motion and overlap, or by a tracker's ids."""

import numpy as np

from sam2_core.types import Boxes
from tasks.dataset.objects import MOST_MISSED, ObjectLinker

RAIL = (0.0, 300.0, 400.0, 420.0)


def boxes(*rows: tuple[str, tuple[float, ...]], tracks: tuple[int, ...] = ()) -> Boxes:
    px = np.array([box for _, box in rows], np.float32).reshape(-1, 4)
    ids = np.array(tracks, np.int64) if tracks else None
    return Boxes(px, [0.5] * len(rows), tuple(name for name, _ in rows), ids)


def link(frames: list[Boxes]) -> list[list[str]]:
    linker = ObjectLinker()
    return [
        linker.link(one, [f"{frame}-{row}" for row in range(len(one))])
        for frame, one in enumerate(frames)
    ]


def moved(box: tuple[float, ...], x: float) -> tuple[float, ...]:
    return (box[0] + x, box[1], box[2] + x, box[3])


def test_a_guard_rail_of_a_hundred_frames_is_one_object() -> None:
    frames = [boxes(("truck", moved(RAIL, 3 * i % 7)), ("car", RAIL)) for i in range(102)]
    assert link(frames) == [["0-0", "0-1"]] * 102


def test_what_moves_steadily_is_followed_even_past_its_own_width() -> None:
    start = (0.0, 100.0, 40.0, 140.0)
    speeds = [0, 8, 24, 48, 80, 120, 168, 224]  # steps grow to 56 px, the box is 40 px wide
    frames = [boxes(("car", moved(start, x))) for x in speeds]
    assert {name for names in link(frames) for name in names} == {"0-0"}
    jumps = [boxes(("car", moved(start, x))) for x in (0, 56)]
    assert link(jumps) == [["0-0"], ["1-0"]], "without a motion known before it is another one"


def test_an_object_may_be_missed_for_some_frames_and_not_for_ever() -> None:
    here, gone = boxes(("truck", RAIL)), boxes()
    assert link([here, *[gone] * MOST_MISSED, here])[-1] == ["0-0"]
    assert link([here, *[gone] * (MOST_MISSED + 1), here])[-1] == [f"{MOST_MISSED + 2}-0"]


def test_the_pairs_with_the_largest_overlap_win_whatever_the_order() -> None:
    first = boxes(("car", (0, 0, 100, 100)), ("car", (60, 0, 160, 100)))
    second = boxes(("car", (62, 0, 162, 100)), ("car", (2, 0, 102, 100)))
    assert link([first, second])[1] == ["0-1", "0-0"]
    assert link([first, boxes(("bus", (0, 0, 100, 100)))])[1] == ["1-0"], "another class"


def test_a_trackers_ids_decide_where_there_are_any() -> None:
    far = (900.0, 0.0, 960.0, 60.0)
    frames = [
        boxes(("car", RAIL), ("car", far), tracks=(7, -1)),
        boxes(("car", far), ("car", RAIL), tracks=(7, -1)),
    ]
    assert link(frames) == [["0-0", "0-1"], ["0-0", "1-1"]]


def test_boxes_that_are_none_are_objects_of_their_own() -> None:
    broken = boxes(("car", (np.nan, 0, 1, 1)), ("car", (50, 50, 10, 10)))
    assert link([broken, broken]) == [["0-0", "0-1"], ["1-0", "1-1"]]
