"""Videos of overlays: H.264 at the frames' own times where PyAV is here, which browsers play.

OpenCV's wheels have no encoder of H.264; what they write is MPEG-4 part 2 at one rate, for players.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_UNKNOWN_NS = 100_000_000  # between frames that nobody knows the time of
_MS = 1_000_000
_TICKS = 90_000  # a second, as players of MP4 are used to: 24, 25 and 30 frames/s are whole numbers
Picture = npt.NDArray[np.uint8]


def has_h264() -> bool:
    """Whether H.264 can be written here."""
    try:
        import av
    except ImportError:
        return False
    return "libx264" in av.codecs_available


class Film:
    """An MP4 of pictures, uint8 (H, W, 3) BGR; the first one decides its size, made even.

    Args:
        path: of the file.
        size_wh: of the first picture; others are scaled to it.

    """

    def __init__(self, path: Path, size_wh: tuple[int, int]) -> None:
        self.path, self._size_wh = path, size_wh
        self._writer: _H264 | _Mpeg4 | None = None
        self._waiting: tuple[Picture, int | None] | None = None  # shown until the next one
        self._length_ns = _UNKNOWN_NS  # of the one before

    def add(self, picture: Picture, time_ns: int | None) -> None:
        """Add a picture, taken at this time."""
        import cv2

        width, height = self._size_wh
        if picture.shape[:2] != (height, width):
            picture = np.asarray(cv2.resize(picture, self._size_wh), np.uint8)
        even = np.ascontiguousarray(picture[: height - height % 2, : width - width % 2])
        before, self._waiting = self._waiting, (even, time_ns)
        if before is not None:
            length_ns = _UNKNOWN_NS
            if time_ns is not None and before[1] is not None:
                length_ns = max(time_ns - before[1], _MS)
            self._write(before[0], length_ns)

    def _write(self, picture: Picture, length_ns: int) -> None:
        """Write a picture that is shown for so long."""
        if self._writer is None:
            kind = _H264 if has_h264() else _Mpeg4
            self._writer = kind(self.path, (picture.shape[1], picture.shape[0]), length_ns)
        self._writer.write(picture, length_ns)
        self._length_ns = length_ns

    def close(self) -> None:
        """Finish the file; the last picture is shown as long as the one before it."""
        if self._waiting is not None:
            self._write(self._waiting[0], self._length_ns)
        if self._writer is not None:
            self._writer.close()


class _H264:
    """Writes with PyAV, each picture for its own time."""

    def __init__(self, path: Path, size_wh: tuple[int, int], first_ns: int) -> None:
        import av

        self._container: Any = av.open(str(path), "w", options={"movflags": "+faststart"})
        rate = Fraction(1_000_000_000, first_ns).limit_denominator(1001)
        self._stream: Any = self._container.add_stream("libx264", rate=rate)
        self._stream.width, self._stream.height = size_wh
        self._stream.pix_fmt = "yuv420p"
        self._stream.options = {"preset": "veryfast", "crf": "23"}
        self._stream.codec_context.time_base = Fraction(1, _TICKS)
        self._passed_ns, self._lengths = 0, dict[int, int]()

    def write(self, picture: Picture, length_ns: int) -> None:
        import av

        frame = av.VideoFrame.from_ndarray(picture, format="bgr24")
        start, self._passed_ns = self._passed_ns, self._passed_ns + length_ns
        frame.pts, frame.time_base = _ticks(start), Fraction(1, _TICKS)
        self._lengths[frame.pts] = _ticks(self._passed_ns) - frame.pts
        self._mux(self._stream.encode(frame))

    def _mux(self, packets: Any) -> None:
        for packet in packets:
            packet.duration = self._lengths.pop(packet.pts, packet.duration)
            self._container.mux(packet)

    def close(self) -> None:
        self._mux(self._stream.encode(None))
        self._container.close()


class _Mpeg4:
    """Writes with OpenCV, which knows one rate: that of the first picture."""

    def __init__(self, path: Path, size_wh: tuple[int, int], first_ns: int) -> None:
        import cv2

        rate = min(max(1e9 / first_ns, 1.0), 60.0)
        codec = cv2.VideoWriter.fourcc(*"mp4v")
        self._writer = cv2.VideoWriter(str(path), codec, round(rate, 2), size_wh)

    def write(self, picture: Picture, _length_ns: int) -> None:
        self._writer.write(picture)

    def close(self) -> None:
        self._writer.release()


def _ticks(time_ns: int) -> int:
    return round(time_ns * _TICKS / 1_000_000_000)
