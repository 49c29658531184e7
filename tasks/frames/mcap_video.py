"""Video in messages, a packet each: decoded to pictures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sam2_core.machine_errors import as_machine_error, is_host_full
from sam2_core.types import AutolabelError
from tasks.frames.mcap_messages import BadPictureError
from tasks.frames.mcap_records import INSTALL

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture of a topic.

    Attributes:
        number: of the message in its topic.
        time_ns: when it was taken; of what has no time, when it was written.
        data: bytes of an image file; b"" for a picture that is not wanted.
        suffix: ending of such a file, with the dot.
        problem: why there is no picture.
        is_gap: the file is damaged here, and not only a message in it.

    """

    number: int
    time_ns: int
    data: bytes = b""
    suffix: str = ""
    problem: str = ""
    is_gap: bool = False


class PacketDecoder:
    """Decodes the packets of a topic; a picture may come out some messages after its packet."""

    def __init__(self, wanted: Callable[[int], bool]) -> None:
        self._wanted = wanted
        self._context: Any = None
        self._times: dict[int, int] = {}  # of packets whose picture has not come out yet

    def feed(self, number: int, time_ns: int, codec: str, data: bytes) -> Iterator[Shot]:
        """Decode a packet; a damaged one costs the pictures that need it."""
        av = _av()
        if self._context is None:
            names = {"h265": "hevc", "hevc": "hevc", "h264": "h264", "av1": "av1", "vp9": "vp9"}
            if codec.lower() not in names:
                raise BadPictureError(f"video in {codec!r}; known are {', '.join(names)}")
            self._context = av.CodecContext.create(names[codec.lower()], "r")
            self._context.thread_count = 1  # several hold pictures back
        packet = av.Packet(data)
        packet.pts = packet.dts = number
        self._times[number] = time_ns
        try:
            yield from self._out(self._context.decode(packet))
        except av.FFmpegError as error:
            _raise_of_machine(error)
            del self._times[number]
            yield Shot(
                number, time_ns, problem=f"this frame of the video cannot be decoded: {error}"
            )

    def _out(self, frames: Any) -> Iterator[Shot]:
        for frame in frames:
            number = int(frame.pts)
            time_ns = self._times.pop(number, 0)
            if not self._wanted(number):
                yield Shot(number, time_ns)
                continue
            import cv2

            from tasks.frames.mcap_messages import JPEG_QUALITY

            pixels = frame.to_ndarray(format="bgr24")
            data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1]
            yield Shot(number, time_ns, data.tobytes(), ".jpg")

    def end(self) -> Iterator[Shot]:
        """Yield what the decoder still holds, and what never came out."""
        if self._context is not None:
            try:
                yield from self._out(self._context.decode(None))
            except _av().FFmpegError as error:
                _raise_of_machine(error)
                log.debug("the end of a video: %s", error)
        for number, time_ns in sorted(self._times.items()):
            reason = "this frame of the video could not be decoded"
            yield Shot(number, time_ns, problem=reason)


def _raise_of_machine(error: Exception) -> None:
    """Raise a lack of memory; any other error number is a decoder's word for what it was fed."""
    if is_host_full(error):
        raise as_machine_error(error, "decoding a video") from error


def _av() -> Any:
    try:
        import av
        import av.error
    except ImportError as error:
        raise AutolabelError(f"compressed video needs the package av: {INSTALL}") from error
    return av
