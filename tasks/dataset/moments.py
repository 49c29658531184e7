"""Which frames of several cameras show the same moment: those nearest in time, not in number.

Cameras run at different rates: frame 10 of one at 12 Hz and of another at 6 Hz are 0.8 s apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sam2_core.types import IntArray
from tasks.types import FrameRef

# Frames further apart than this are no moment, however slow the cameras are.
MOST_NS = 500_000_000


def moments_of(frames: Sequence[FrameRef]) -> list[int]:
    """Find for each frame of a sequence the one that stands for its moment: int index, N of them.

    Of cameras with timestamps the one with the most frames stands for the moments. Each frame of
    another camera joins the nearest of them that is at most half of that camera's usual distance
    between frames away, and at most 0.5 s; each moment has at most one frame of a camera. What is
    left joins among itself in the same way. Cameras without timestamps are joined by index.
    """
    cameras: dict[str, list[int]] = {}
    for place, frame in enumerate(frames):
        cameras.setdefault(frame.camera, []).append(place)
    timed, anchor = {}, list(range(len(frames)))
    first_of_index: dict[int, int] = {}
    for camera in sorted(cameras):
        places = np.array(cameras[camera])
        times = [frames[place].timestamp_ns for place in cameras[camera]]
        if None in times:
            for place in cameras[camera]:
                anchor[place] = first_of_index.setdefault(frames[place].index, place)
        else:
            values = np.array(times, np.int64)
            order = np.lexsort((places, values))
            timed[camera] = (places[order], values[order])
    _join_by_time(timed, anchor)
    return anchor


def _join_by_time(cameras: Mapping[str, tuple[IntArray, IntArray]], anchor: list[int]) -> None:
    """Write into `anchor`; `cameras` are the places of frames and their times, ascending."""
    tolerance_ns = {camera: _tolerance_ns(times) for camera, (_, times) in cameras.items()}
    left = dict(cameras)
    while len(left) > 1:
        densest = min(left, key=lambda camera: (-len(left[camera][0]), camera))
        places, times = left.pop(densest)
        for camera, (others, their_times) in list(left.items()):
            pairs = _nearest_pairs(times, their_times, tolerance_ns[densest])
            for one, other in pairs.items():
                anchor[int(others[other])] = int(places[one])
            alone = np.setdiff1d(np.arange(len(others)), list(pairs.values()))
            if len(alone):
                left[camera] = (others[alone], their_times[alone])
            else:
                del left[camera]


def _tolerance_ns(times_ns: IntArray) -> int:
    if len(times_ns) < 2:
        return MOST_NS
    return min(int(np.median(np.diff(times_ns))) // 2, MOST_NS)


def _nearest_pairs(times: IntArray, others: IntArray, tolerance_ns: int) -> dict[int, int]:
    """Pair two ascending lists one to one, the nearest first; equal distances: the earlier."""
    low = np.searchsorted(times, others - tolerance_ns, side="left")
    high = np.searchsorted(times, others + tolerance_ns, side="right")
    counts = high - low
    other = np.repeat(np.arange(len(others)), counts)
    start = np.repeat(low - (np.cumsum(counts) - counts), counts)
    one = start + np.arange(len(other))
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for at in np.lexsort((one, other, np.abs(times[one] - others[other]))).tolist():
        i, j = int(one[at]), int(other[at])
        if i not in pairs and j not in taken:
            pairs[i] = j
            taken.add(j)
    return pairs
