"""Videos that OpenCV would show wrongly: another stream than the one to label, or half pictures.

OpenCV reads the first video stream of a file, a preview or a cover picture for instance, and gives
interlaced frames as black pictures without an error. Such files are read by PyAV.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from av.stream import Disposition

from sam2_core.redaction import one_line
from tasks.frames.images import refuse_large

_LOOKED_AT = 5  # frames: the first ones may be progressive

log = logging.getLogger(__name__)


class BadVideoError(ValueError):
    """A video that cannot be decoded; the message is the reason."""


def capture_of(path: Path, where: str) -> Any:
    """Open a video; returns what can be read like a `cv2.VideoCapture`.

    Of several streams the default one is read, which Matroska alone tells, else the largest.

    Args:
        path: of the file.
        where: its address, for the log.

    """
    # Damaged files may have no stream, or others when they are opened again.
    with suppress(av.FFmpegError, LookupError), _opened(path) as container:
        streams = list(filter(_is_read, container.streams.video))
        stream = sorted(streams, key=partial(_rank, container))[-1]
        refuse_large(stream.width, stream.height)
        if len(streams) > 1:
            log.warning(
                "%s has %d video streams: that of %dx%d is labeled",
                one_line(where), len(streams), stream.width, stream.height,
            )  # fmt: skip
        first = islice(_frames_of(container, stream), _LOOKED_AT)
        if stream != container.streams.video[0] or any(frame.interlaced_frame for frame in first):
            return _Capture(path, stream.index)
    return cv2.VideoCapture(str(path))


def _is_read(stream: Any) -> bool:
    """Whether a stream is a video, and not a cover picture or of an unknown form."""
    is_known = stream.codec_context is not None and stream.pix_fmt
    return bool(is_known and not stream.disposition & Disposition.attached_pic)


def _rank(container: Any, stream: Any) -> tuple[bool, int, int]:
    is_default = bool(stream.disposition & Disposition.default)
    tells = "matroska" in container.format.name
    return is_default and tells, stream.width * stream.height, -stream.index


def _opened(path: Path) -> Any:
    # A playlist under the name of a video leads nowhere else.
    return av.open(str(path), options={"protocol_whitelist": "file"}, metadata_errors="replace")


def _frames_of(container: Any, stream: Any) -> Iterator[Any]:
    """Decode a stream; what a damaged packet held is left out, as OpenCV does."""
    for packet in container.demux(stream):
        with suppress(av.error.InvalidDataError):
            yield from packet.decode()


class _Capture:
    """A stream of a video, deinterlaced, with the methods of `cv2.VideoCapture` that are used."""

    def __init__(self, path: Path, index: int) -> None:
        self._container = _opened(path)
        self._stream = self._container.streams[index]
        self._stream.thread_type = "AUTO"
        self._frame: Any = None
        self._frames = self._decoded()
        self._known = {
            cv2.CAP_PROP_FRAME_WIDTH: self._stream.width,
            cv2.CAP_PROP_FRAME_HEIGHT: self._stream.height,
            cv2.CAP_PROP_FRAME_COUNT: self._stream.frames,
            cv2.CAP_PROP_FPS: self._stream.average_rate or 0,
        }

    def get(self, name: int) -> float:
        """Return a property as OpenCV does; 0 for an unknown one."""
        return float(self._known.get(name, 0))

    def grab(self) -> bool:
        """Decode the next frame; False at the end.

        Raises:
            BadVideoError: FFmpeg cannot go on.

        """
        try:
            self._frame = next(self._frames, None)
        except (av.FFmpegError, LookupError) as error:
            raise BadVideoError(f"the video cannot be decoded: {error}") from error
        if self._frame and self._frame.pts is not None:
            start_s = (self._stream.start_time or 0) * self._stream.time_base
            shown_s = self._frame.pts * self._frame.time_base - start_s
            self._known[cv2.CAP_PROP_POS_MSEC] = 1000 * shown_s
        return self._frame is not None

    def retrieve(self) -> tuple[bool, Any]:
        """Return that frame, uint8 (H, W, 3) BGR, turned as it is displayed."""
        return True, np.rot90(self._frame.to_ndarray(), self._frame.rotation // 90)

    def release(self) -> None:
        """Close the file."""
        self._container.close()

    def _decoded(self) -> Iterator[Any]:
        """Yield the frames, deinterlaced.

        Raises:
            BadVideoError: they change, for which FFmpeg's filters are not made: they crash.

        """
        size = self._stream.width, self._stream.height, self._stream.pix_fmt
        graph = av.filter.Graph()
        graph.link_nodes(
            graph.add_buffer(template=self._stream),
            graph.add("bwdif", "mode=send_frame:deint=interlaced"),
            graph.add("format", "bgr24"),
            graph.add("buffersink"),
        ).configure()
        for frame in chain(_frames_of(self._container, self._stream), [None]):
            if frame and (frame.width, frame.height, frame.format.name) != size:
                raise BadVideoError("interlaced pictures that change in size or form: convert it")
            graph.vpush(frame)  # None: let it give what it holds
            with suppress(BlockingIOError, EOFError):
                while True:
                    yield graph.vpull()
