"""Videos to frames: each selected frame a JPEG in the cache, extracted once.

That fewer frames come out than a header promises proves nothing: edit lists hide frames, and where
a container does not count them their number is made of duration and rate. Lengths do: a file that
is shorter than the lengths in it breaks off. Read are the outermost parts of MP4 and MOV, AVI,
Matroska and WebM; a file of another form, or one whose recorder never wrote them, counts as whole.
"""

import logging
import math
import os
import re
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import cv2

from sam2_core.cache import file_identity
from sam2_core.machine_errors import as_machine_error
from tasks.frames.download import CacheError, ChangedError, ExtractedFrames, Row, fetch
from tasks.frames.identity import file_version, part_of
from tasks.frames.images import TooLargeError, as_jpeg, refuse_large
from tasks.frames.mcap_pictures import BadRecordingError, extract_stream
from tasks.frames.video_streams import BadVideoError, capture_of
from tasks.store import storage
from tasks.store.retry import is_transient
from tasks.types import Footage, FrameFailure, FrameRef, FrameSelection, StreamRef, VideoRef
from tasks.wording import counted

log = logging.getLogger(__name__)


def expand_videos(frames: Iterable[Footage]) -> list[FrameRef | FrameFailure]:
    """Replace each video by its frames, in place; images pass unchanged.

    Videos are fetched and decoded to the end, so that the frames are those that are there and not
    those that the header promises. A frame's URL is `video#frame=INDEX`, that of a topic of a
    recording `FILE#TOPIC#frame=NUMBER`.

    Args:
        frames: of one sequence, from `list_frames`.

    Returns:
        Frames with `local_path` and `size_hw` where they come from a video; where its file breaks
        off, the first that is missing, with that `problem`; a FrameFailure for a video that cannot
        be fetched or decoded.

    Raises:
        CacheError: the cache cannot be written.

    """
    frames = list(frames)
    # Times of day and times since the start must not meet in one sequence: cameras are joined by
    # the nearest.
    dated = any(frame.timestamp_ns is not None for frame in frames)
    expanded: list[FrameRef | FrameFailure] = []
    passed: Counter[str] = Counter()  # pictures of recordings, by camera
    for one in frames:
        if isinstance(one, FrameRef):
            expanded.append(one)
            continue
        start_ns = one.timestamp_ns if dated else 0
        try:
            found, count = _frames_of(one, start_ns, passed[one.camera])
            expanded += found
            passed[one.camera] += count
        except CacheError:
            raise
        except storage.StorageError as error:
            expanded.append(FrameFailure.of(one, "download", str(error), busy=is_transient(error)))
        except (BadVideoError, BadRecordingError, TooLargeError) as error:
            expanded.append(FrameFailure.of(one, "decode", str(error)))
    return expanded


def footage_of(frame: FrameRef, numbers: Collection[int]) -> VideoRef:
    """Return those frames of the video or recording that a frame is of, and few others."""
    part, ordered = part_of(frame.uri), sorted(numbers)
    if part is None:
        raise ValueError(f"{frame.uri} is no frame of a video")
    step = math.gcd(*(number - ordered[0] for number in ordered)) or 1
    selection = FrameSelection(ordered[0], ordered[-1] + 1, step)
    where = (frame.sequence_id, frame.camera, None, part.file_uri, selection, frame.etag)
    return StreamRef(*where, stream=part.stream) if part.stream else VideoRef(*where)


def _frames_of(video: VideoRef, start_ns: int | None, first: int) -> tuple[list[FrameRef], int]:
    """Extract the selected frames of a video or topic, unless an earlier extraction is whole.

    Args:
        video: which.
        start_ns: when a video begins, since 1970, or None.
        first: index of a topic's first picture.

    Returns:
        The frames, and how many pictures a topic has; 0 for a video.

    """
    stream = video if isinstance(video, StreamRef) else None
    extracted = ExtractedFrames(video.uri, video.etag, stream.stream if stream else "")
    selection = video.selection
    record = f"{selection.start}-{selection.stop}-{selection.step}"
    record = f"{first}-{record}" if stream else record
    found = extracted.read_record(record)
    if found is None:
        path = fetch(video.uri, video.etag, video.size_bytes)
        with storage.explained("read", video.uri):
            before = file_identity(path)
        if stream:
            found = extract_stream(path, stream, first, extracted)
        else:
            found = list(_extract(path, extracted, selection, storage.redact(video.uri))), 0
        # OpenCV opens files by name: by now another one may lie there.
        is_same = path.exists() and before == file_identity(path)
        is_listed = is_same and video.etag in {"", file_version(path)}
        if storage.is_local(video.uri) and not is_listed:
            for name in (row[1] for row in found[0] if row[1]):
                (extracted.folder / name).unlink(missing_ok=True)
            raise ChangedError(video.uri)
        extracted.write_record(record, *found)
    start_ns = 0 if stream else start_ns
    frames = [_frame(video, extracted.folder, start_ns, first, row) for row in sorted(found[0])]
    return frames, found[1]


def _frame(video: VideoRef, folder: Path, start_ns: int | None, first: int, row: Row) -> FrameRef:
    """Make the reference of one frame; of a video, one that was not decoded has a path, too."""
    number, name, size_hw, size_bytes, shown_ns, problem = row
    known = start_ns is not None and shown_ns is not None
    return FrameRef(
        video.sequence_id,
        video.camera,
        first + number,
        start_ns + shown_ns if known else None,  # type: ignore[operator]
        f"{video.address}#frame={number}",
        size_hw=size_hw,
        etag=video.etag,
        size_bytes=size_bytes,
        local_path="" if problem else str(folder / (name or f"{number:06d}")),
        problem=problem,
    )


def _times_ns(capture: Any) -> Iterator[int | None]:
    """Yield when frames are shown, in nanoseconds from the video's start; after grabbing each.

    OpenCV tells the presentation time of the frame that was grabbed last. Where a container has
    none it says 0, or the same again: then frames are as far apart as the header says.
    """
    fps = float(capture.get(cv2.CAP_PROP_FPS))
    step_ns = round(1e9 / fps) if 0 < fps < 10_000 else 0
    position = partial(capture.get, cv2.CAP_PROP_POS_MSEC)
    last_ns = max(round(position() * 1e6), 0)
    yield last_ns
    while True:
        before_ns, shown_ns = last_ns, round(position() * 1e6)
        last_ns = shown_ns if shown_ns > before_ns else before_ns + step_ns
        yield last_ns if last_ns > before_ns else None


def _extract(
    path: Path, extracted: ExtractedFrames, selection: FrameSelection, where: str
) -> Iterator[Row]:
    """Write selected frames; one that cannot be decoded has no file and counts all the same."""
    # FFmpeg would tell what is wrong with a file, without its name; it is read once.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    capture = capture_of(path, where)
    try:
        width = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH))
        refuse_large(width, int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT)))
        promised, times = int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), _times_ns(capture)
        index = 0
        while selection.stop is None or index < selection.stop:
            if not capture.grab():
                yield from _lost(path, index, promised, selection, times, where=where)
                break
            shown_ns = next(times)
            if index in selection:
                decoded, pixels = capture.retrieve()
                if decoded:
                    data = as_jpeg(pixels)
                    name = extracted.keep(index, data, ".jpg")
                    yield index, name, pixels.shape[:2], len(data), shown_ns, ""
                else:
                    yield index, "", (0, 0), 0, shown_ns, ""
            index += 1
    finally:
        capture.release()
    if index == 0:
        _read_through(path)
        raise BadVideoError("no frame could be decoded: broken, empty or of an unknown codec")


def _lost(
    path: Path,
    decoded: int,
    promised: int,
    selection: FrameSelection,
    times: Iterator[int | None],
    *,
    where: str,
) -> Iterator[Row]:
    """Yield the first selected frame that is missing, if frames are missing and that is known."""
    if decoded == 0:
        return
    if decoded < promised:
        _read_through(path)
    try:
        reason = why_frames_lack(path, decoded, promised)
    except FileNotFoundError:
        return  # it was removed, as who has listed it will see
    except OSError as error:
        raise as_machine_error(error, f"reading {path}") from error
    if not reason and decoded < promised:
        log.warning("%s: %d frames of %d could be decoded", where, decoded, promised)
    missing = range(decoded, max(promised, decoded + 1)) if reason else ()
    for index in [one for one in missing if one in selection][:1]:
        yield index, "", (0, 0), 0, next(times), reason


def _read_through(path: Path) -> None:
    """Read a file to its end: OpenCV says no more than "no further frame", whatever the reason.

    Raises:
        MachineError: the disk fails, or memory or file handles are at an end: not the video's end.

    """
    try:
        with path.open("rb") as file:
            while file.read(1 << 20):
                pass
    except OSError as error:
        raise as_machine_error(error, f"reading {path}") from error


_EBML = b"\x1a\x45\xdf\xa3"
_BOX_NAME = re.compile(rb"[ -~\xa9][ -~]{3}")


def why_frames_lack(path: Path, decoded: int, promised: int) -> str:
    """Say why there is no frame after those that were decoded; "" where the video just ends.

    Args:
        path: of the video.
        decoded: frames that came out of it.
        promised: frames by its header, or by duration and rate; below 1: unknown.

    """
    with path.open("rb") as file:
        size_bytes = file.seek(0, 2)
        file.seek(0)
        head = file.read(4)
        if head == _EBML:
            end, counts = _end_of_segment(file), False
        elif head == b"RIFF":
            end, counts = _end_of_lists(file, size_bytes), True
        else:
            end, counts = _end_of_boxes(file, size_bytes)
    if end <= size_bytes:
        return ""
    if not counts:
        return f"the file breaks off after {counted(decoded, 'frame')}"
    if decoded >= promised > 0:  # what is missing is sound, or an index
        return ""
    return f"{decoded} of {promised} frames could be decoded: the file breaks off"


def _end_of_boxes(file: BinaryIO, size_bytes: int) -> tuple[int, bool]:
    """Return where an MP4 (ISO 14496-12) ends, and whether its header counts its frames."""
    at, counts = 0, True
    while at + 16 <= size_bytes:
        file.seek(at)
        length, name, long = struct.unpack(">I4sQ", file.read(16))
        length = long if length == 1 else length
        if length < 8 or not _BOX_NAME.fullmatch(name):  # 0: to the end of the file
            break
        at += length
        counts = counts and name != b"moof"
    return at, counts


def _end_of_lists(file: BinaryIO, size_bytes: int) -> int:
    """Return where an AVI ends: it is one list, or several of at most a gigabyte each."""
    at = 0
    while at + 8 <= size_bytes:
        file.seek(at)
        name, length = struct.unpack("<4sI", file.read(8))
        if name != b"RIFF" or not 0 < length < 0x7FFFFFF0:  # as recorders leave it
            break
        at += 8 + length + length % 2
    return at


def _end_of_segment(file: BinaryIO) -> int:
    """Return where the segment of a Matroska file (RFC 8794) ends, 0 where that is unknown."""
    at = 0
    for _ in ("header", "segment"):
        file.seek(at + len(_EBML))
        field = file.read(8)
        digits = 9 - field[0].bit_length() if field else 9
        if digits > 8:
            return 0
        most = (1 << 7 * digits) - 1
        length = int.from_bytes(field[:digits], "big") & most
        if length == most:
            return 0
        at += len(_EBML) + digits + length
    return at
