"""Videos to frames: each selected frame a JPEG in the cache, extracted once."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from sam2_core.cache import file_identity
from tasks.frames.download import CacheError, ChangedError, ExtractedFrames, Row, fetch
from tasks.frames.identity import file_version, part_of
from tasks.frames.images import TooLargeError, as_jpeg
from tasks.frames.mcap_pictures import BadRecordingError, extract_stream
from tasks.frames.video_streams import BadVideoError, pixels_bgr, video_frames
from tasks.store import storage
from tasks.store.retry import is_transient
from tasks.types import Footage, FrameFailure, FrameRef, FrameSelection, StreamRef, VideoRef


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
    for footage in frames:
        if isinstance(footage, FrameRef):
            expanded.append(footage)
            continue
        start_ns = footage.timestamp_ns if dated else 0
        try:
            found, count = _extracted(footage, start_ns, passed[footage.camera])
            expanded += found
            passed[footage.camera] += count
        except CacheError:
            raise
        except storage.StorageError as error:
            expanded.append(
                FrameFailure.of(footage, "download", str(error), busy=is_transient(error))
            )
        except (BadVideoError, BadRecordingError, TooLargeError) as error:
            expanded.append(FrameFailure.of(footage, "decode", str(error)))
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


def _extracted(video: VideoRef, start_ns: int | None, first: int) -> tuple[list[FrameRef], int]:
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
        # It was opened by its name: by now another one may lie there.
        is_same = path.exists() and before == file_identity(path)
        is_listed = is_same and video.etag in {"", file_version(path)}
        if storage.is_local(video.uri) and not is_listed:
            for name in (row[1] for row in found[0] if row[1]):
                (extracted.folder / name).unlink(missing_ok=True)
            raise ChangedError(video.uri)
        extracted.write_record(record, *found)
    start_ns = 0 if stream else start_ns
    frames = [_frame_ref(video, extracted.folder, start_ns, first, row) for row in sorted(found[0])]
    return frames, found[1]


def _frame_ref(
    video: VideoRef, folder: Path, start_ns: int | None, first: int, row: Row
) -> FrameRef:
    """Make the reference of one frame; one with a problem has no path."""
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
        local_path="" if problem else str(folder / name),
        problem=problem,
    )


def _extract(
    path: Path, extracted: ExtractedFrames, selection: FrameSelection, where: str
) -> Iterator[Row]:
    """Write selected frames; the first one that is missing where a file breaks off has no file.

    Raises:
        BadVideoError: nothing can be decoded.

    """
    count, shown_ns = 0, None
    try:
        for frame, shown_ns in video_frames(path, where):
            if count in selection:
                pixels = pixels_bgr(frame)
                data = as_jpeg(pixels)
                name = extracted.keep(count, data, ".jpg")
                yield count, name, pixels.shape[:2], len(data), shown_ns, ""
            count += 1
            if count == selection.stop:
                return
    except BadVideoError as error:
        if count == 0:
            raise BadVideoError(f"no frame could be decoded: {error}") from error
        missing = max(selection.start, count + (selection.start - count) % selection.step)
        if missing in selection:
            after_ns = None if shown_ns is None else shown_ns + 1
            yield missing, "", (0, 0), 0, after_ns, str(error)
    if count == 0:
        raise BadVideoError("no frame could be decoded: broken, empty or of an unknown codec")
