"""Topics of recordings to frames: each selected picture a file in the cache, extracted once.

Compressed pictures keep their bytes, raw ones become PNG, and frames of video JPEG as those of
video files do. What cannot be read is a frame with the reason: a message that is no picture, a
damaged part of the file, and once, at its end, a file that breaks off.
"""

from __future__ import annotations

from pathlib import Path

from tasks.frames.download import ChangedError, fetch
from tasks.frames.extracted import ExtractedFrames, Row
from tasks.frames.identity import file_version
from tasks.frames.mcap_pictures import BadRecordingError, shots_of
from tasks.frames.mcap_video import Shot
from tasks.store import storage
from tasks.types import FrameRef, StreamRef
from tasks.wording import counted

__all__ = ["BadRecordingError", "frames_of_stream"]


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
    extracted, chosen = ExtractedFrames(ref.uri, ref.etag, ref.stream), ref.selection
    record = f"{first}-{chosen.start}-{chosen.stop}-{chosen.step}"
    found = extracted.read_record(record)
    if found is None:
        path = fetch(ref.uri, ref.etag, ref.size_bytes, intact=True)
        rows: list[Row] = []
        count = 0
        gap: Shot | None = None
        for shot in shots_of(path, ref.stream, lambda number: first + number in chosen):
            count = max(count, shot.number + 1)
            gap = shot if shot.is_gap else gap
            if first + shot.number in chosen:
                rows.append(_kept(extracted, shot))
        if gap and not rows and (chosen.stop is None or first + gap.number < chosen.stop):
            whole = counted(gap.number, "picture")
            raise BadRecordingError(
                f"{_place(ref)}: {gap.problem}; before that are {whole}, and --frames {chosen} "
                "takes none of them"
            )
        if storage.is_local(ref.uri) and ref.etag not in {"", file_version(path)}:
            raise ChangedError(ref.uri)
        extracted.write_record(record, rows, count)
        found = rows, count
    rows, count = found
    return [_frame(ref, extracted.folder, first, row) for row in sorted(rows)], count


def _kept(extracted: ExtractedFrames, shot: Shot) -> Row:
    name = "" if shot.problem else extracted.keep(shot.number, shot.data, shot.suffix)
    return shot.number, name, (0, 0), len(shot.data), shot.time_ns, shot.problem


def _frame(ref: StreamRef, folder: Path, first: int, row: Row) -> FrameRef:
    number, name, _, size_bytes, time_ns, problem = row
    if problem:
        problem = f"{_place(ref)}, message number {number}: {problem}"
    return FrameRef(
        ref.sequence_id, ref.camera, first + number, time_ns, f"{ref.address}#frame={number}",
        (0, 0), ref.etag, size_bytes, str(folder / name) if name else "", problem,
    )  # fmt: skip


def _place(ref: StreamRef) -> str:
    return f"{ref.uri.rpartition('/')[2]}, topic {ref.stream}"
