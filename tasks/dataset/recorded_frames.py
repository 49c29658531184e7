"""The frames that labels are of: read from artifacts, their pictures, and the moments they show.

Names in rows are worth nothing until they equal the manifest's: anyone may have written the files.
Labels name their frames by address and version. A file that has changed since is another picture,
and labels are never shown on it; one that cannot be fetched leaves labels without a picture.
Whatever opens the frames of labels again, opens them through `find_pictures`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sam2_core.types import IntArray
from tasks.dataset.documents import sample_id
from tasks.frames.download import ExtractedFrames, download, find_cached, take_intact
from tasks.frames.identity import file_version, frame_key, is_below, is_file_here, part_of
from tasks.frames.images import is_picture
from tasks.frames.listing import stat_file
from tasks.frames.sources import refuse_unknown
from tasks.frames.video import expand_videos, footage_of
from tasks.risk.geometry import best_pairs
from tasks.store import artifacts, storage
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import ChunkRecord, Fresh, Manifest, labels_of
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import StoredTracks
from tasks.types import FrameRef

_SAME, _OTHER, _GONE = "same", "other", "gone"


@dataclass(frozen=True)
class Pictures:
    """Where pictures of frames are.

    Attributes:
        paths: file on this machine by the frame's address, where it is a copy.
        changed: addresses where there is another content now than the one that was labeled, or
            none that is a picture of its size.

    """

    paths: dict[str, str]
    changed: frozenset[str]

    def of(self, frame: FrameRef) -> Path | None:
        """Return a frame's picture: a copy, or the file where it lies; None where there is none."""
        if frame.uri in self.paths:
            return Path(self.paths[frame.uri])
        here = storage.local_path(frame.uri) if is_file_here(frame.uri) else None
        return here if here and here.is_file() else None


def find_pictures(recorded: Sequence[FrameRef], known: Collection[str] = ()) -> Pictures:
    """Find the pictures of frames; what is not on this machine is brought, and nothing but that.

    Args:
        recorded: frames as their labels name them.
        known: addresses of frames that may be read, wherever they are.

    Raises:
        UnknownSourceError: one lies below no source that this machine knows; nothing was read.
        CacheError: the cache cannot be written.

    """
    refuse_unknown(recorded, known)
    elsewhere, changed = [], set()
    of_videos: dict[tuple[str, str, str], dict[int, FrameRef]] = {}
    for frame in recorded:
        part = part_of(frame.uri)
        if is_file_here(frame.uri):
            version = file_version(storage.local_path(frame.uri))
            if version is not None and frame.etag != version:
                changed.add(frame.uri)
        elif part is None or part.is_member:
            elsewhere.append(frame)
        else:
            video = (part.file_uri, part.stream, frame.etag)
            of_videos.setdefault(video, {})[part.number] = frame
    images, videos = _fetch_images(elsewhere), _fetch_videos(of_videos)
    found = Pictures(images.paths | videos.paths, images.changed | videos.changed | changed)
    # What failed has no size: it may have been no picture when it was labeled, and is not shown.
    sized = [one for one in recorded if one.size_hw != (0, 0) and one.uri not in found.changed]
    fits = storage.at_once(lambda one: _is_what_it_was(found.of(one), one.size_hw), sized)
    others = {one.uri for one, is_same in zip(sized, fits, strict=True) if not is_same}
    return replace(found, changed=found.changed | others)


def _is_what_it_was(picture: Path | None, size_hw: tuple[int, int]) -> bool:
    return picture is None or is_picture(picture, size_hw)


def _fetch_images(images: Sequence[FrameRef]) -> Pictures:
    """Bring images that are in the cache, or still what they were when they were labeled."""
    states = storage.at_once(_state, images)
    same = [frame for frame, state in zip(images, states, strict=True) if state == _SAME]
    changed = {frame.uri for frame, state in zip(images, states, strict=True) if state == _OTHER}
    paths = {one.uri: one.local_path for one in download(same) if isinstance(one, FrameRef)}
    return Pictures(paths, frozenset(changed))


def _state(frame: FrameRef) -> str:
    """Say whether the content that was labeled can be had, is another one by now, or is gone."""
    copy = find_cached(frame.uri, frame.etag)
    if copy and frame.etag and frame.size_bytes in {0, copy.stat().st_size}:
        return _SAME
    part = part_of(frame.uri)
    try:
        now = stat_file(part.file_uri if part else frame.uri)
    except storage.NotFoundError:
        return _GONE
    if now is None:
        return _GONE
    sizes = part is not None or frame.size_bytes in {0, now.size_bytes} or not now.size_bytes
    return _SAME if now.etag == frame.etag and sizes else _OTHER


def _fetch_videos(videos: Mapping[tuple[str, str, str], dict[int, FrameRef]]) -> Pictures:
    """Take frames out of their videos, where those are still what they were."""
    paths: dict[str, str] = {}
    changed: set[str] = set()
    for (uri, stream, etag), wanted in videos.items():
        here = _extracted(uri, stream, etag, wanted)
        if len(here) < len(wanted):
            first = next(iter(wanted.values()))
            state = _state(replace(first, uri=uri, size_bytes=0))
            if state == _OTHER:
                changed |= {frame.uri for number, frame in wanted.items() if number not in here}
            if state == _SAME:
                expand_videos([footage_of(first, wanted)])
                here = _extracted(uri, stream, etag, wanted)
        paths |= {wanted[number].uri: str(path) for number, path in here.items()}
    return Pictures(paths, frozenset(changed))


def _extracted(uri: str, stream: str, etag: str, numbers: Iterable[int]) -> dict[int, Path]:
    """Find those frames of a video or a recording that are in the cache, and undamaged."""
    there = ExtractedFrames(uri, etag, stream).files()
    return {n: there[n] for n in numbers if n in there and take_intact(there[n])}


def recorded_frames(out_uri: str, manifest: Manifest, fresh: Fresh | None = None) -> list[FrameRef]:
    """Read which frames a sequence's labels are of.

    Raises:
        IncompleteArtifactError: a chunk is damaged, or names frames of something else.

    """
    recorded: list[FrameRef] = []
    for chunk in manifest.chunks:
        stored = (fresh or {}).get(chunk.stem)
        frames = [one.frame for one in stored.labeled] if stored else None
        frames = frames or artifacts.read_frames(out_uri, chunk.stem, chunk.key)
        recorded += [_of_manifest(frame, chunk, manifest) for frame in frames]
    return recorded


def recorded_labels(
    out_uri: str, chunk: ChunkRecord, manifest: Manifest, fresh: Fresh | None = None
) -> list[LabeledFrame]:
    """Read the labels of a chunk; raises as `recorded_frames`."""
    labeled = labels_of(out_uri, manifest, chunk, fresh)
    for one in labeled:
        _of_manifest(one.frame, chunk, manifest)
    return labeled


def recorded_parts(
    out_uri: str,
    manifest: Manifest,
    camera: str,
    tracks: StoredTracks | None,
    fresh: Fresh | None = None,
) -> Iterator[list[LabeledFrame]]:
    """Read a camera's labels chunk by chunk, with their tracks; raises as `recorded_frames`."""
    for chunk in manifest.chunks:
        if chunk.camera == camera:
            labeled = recorded_labels(out_uri, chunk, manifest, fresh)
            yield [tracks.joined(one) for one in labeled] if tracks else labeled


def _of_manifest(frame: FrameRef, chunk: ChunkRecord, manifest: Manifest) -> FrameRef:
    """Refuse rows that name another sequence or camera, or a file elsewhere on this machine."""
    wrong = (frame.sequence_id, frame.camera) != (manifest.sequence_id, chunk.camera)
    if wrong or (storage.is_local(frame.uri) and not is_below(frame.uri, manifest.frames_uri)):
        raise IncompleteArtifactError(
            f"{chunk.stem} holds labels of {frame.sequence_id!r}, camera {frame.camera!r}, frame "
            f"{storage.redact(frame.uri)}: which is not a frame of sequence {manifest.sequence_id}"
        )
    return frame


@dataclass(frozen=True, eq=False)
class Placement:
    """Where frames of a sequence go in a dataset.

    Attributes:
        paths: file that is shown, by the frame's address, where it is a copy.
        moments: id of the sample that stands for a frame's moment, by the frame's sample id.
        sample_ids: of all frames.
        changed: of those that are left out.

    """

    paths: Mapping[str, str] = field(default_factory=dict)
    moments: Mapping[Any, Any] = field(default_factory=dict)
    sample_ids: set[Any] = field(default_factory=set)
    changed: set[Any] = field(default_factory=set)


def placement_of(recorded: Sequence[FrameRef], frames_uri: str) -> Placement:
    """Find frames' pictures and moments before their labels are read; raises as `find_pictures`."""
    pictures = find_pictures(recorded)
    ids = [sample_id(frame_key(frame, frames_uri)) for frame in recorded]
    moments = dict(zip(ids, (ids[anchor] for anchor in moments_of(recorded)), strict=True))
    changed = {
        identity
        for identity, frame in zip(ids, recorded, strict=True)
        if frame.uri in pictures.changed
    }
    return Placement(pictures.paths, moments, set(ids), changed)


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
    for row, frame in enumerate(frames):
        cameras.setdefault(frame.camera, []).append(row)
    timed, anchor = {}, list(range(len(frames)))
    first_of_index: dict[int, int] = {}
    for camera in sorted(cameras):
        rows = np.array(cameras[camera])
        times = [frames[row].timestamp_ns for row in cameras[camera]]
        if None in times:
            for row in cameras[camera]:
                anchor[row] = first_of_index.setdefault(frames[row].index, row)
        else:
            values = np.array(times, np.int64)
            order = np.lexsort((rows, values))
            timed[camera] = (rows[order], values[order])
    _join_by_time(timed, anchor)
    return anchor


def _join_by_time(cameras: Mapping[str, tuple[IntArray, IntArray]], anchor: list[int]) -> None:
    """Write into `anchor`; `cameras` are the rows of frames and their times, ascending."""
    tolerance_ns = {camera: _tolerance_ns(times) for camera, (_, times) in cameras.items()}
    left = dict(cameras)
    while len(left) > 1:
        densest = min(left, key=lambda camera: (-len(left[camera][0]), camera))
        rows, times = left.pop(densest)
        for camera, (others, their_times) in list(left.items()):
            pairs = _nearest_pairs(their_times, times, tolerance_ns[densest])
            for other, one in pairs.items():
                anchor[int(others[other])] = int(rows[one])
            alone = np.setdiff1d(np.arange(len(others)), list(pairs))
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
    low = np.searchsorted(others, times - tolerance_ns, side="left")
    high = np.searchsorted(others, times + tolerance_ns, side="right")
    counts = high - low
    one = np.repeat(np.arange(len(times)), counts)
    start = np.repeat(low - (np.cumsum(counts) - counts), counts)
    other = start + np.arange(len(one))
    return best_pairs(-np.abs(times[one] - others[other]).astype(np.float64), one, other)
