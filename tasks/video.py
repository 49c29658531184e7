"""Videos to frames: each selected frame a JPEG in the cache, extracted once."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sam2_core.cache import cache_folder
from tasks import storage
from tasks.discover import FrameSelection
from tasks.download import CacheError, fetch
from tasks.images import failure
from tasks.types import FrameFailure, FrameRef

JPEG_QUALITY = 95
_MARK = "#frames="
Row = tuple[int, tuple[int, int], int]  # index, (height, width), bytes of the JPEG

log = logging.getLogger(__name__)


def is_video(frame: FrameRef) -> bool:
    """Whether a reference stands for all selected frames of a video that nobody has opened yet."""
    return _MARK in frame.uri


def expand_videos(
    frames: Iterable[FrameRef],
    on_frame: Callable[[FrameRef], None] | None = None,
    cache: Path | None = None,
) -> list[FrameRef | FrameFailure]:
    """Replace each video by its frames, in place; images pass unchanged.

    Videos are fetched and decoded to the end, so that the frames are those that are there and not
    those that the header promises. A frame's URL is `video#frame=INDEX`.

    Args:
        frames: of one sequence, from `list_frames`.
        on_frame: called with each extracted frame.
        cache: cache folder instead of the usual one.

    Returns:
        Frames with `local_path` and `size_hw` where they come from a video; a FrameFailure for a
        video that cannot be fetched or decoded.

    Raises:
        CacheError: the cache cannot be written.

    """
    expanded: list[FrameRef | FrameFailure] = []
    for frame in frames:
        if not is_video(frame):
            expanded.append(frame)
            continue
        uri, _, selection = frame.uri.rpartition(_MARK)
        video = replace(frame, uri=uri)
        try:
            expanded += _frames_of(video, FrameSelection.parse(selection), on_frame, cache)
        except CacheError:
            raise
        except storage.StorageError as error:
            expanded.append(failure(video, "download", str(error)))
        except BadVideoError as error:
            expanded.append(failure(video, "decode", str(error)))
    return expanded


class BadVideoError(ValueError):
    """A video that cannot be decoded; the message is the reason."""


def _frames_of(
    video: FrameRef,
    selection: FrameSelection,
    on_frame: Callable[[FrameRef], None] | None,
    cache: Path | None,
) -> list[FrameRef]:
    digest = hashlib.sha256(f"{video.uri}\n{video.etag}".encode()).hexdigest()
    folder = cache_folder(cache) / "videos" / digest[:2] / digest[2:40]
    record = folder / f"{selection.start}-{selection.stop}-{selection.step}.json"
    found = _read_record(record)
    if found is None:
        path = fetch(video.uri, video.etag, video.size_bytes, cache)
        found = {"fps": _frame_rate(path), "frames": []}
        for row in _extract(path, folder, selection):
            found["frames"].append(row)
            if on_frame:
                on_frame(_frame(video, folder, found["fps"], row))
        _write_whole(record, json.dumps(found).encode())
    elif on_frame:
        for row in found["frames"]:
            on_frame(_frame(video, folder, found["fps"], row))
    return [_frame(video, folder, found["fps"], row) for row in found["frames"]]


def _frame(video: FrameRef, folder: Path, fps: float, row: Row) -> FrameRef:
    """Make the reference of one frame; its time counts from the time in the video's name."""
    index, size_hw, size_bytes = row
    start_ns = video.timestamp_ns
    timestamp_ns = start_ns + round(index / fps * 1e9) if start_ns is not None and fps else None
    return replace(
        video,
        index=index,
        timestamp_ns=timestamp_ns,
        uri=f"{video.uri}#frame={index}",
        size_hw=(size_hw[0], size_hw[1]),
        size_bytes=size_bytes,
        local_path=str(_jpeg(folder, index)),
    )


def _jpeg(folder: Path, index: int) -> Path:
    return folder / f"{index:06d}.jpg"


def _read_record(record: Path) -> dict[str, Any] | None:
    """Return what an earlier extraction found, if all its files are still there."""
    try:
        found: dict[str, Any] = json.loads(record.read_text())
        sizes = {path.name: path.stat().st_size for path in record.parent.glob("*.jpg")}
        whole = all(sizes.get(f"{i:06d}.jpg", 0) == size for i, _, size in found["frames"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if whole else None


def _frame_rate(path: Path) -> float:
    import cv2

    capture = cv2.VideoCapture(str(path))
    fps = capture.get(cv2.CAP_PROP_FPS)
    capture.release()
    return float(fps) if 0 < fps < 10_000 else 0.0


def _extract(path: Path, folder: Path, selection: FrameSelection) -> Iterator[Row]:
    """Write selected frames; one that cannot be decoded has no file and counts all the same."""
    import cv2

    capture = cv2.VideoCapture(str(path))
    try:
        promised = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        index = 0
        while selection.stop is None or index < selection.stop:
            if not capture.grab():
                if index < promised:
                    log.warning("%s: %d frames of %d could be decoded", path, index, promised)
                break
            if index in selection:
                decoded, pixels = capture.retrieve()
                if decoded:
                    quality = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
                    data = cv2.imencode(".jpg", pixels, quality)[1].tobytes()
                    _write_whole(_jpeg(folder, index), data)
                yield index, pixels.shape[:2] if decoded else (0, 0), len(data) if decoded else 0
            index += 1
    finally:
        capture.release()
    if index == 0:
        raise BadVideoError("no frame could be decoded: broken, empty or of an unknown codec")


def _write_whole(path: Path, data: bytes) -> None:
    try:
        storage.write_bytes(str(path), data)
    except storage.StorageError as error:
        raise CacheError(str(error)) from error
