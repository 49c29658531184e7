"""Topics of recordings to frames: each selected picture a file in the cache, extracted once.

Compressed pictures keep their bytes, raw ones become PNG, and frames of video JPEG as those of
video files do. What cannot be read is a frame with the reason: a message that is no picture, a
damaged part of the file, and once, at its end, a file that breaks off.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from sam2_core.cache import cache_folder
from tasks.frames.download import CacheError, ChangedError, fetch
from tasks.frames.identity import file_version
from tasks.frames.mcap_pictures import BadRecordingError, shots_of
from tasks.frames.mcap_video import Shot
from tasks.store import storage
from tasks.types import FrameRef, StreamRef
from tasks.wording import counted

__all__ = ["BadRecordingError", "frames_of_stream", "stream_frame_path"]
# Number in the topic, name of the file in the cache, its bytes, time, why it cannot be read.
Row = tuple[int, str, int, int, str]


def frames_of_stream(ref: StreamRef, first: int) -> tuple[list[FrameRef], int]:
    """Extract the selected pictures of a topic.

    Args:
        ref: which.
        first: index of its first picture: those of earlier recordings of this camera.

    Returns:
        The selected frames, and how many pictures there are.

    Raises:
        BadRecordingError: nothing in the file can be read, or nothing that is selected, and it is
            damaged before that.
        StorageError: it cannot be had, or changed meanwhile.
        CacheError: the cache cannot be written.

    """
    folder, chosen = _folder(ref.uri, ref.stream, ref.etag), ref.selection
    record = folder / f"{first}-{chosen.start}-{chosen.stop}-{chosen.step}.json"
    found = _read_record(record)
    if found is None:
        path = fetch(ref.uri, ref.etag, ref.size_bytes)
        rows, count = [], 0
        gap: Shot | None = None
        for shot in shots_of(path, ref.stream, lambda number: first + number in chosen):
            count = max(count, shot.number + 1)
            gap = shot if shot.is_gap else gap
            if first + shot.number in chosen:
                rows.append(_kept(folder, shot))
        if gap and not rows and (chosen.stop is None or first + gap.number < chosen.stop):
            whole = counted(gap.number, "picture")
            raise BadRecordingError(
                f"{_place(ref)}: {gap.problem}; before that are {whole}, and --frames {chosen} "
                "takes none of them"
            )
        if storage.is_local(ref.uri) and ref.etag not in {"", file_version(path)}:
            raise ChangedError(ref.uri)
        _write(record, json.dumps({"count": count, "frames": rows}).encode())
        found = rows, count
    rows, count = found
    return [_frame(ref, folder, first, row) for row in sorted(rows)], count


def stream_frame_path(uri: str, stream: str, etag: str, number: int) -> Path:
    """Where a picture of a topic lies in the cache, if it has been extracted."""
    folder = _folder(uri, stream, etag)
    return next(iter(folder.glob(f"{number:06d}.*")), folder / f"{number:06d}")


def _folder(uri: str, stream: str, etag: str) -> Path:
    digest = hashlib.sha256(f"{uri}\n{stream}\n{etag}".encode()).hexdigest()
    return cache_folder() / "streams" / digest[:2] / digest[2:40]


def _kept(folder: Path, shot: Shot) -> Row:
    name = ""
    if not shot.problem:
        name = f"{shot.number:06d}{shot.suffix}"
        _write(folder / name, shot.data)
    return shot.number, name, len(shot.data), shot.time_ns, shot.problem


def _write(path: Path, data: bytes) -> None:
    try:
        storage.write_bytes(str(path), data)
    except storage.StorageError as error:
        raise CacheError(str(error)) from error


def _read_record(record: Path) -> tuple[list[Row], int] | None:
    """Return what an earlier extraction found, if all its files are still there."""
    try:
        found = json.loads(record.read_text())
        rows: list[Row] = [tuple(row) for row in found["frames"]]
        sizes = {path.name: path.stat().st_size for path in record.parent.iterdir()}
        whole = all(not name or sizes.get(name) == size for _, name, size, _, _ in rows)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (rows, int(found["count"])) if whole else None


def _frame(ref: StreamRef, folder: Path, first: int, row: Row) -> FrameRef:
    number, name, size_bytes, time_ns, problem = row
    if problem:
        problem = f"{_place(ref)}, message number {number}: {problem}"
    return FrameRef(
        ref.sequence_id, ref.camera, first + number, time_ns, f"{ref.address}#frame={number}",
        (0, 0), ref.etag, size_bytes, str(folder / name) if name else "", problem,
    )  # fmt: skip


def _place(ref: StreamRef) -> str:
    return f"{ref.uri.rpartition('/')[2]}, topic {ref.stream}"
