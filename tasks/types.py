"""What travels between pipeline steps: references and reports, never pixels."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from sam2_core.redaction import redact
from sam2_core.types import AutolabelError


class NothingFoundError(AutolabelError):
    """There is nothing of what was asked for; says why. Commands end with exit code 1."""


@dataclass(frozen=True)
class FrameSelection:
    """`START:STOP:STEP` over each camera's frames, as Python slices them; nothing negative."""

    start: int = 0
    stop: int | None = None
    step: int = 1

    @staticmethod
    def parse(text: str) -> FrameSelection:
        """Read `START:STOP:STEP`, each part optional.

        Raises:
            AutolabelError: not of this form, or no frame can be meant.

        """
        match = re.fullmatch(r"(\d*):(\d*)(?::(\d*))?", text.strip())
        if not match:
            raise AutolabelError(
                f"{text!r}: expected START:STOP:STEP, such as 0:100:5 or ::2 or 10:"
            )
        start, stop = int(match[1] or 0), int(match[2]) if match[2] else None
        step = int(match[3] or 1)
        if step == 0:
            raise AutolabelError(f"{text!r}: STEP must be at least 1")
        if stop is not None and stop <= start:
            raise AutolabelError(f"{text!r} selects no frame: STOP must be greater than START")
        return FrameSelection(start, stop, step)

    def __str__(self) -> str:
        return f"{self.start}:{'' if self.stop is None else self.stop}:{self.step}"

    @property
    def most(self) -> float:
        """How many frames it may select at most."""
        return math.inf if self.stop is None else len(range(self.start, self.stop, self.step))

    def __contains__(self, index: int) -> bool:
        below = self.stop is None or index < self.stop
        return index >= self.start and below and (index - self.start) % self.step == 0


ALL_FRAMES = FrameSelection()


@dataclass(frozen=True, order=True, slots=True)
class FrameRef:
    """One image of a sequence, before or after download.

    Attributes:
        sequence_id: the sequence it belongs to.
        camera: camera folder's name, "" where a sequence has one camera.
        index: position within (sequence, camera), counted from 0 over all frames of the source.
        timestamp_ns: since 1970, from the file name, or None. A video's frames: when they are
            shown, counted from the time in the video's name; where no camera of the sequence has a
            time in its name, from the video's start.
        uri: fsspec URL of the image; a video frame is `video-uri#frame=INDEX`, and no image's
            URI ends like that.
        size_hw: (height, width) as displayed (EXIF rotation applied); (0, 0) until known.
        etag: what tells one version of the content from another (etag, or size and mtime).
        size_bytes: of the file, 0 when unknown.
        local_path: the downloaded file, "" before.
        problem: why it cannot be labeled, where its listing tells; "" else.

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
    problem: str = ""


@dataclass(frozen=True, slots=True)
class VideoRef:
    """All selected frames of a video that is not opened yet: how many there are is not known.

    `tasks.frames.video.expand_videos` makes FrameRefs of it.

    Attributes:
        sequence_id: the sequence it belongs to.
        camera: its name, "" where a sequence has one camera.
        timestamp_ns: when its first frame was taken, since 1970, from the file name, or None.
        uri: fsspec URL of the video.
        selection: which of its frames.
        etag: as of a frame.
        size_bytes: of the file, 0 when unknown.

    """

    sequence_id: str
    camera: str
    timestamp_ns: int | None
    uri: str
    selection: FrameSelection
    etag: str = ""
    size_bytes: int = 0

    @property
    def address(self) -> str:
        """Address that those of its frames begin with."""
        return self.uri


@dataclass(frozen=True, slots=True)
class StreamRef(VideoRef):
    """All selected pictures of a topic in a recording, not opened yet.

    Several of one camera follow each other: their frames are numbered through.

    Attributes:
        stream: the topic; `uri` is the recording's address.

    """

    stream: str = ""

    @property
    def address(self) -> str:
        """Address that those of its frames begin with."""
        return f"{self.uri}#{self.stream}"


Footage = FrameRef | VideoRef


@dataclass(frozen=True)
class FrameFailure:
    """A frame that could not be labeled, and why; the reason holds no secret.

    `busy`: its server answered that it is busy, or not at all; a moment later it may.
    """

    sequence_id: str
    camera: str
    index: int
    uri: str
    stage: str
    reason: str
    busy: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", redact(self.reason))

    @staticmethod
    def of(footage: Footage, stage: str, reason: str, *, busy: bool = False) -> FrameFailure:
        """Say of a frame, or of a video that was not opened, why it could not be labeled."""
        index = footage.index if isinstance(footage, FrameRef) else 0
        where = (footage.sequence_id, footage.camera, index, footage.uri)
        return FrameFailure(*where, stage, reason, busy)

    @property
    def may_yet_come(self) -> bool:
        """Whether it could not be fetched; what was fetched and is bad stays so."""
        return self.stage == "download"
