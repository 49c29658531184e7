"""Pictures for people: masks, classes, tracks and risk drawn over frames; sheets and videos."""

from __future__ import annotations

import colorsys
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tasks.export.film import Film, has_h264
from tasks.export.masks import bitmap
from tasks.export.sink import Sink
from tasks.export.types import Classes, ExportFrame, Instance, Told

_SHEET, _COLUMNS, _THUMB_WIDTH = 24, 4, 480
_QUALITY = 90
Picture = npt.NDArray[np.uint8]
_GOLDEN_SECTION = 0x9E3779B97F4A7C15  # of 2**64


def color_of(instance: Instance) -> tuple[int, int, int]:
    """Colour (B, G, R) of a track, or of a class where there is no track: the same everywhere.

    Tracks that follow each other are a golden section apart: hashes of a few may be nearly equal.
    """
    track = instance.track_id
    if track is None:
        hue = int.from_bytes(hashlib.sha256(instance.label.encode()).digest()[:4], "big") / 2**32
    else:
        hue = track * _GOLDEN_SECTION % 2**64 / 2**64
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, 1.0)
    return round(255 * blue), round(255 * green), round(255 * red)


def draw(frame: ExportFrame) -> Picture | None:
    """Draw a frame's labels over its picture; None where that cannot be read.

    Returns:
        uint8 (H, W, 3) BGR.

    """
    import cv2

    if frame.image is None:
        return None
    from tasks.frames.images import BadImageError, decode_image

    try:
        picture: Any = decode_image(frame.image.read_bytes())[:, :, ::-1].copy()
    except (OSError, BadImageError):
        return None
    if picture.shape[:2] != frame.size_hw:
        return None
    scale = max(frame.size_hw) / 1280
    width = max(1, round(2 * scale))
    for one in sorted(frame.instances, key=lambda one: -one.area_px):
        mask, color = bitmap(one, frame.size_hw), color_of(one)
        inside = mask > 0
        picture[inside] = (0.55 * picture[inside] + 0.45 * np.array(color)).astype(np.uint8)
        outlines, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
        cv2.drawContours(picture, outlines, -1, color, width)
    for one in frame.instances:
        _caption(picture, one, scale)
    return np.asarray(picture, np.uint8)


def _caption(picture: Any, one: Instance, scale: float) -> None:
    import cv2

    track = "" if one.track_id is None else f" #{one.track_id}"
    text = f"{one.label}{track} risk {one.risk:.0%}"
    size, thick = max(0.35, 0.45 * scale), max(1, round(scale))
    (width, height), base = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size, thick)
    x = int(np.clip(one.box_xyxy_px[0], 0, max(picture.shape[1] - width, 0)))
    y = int(np.clip(one.box_xyxy_px[1] - base, height + base, picture.shape[0] - base))
    cv2.rectangle(picture, (x, y - height - base), (x + width, y + base), (0, 0, 0), -1)
    font = cv2.FONT_HERSHEY_SIMPLEX
    cv2.putText(picture, text, (x, y), font, size, color_of(one), thick, cv2.LINE_AA)


def jpeg(picture: Picture) -> bytes:
    """Encode a BGR picture."""
    import cv2

    return bytes(cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])[1].tobytes())


class _Series:
    """Video and contact sheet of one camera; a sheet has at most 24 pictures, evenly spread."""

    def __init__(self, sink: Sink, name: str) -> None:
        self._sink, self.name = sink, name
        self._thumbs: list[Picture] = []
        self._step, self._count = 1, 0
        self._film: Film | None = None

    def add(self, picture: Picture, time_ns: int | None) -> None:
        import cv2

        height, width = picture.shape[:2]
        if self._film is None:
            path = self._sink.folder / f"{hashlib.sha256(self.name.encode()).hexdigest()}.mp4"
            self._size = (width, height)
            self._film = Film(path, self._size)
        shown = picture if (width, height) == self._size else cv2.resize(picture, self._size)
        self._film.add(np.asarray(shown, np.uint8), time_ns)
        if self._count % self._step == 0:
            size = (_THUMB_WIDTH, max(1, round(_THUMB_WIDTH * self._size[1] / self._size[0])))
            self._thumbs.append(np.asarray(cv2.resize(shown, size, interpolation=cv2.INTER_AREA)))
        self._count += 1
        if len(self._thumbs) > _SHEET:
            self._thumbs, self._step = self._thumbs[::2], self._step * 2

    def close(self) -> None:
        if self._film is None:
            return
        self._film.close()
        self._sink.upload(f"videos/{self.name}.mp4", self._film.path)
        missing = -len(self._thumbs) % _COLUMNS
        thumbs = self._thumbs + [np.zeros_like(self._thumbs[0])] * missing
        rows = [np.hstack(thumbs[i : i + _COLUMNS]) for i in range(0, len(thumbs), _COLUMNS)]
        self._sink.write(f"sheets/{self.name}.jpg", jpeg(np.vstack(rows)))


class OverlayWriter:
    """`overlays/` one JPEG per frame, `sheets/` and `videos/` one per camera."""

    def __init__(self, sink: Sink, _classes: Classes, told: Told) -> None:
        self._sink, self._told = sink, told
        self._series: _Series | None = None

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        name = f"{frame.split}/{frame.series}" if frame.split else frame.series
        if self._series is None or self._series.name != name:
            self._end()
            self._series = _Series(self._sink, name)
        picture = draw(frame)
        if picture is None:
            self._told.leave_out(
                "label of a frame whose picture cannot be read", len(frame.instances)
            )
            return
        self._sink.write(f"overlays/{frame.name}.jpg", jpeg(picture))
        self._series.add(picture, frame.timestamp_ns)

    def _end(self) -> None:
        if self._series:
            self._series.close()

    def close(self) -> Mapping[str, Any]:
        """Finish the last video and sheet."""
        self._end()
        return {"video_codec": "h264" if has_h264() else "mpeg4, which browsers do not play"}
