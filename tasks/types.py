"""What travels between pipeline steps: references and reports, never pixels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class SequenceRef:
    """One drive (or one video): `sequence_id` is stable across runs and machines.

    Attributes:
        sequence_id: path of the sequence below the source, "/" replaced where needed; safe as a
            file name.
        frames_uri: fsspec URL of the folder of images, folder of camera folders, or video file.

    """

    sequence_id: str
    frames_uri: str


@dataclass(frozen=True, order=True, slots=True)
class FrameRef:
    """One image of a sequence, before or after download.

    Attributes:
        sequence_id: the sequence it belongs to.
        camera: camera folder's name, "" where a sequence has one camera.
        index: position within (sequence, camera), counted from 0 over all frames of the source.
        timestamp_ns: from the file name, or None.
        uri: fsspec URL of the image; a video frame is `video-uri#frame=INDEX`.
        size_hw: (height, width) as displayed (EXIF rotation applied); (0, 0) until known.
        etag: what tells one version of the content from another (etag, or size and mtime).
        size_bytes: of the file, 0 when unknown.
        local_path: the downloaded file, "" before.

    """

    sequence_id: str
    camera: str
    index: int
    timestamp_ns: int | None
    uri: str
    size_hw: tuple[int, int] = (0, 0)
    etag: str = ""
    size_bytes: int = 0
    local_path: str = ""


@dataclass(frozen=True)
class FrameFailure:
    """A frame that could not be labeled, and why."""

    sequence_id: str
    camera: str
    index: int
    uri: str
    stage: str
    reason: str


@dataclass(frozen=True)
class Artifact:
    """A complete file in the run's storage."""

    uri: str
    rows: int
    key: str
