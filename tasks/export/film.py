"""Videos of overlays: H.264 at the frames' own times where PyAV is here, which browsers play.

OpenCV's wheels have no encoder of H.264; what they write, MPEG-4 part 2, is for players.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FPS = 10.0  # of frames that nobody knows the time of
_MS = 1_000_000
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
        size_wh: of the first picture.

    """

    def __init__(self, path: Path, size_wh: tuple[int, int]) -> None:
        import cv2

        self.path = path
        self._size_wh = (size_wh[0] - size_wh[0] % 2, size_wh[1] - size_wh[1] % 2)
        self._container: Any = None
        self._writer: Any = None
        self._first_ns: int | None = None
        self._last_ms = -1
        if not has_h264():
            codec = cv2.VideoWriter.fourcc(*"mp4v")
            self._writer = cv2.VideoWriter(str(path), codec, FPS, self._size_wh)
            return
        import av

        self._container = av.open(str(path), "w", options={"movflags": "+faststart"})
        self._stream: Any = self._container.add_stream("libx264", rate=round(FPS))
        self._stream.width, self._stream.height = self._size_wh
        self._stream.pix_fmt = "yuv420p"
        self._stream.options = {"preset": "veryfast", "crf": "23"}
        self._stream.codec_context.time_base = Fraction(1, 1000)

    def add(self, picture: Picture, time_ns: int | None) -> None:
        """Add a picture, taken at this time."""
        import cv2

        width, height = self._size_wh
        if picture.shape[:2] != (height, width):
            near = abs(picture.shape[0] - height) <= 1 and abs(picture.shape[1] - width) <= 1
            cut = picture[:height, :width] if near else picture
            picture = np.ascontiguousarray(cut)
            if cut.shape[:2] != (height, width):
                picture = np.asarray(cv2.resize(picture, self._size_wh), np.uint8)
        if self._container is None:
            self._writer.write(picture)
            return
        import av

        frame = av.VideoFrame.from_ndarray(picture, format="bgr24")
        frame.pts, frame.time_base = self._place_ms(time_ns), Fraction(1, 1000)
        self._container.mux(self._stream.encode(frame))

    def _place_ms(self, time_ns: int | None) -> int:
        """Milliseconds from the first picture; always after the last."""
        if self._first_ns is None and self._last_ms < 0:
            self._first_ns = time_ns
        known = time_ns is not None and self._first_ns is not None
        guess = self._last_ms + round(1000 / FPS) if self._last_ms >= 0 else 0
        place = (time_ns - self._first_ns) // _MS if known else guess  # type: ignore[operator]
        self._last_ms = max(place, self._last_ms + 1)
        return self._last_ms

    def close(self) -> None:
        """Finish the file."""
        if self._container is None:
            self._writer.release()
            return
        self._container.mux(self._stream.encode(None))
        self._container.close()
