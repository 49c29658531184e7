"""Track ids and classes along tracks, for the labels of one camera sequence.

The tracker goes by boxes. Masks are the second cue: they part what the tracker has joined although
the two masks are of different things, and join what it has lost although the mask is where its
object was going. The same labels give the same ids, wherever and however often this is done.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sam2_core.types import IntArray
from tasks.risk.geometry import Numbers, best_pairs, shared_box_areas
from tasks.store.manifests import Fresh, Manifest, labels_of
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import FrameTracks
from tasks.tracks.gaps import Gap, gaps_of
from tasks.tracks.shapes import agreements, extents_of, placed_ious, placed_px
from tasks.tracks.sightings import Sightings, group_of, sightings_of, tracker_settings
from tasks.types import FrameRef

# Two masks of successive sightings that agree less are of different things.
LEAST_AGREEMENT = 0.1
# Frames that a lost object may be gone for, and how well its mask must fit where it was going.
REACH_FRAMES, LEAST_PLACED_IOU = 12, 0.3
_MOTION_SIGHTINGS = 3  # the last ones, of which an object's motion is taken


@dataclass(frozen=True, eq=False)
class Tracked:
    """The tracks of one camera sequence.

    Attributes:
        frames: of each frame, in order.
        measures: see `tasks.tracks.linking`; `other_class`: labels of tracks of another class.
        gaps: of at most as many frames as asked for.
        no_gaps: masks that are missing along tracks and are in no gap, by reason.

    """

    frames: Sequence[FrameTracks]
    measures: dict[str, Any]
    gaps: Sequence[Gap] = ()
    no_gaps: Mapping[str, int] = field(default_factory=dict)


def settings() -> dict[str, Any]:
    """Return what decides the ids, as plain JSON values."""
    return {
        **tracker_settings(),
        "least_agreement": LEAST_AGREEMENT,
        "reach_frames": REACH_FRAMES,
        "least_placed_iou": LEAST_PLACED_IOU,
    }


def track(frames: Iterable[LabeledFrame], gap_frames: int = 0) -> Tracked:
    """Track the labels of one camera sequence.

    Ids that came with the boxes are kept, and so are the classes along them; other ids follow
    them, in the order in which objects are first seen.

    Args:
        frames: every frame of the camera in order, failed ones too; looked at once, one by one.
        gap_frames: how long the gaps are at most that are returned.

    """
    seen = sightings_of(frames)
    chains = _joined(seen, _chains(seen))
    ids = _numbered(seen, chains)
    labels = _smoothed(seen, chains)
    edges = np.cumsum([0, *seen.counts])
    found = [
        FrameTracks(ids[start:stop], tuple(labels[start:stop]))
        for start, stop in itertools.pairwise(edges.tolist())
    ]
    smoothed = {"other_class": sum(map(operator.ne, labels, seen.labels))}
    measures = measured(seen, chains) | smoothed
    if not gap_frames:
        return Tracked(found, measures)
    return Tracked(found, measures, *gaps_of(seen, chains, ids, labels, gap_frames))


def _chains(seen: Sightings) -> IntArray:
    """Give equal numbers to the sightings of one object, int64 (S,).

    They are the tracker's where masks agree.
    Boxes with ids of their own are joined by id and class.
    """
    names: dict[Any, int] = {}
    keys = [
        names.setdefault(("given", label, given) if given >= 0 else number, len(names))
        if given >= 0 or number >= 0
        else names.setdefault(("alone", index), len(names))
        for index, (label, given, number) in enumerate(
            zip(seen.labels, seen.given.tolist(), seen.number.tolist(), strict=True)
        )
    ]
    key = np.array(keys, np.int64)
    order = np.lexsort((np.arange(len(key)), key))
    one, other = order[:-1], order[1:]
    agree = agreements(seen.shapes[one], seen.shapes[other]) >= LEAST_AGREEMENT
    empty = ~(seen.shapes[one].any(axis=1) & seen.shapes[other].any(axis=1))
    goes_on = (key[one] == key[other]) & (agree | empty | (seen.given[one] >= 0))
    chains = np.zeros(len(key), np.int64)
    chains[order] = np.cumsum(np.r_[True, ~goes_on])[: len(key)] - 1
    return chains


def _joined(seen: Sightings, chains: IntArray) -> IntArray:
    """Join chains that begin with ones that ended shortly before and were going there.

    Frame by frame, so that what has been joined shows the motion for what comes next.
    """
    members = _members(chains)
    starting: dict[int, list[int]] = {}
    for chain, rows in members.items():
        if seen.number[rows[0]] >= 0:
            starting.setdefault(int(seen.frame[rows[0]]), []).append(chain)
    recent = {chain: rows[-_MOTION_SIGHTINGS:].tolist() for chain, rows in members.items()}
    groups, extents = _groups(seen), extents_of(seen.shapes)
    ending: dict[int, set[int]] = defaultdict(set)
    goes_on = np.arange(max(members, default=-1) + 1)
    for frame, heads in sorted(starting.items()):
        reach = range(frame - REACH_FRAMES, frame)
        lost = sorted(one for end in reach for one in ending.get(end, ()))
        new = np.array([members[head][0] for head in heads])
        pairs = _pairs(seen, groups, extents, [recent[one] for one in lost], new)
        tails = {heads[j]: lost[i] for i, j in pairs.items()}
        for head in heads:
            tail = tails.get(head, head)
            if tail != head:
                goes_on[head] = tail
                ending[int(seen.frame[recent[tail][-1]])].remove(tail)
                recent[tail] = [*recent[tail], *recent[head]][-_MOTION_SIGHTINGS:]
            ending[int(seen.frame[recent[tail][-1]])].add(tail)
    return goes_on[chains]


def _members(chains: IntArray) -> dict[int, IntArray]:
    """Sightings of each chain in order."""
    order = np.lexsort((np.arange(len(chains)), chains))
    starts = np.flatnonzero(np.diff(chains[order], prepend=-1))
    parts = np.split(order, starts[1:]) if len(order) else []
    return {int(chains[rows[0]]): rows for rows in parts}


def _groups(seen: Sightings) -> IntArray:
    """Equal numbers for sightings of classes among which an object may change, int64 (S,)."""
    group = {label: group_of(label) for label in set(seen.labels)}
    number = {name: index for index, name in enumerate(sorted(set(group.values())))}
    return np.array([number[group[label]] for label in seen.labels], np.int64)


def _pairs(
    seen: Sightings,
    groups: IntArray,
    extents: Numbers,
    lost: Sequence[Sequence[int]],
    new: IntArray,
) -> dict[int, int]:
    """Pair lost chains with such as begin, the best fits first, each once.

    Args:
        seen: all sightings.
        groups: int64 (S,), of classes.
        extents: float64 (S, 4), of masks in their boxes.
        lost: of each lost chain its last sightings.
        new: int64 (M,), first sightings of the chains that begin in a frame.

    Returns:
        Which of `lost` goes on with which of `new`.

    """
    if not lost:
        return {}
    last = np.array([rows[-1] for rows in lost])
    earlier = np.array([rows[0] for rows in lost])
    expected = _expected_px(seen, earlier, last, int(seen.frame[new[0]]))
    places = placed_px(extents[last], expected), placed_px(extents[new], seen.boxes_px[new])
    near = shared_box_areas(*places) > 0  # of the others no two masks can have a point in common
    one, other = np.nonzero(near & (groups[last][:, None] == groups[new]))
    there = new[other]
    fits = placed_ious(
        seen.shapes[last[one]], expected[one], seen.shapes[there], seen.boxes_px[there]
    )
    fitting = fits >= LEAST_PLACED_IOU
    return best_pairs(fits[fitting], one[fitting], other[fitting])


def _expected_px(seen: Sightings, earlier: IntArray, last: IntArray, frame: int) -> Numbers:
    """Boxes of objects in a later frame, as they moved before; their size stays as it is.

    Args:
        seen: all sightings.
        earlier: int64 (N,), of each object the sighting since which its motion is taken.
        last: int64 (N,), its last one.
        frame: the later frame.

    Returns:
        float64 (N, 4).

    """
    boxes = seen.boxes_px[last]
    passed = (seen.frame[last] - seen.frame[earlier])[:, None]
    moved = boxes - seen.boxes_px[earlier]
    step = (moved[:, :2] + moved[:, 2:]) / 2 / np.maximum(passed, 1)
    return np.asarray(boxes + np.tile(step * (frame - seen.frame[last])[:, None], 2))


def _numbered(seen: Sightings, chains: IntArray) -> IntArray:
    """Give ids: those that came with boxes, the others after them by first sighting."""
    following = int(seen.given.max(initial=0)) + 1
    ids: dict[int, int] = {}
    found = seen.given.copy()
    for index, chain in enumerate(chains.tolist()):
        if found[index] < 0:
            found[index] = ids.setdefault(chain, following + len(ids))
    return found


def _smoothed(seen: Sightings, chains: IntArray) -> list[str]:
    """Class of each sighting's track: the one with the largest sum of scores, each at least 0.01.

    Of equal ones, the first by name.
    """
    votes: dict[int, dict[str, float]] = {}
    for chain, label, score in zip(chains.tolist(), seen.labels, seen.scores.tolist(), strict=True):
        votes.setdefault(chain, defaultdict(float))[label] += max(score, 0.01)
    best = {
        chain: min(count, key=lambda label: (-count[label], label))
        for chain, count in votes.items()
    }
    return [best[chain] for chain in chains.tolist()]


# Masks of successive frames that agree less, once their boxes lie on each other, flicker.
STEADY = 0.75
SHORT_GAP_FRAMES = 3


def measured(seen: Sightings, chains: IntArray) -> dict[str, Any]:
    """Measure a camera sequence.

    Args:
        seen: its labels.
        chains: int64 (S,), equal for labels of one object.

    Returns:
        `labels`; `tracks` that have a mask; `pairs` of an object's masks in successive frames,
        their `agreement` (the mean IoU after their boxes were laid on each other) and how many
        `flicker` (agree less than 0.75); `gaps` of at most 3 frames within tracks and `gap_frames`
        in them; and `class_changes` along tracks.

    """
    order = np.lexsort((np.arange(len(chains)), chains))
    one, other = order[:-1], order[1:]
    same = chains[one] == chains[other]
    one, other = one[same], other[same]
    steps = seen.frame[other] - seen.frame[one]
    masks = seen.shapes[one].any(axis=1) & seen.shapes[other].any(axis=1)
    beside = (steps == 1) & masks
    agree = agreements(seen.shapes[one[beside]], seen.shapes[other[beside]])
    short = (steps > 1) & (steps <= SHORT_GAP_FRAMES + 1)
    labels = np.array(seen.labels, object)
    return {
        "labels": len(seen),
        "tracks": len(set(chains[seen.shapes.any(axis=1)].tolist())),
        "pairs": len(agree),
        "agreement": round(float(agree.mean()), 4) if len(agree) else None,
        "flicker": int((agree < STEADY).sum()),
        "gaps": int(short.sum()),
        "gap_frames": int((steps[short] - 1).sum()),
        "class_changes": int((labels[one] != labels[other]).sum()),
    }


@dataclass(frozen=True, eq=False)
class MadeTracks:
    """The tracks of a sequence.

    Attributes:
        frames: every frame of it and its tracks, one camera after another.
        made: what made them, and `measures` by camera; plain JSON values.
        gaps: where an object was lost for a few frames, with the frames.
        no_gaps: masks that are missing along tracks and are in no gap, by reason.

    """

    frames: list[tuple[FrameRef, FrameTracks]]
    made: dict[str, Any]
    gaps: list[tuple[FrameRef, Gap]]
    no_gaps: Counter[str]

    @property
    def by_frame(self) -> dict[tuple[str, int], FrameTracks]:
        """Return them by camera and index, as `StoredTracks` has them."""
        return {(frame.camera, frame.index): one for frame, one in self.frames}


def make_tracks(
    out_uri: str, manifest: Manifest, gap_frames: int = 0, fresh: Fresh | None = None
) -> MadeTracks:
    """Track the labels of a sequence, camera by camera; of masks only samples are kept in memory.

    Args:
        out_uri: the run's storage.
        manifest: which labels.
        gap_frames: how long the gaps are at most that are returned.
        fresh: labels that are in memory still.

    Raises:
        NotFoundError, IncompleteArtifactError: labels are gone or damaged.

    """

    def looked_at(camera: str, refs: list[FrameRef], failed: set[int]) -> Iterator[LabeledFrame]:
        """Yield a camera's frames in order, remembering which they are, and which have failed."""
        for chunk in manifest.chunks:
            if chunk.camera == camera:
                for one in labels_of(out_uri, manifest, chunk, fresh):
                    if one.failure:
                        failed.add(len(refs))
                    refs.append(one.frame)
                    yield one

    frames: list[tuple[FrameRef, FrameTracks]] = []
    gaps: list[tuple[FrameRef, Gap]] = []
    no_gaps: Counter[str] = Counter()
    measures = {}
    for camera in dict.fromkeys(chunk.camera for chunk in manifest.chunks):
        refs: list[FrameRef] = []
        failed: set[int] = set()
        tracked = track(looked_at(camera, refs, failed), gap_frames)
        there = [(refs[gap.frame], gap) for gap in tracked.gaps if gap.frame not in failed]
        gaps += there
        no_gaps.update(tracked.no_gaps)
        no_gaps["the frame failed"] += len(tracked.gaps) - len(there)
        frames += zip(refs, tracked.frames, strict=True)
        measures[camera] = tracked.measures
    return MadeTracks(frames, {"settings": settings(), "measures": measures}, gaps, +no_gaps)
