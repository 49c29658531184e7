"""The pictures of labeled frames on this machine: those that were labeled, or none.

Labels name their frames by address and version. A file that has changed since is another picture,
and labels are never shown on it; one that cannot be had leaves labels without a picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from tasks.frames.cached import ExtractedFrames, take_intact
from tasks.frames.download import CONNECTIONS, download, find_cached
from tasks.frames.identity import file_version, is_file_here, part_of
from tasks.frames.listing import stat_file
from tasks.frames.video import expand_videos, footage_of
from tasks.store import storage
from tasks.types import FrameRef

_SAME, _OTHER, _GONE = "same", "other", "gone"


@dataclass(frozen=True)
class Pictures:
    """Where pictures of frames are.

    Attributes:
        paths: file on this machine by the frame's address, where it is a copy.
        changed: addresses where there is another content now than the one that was labeled.

    """

    paths: dict[str, str]
    changed: frozenset[str]

    def of(self, frame: FrameRef) -> Path | None:
        """Return a frame's picture: a copy, or the file where it lies; None where there is none."""
        if frame.uri in self.paths:
            return Path(self.paths[frame.uri])
        here = storage.local_path(frame.uri) if is_file_here(frame.uri) else None
        return here if here and here.is_file() else None


def find_pictures(recorded: Sequence[FrameRef]) -> Pictures:
    """Find the pictures of frames; what is not on this machine is brought, and nothing but that.

    Args:
        recorded: frames as their labels name them.

    Raises:
        CacheError: the cache cannot be written.

    """
    missing, changed = [], set()
    for frame in recorded:
        if is_file_here(frame.uri):
            version = file_version(storage.local_path(frame.uri))
            if version is not None and frame.etag not in {"", version}:
                changed.add(frame.uri)
        else:
            missing.append(frame)
    images, videos = _fetch_images(missing), _fetch_videos(missing)
    return Pictures(images.paths | videos.paths, images.changed | videos.changed | changed)


def _fetch_images(frames: Iterable[FrameRef]) -> Pictures:
    """Bring images that are in the cache, or still what they were when they were labeled."""
    images = [frame for frame in frames if _number_of(frame.uri) is None]
    with ThreadPoolExecutor(CONNECTIONS, "compare") as threads:
        states = list(threads.map(_state, images))
    same = [frame for frame, state in zip(images, states, strict=True) if state == _SAME]
    changed = {frame.uri for frame, state in zip(images, states, strict=True) if state == _OTHER}
    paths = {one.uri: one.local_path for one in download(same) if isinstance(one, FrameRef)}
    return Pictures(paths, frozenset(changed))


def _state(frame: FrameRef) -> str:
    """Say whether the content that was labeled can be had, is another one by now, or is gone."""
    copy = find_cached(frame.uri, frame.etag)
    if copy and take_intact(copy) and frame.size_bytes in {0, copy.stat().st_size}:
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


def _fetch_videos(frames: Iterable[FrameRef]) -> Pictures:
    """Take frames out of their videos, where those are still what they were."""
    videos: dict[tuple[str, str, str], dict[int, FrameRef]] = {}
    for frame in frames:
        part = part_of(frame.uri)
        if part is not None and not part.is_member:
            video = (part.file_uri, part.stream, frame.etag)
            videos.setdefault(video, {})[part.number] = frame
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


def _number_of(uri: str) -> int | None:
    """Return a frame's number in its video or recording, None for what is none."""
    part = part_of(uri)
    return None if part is None or part.is_member else part.number
