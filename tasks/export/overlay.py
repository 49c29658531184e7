"""Pictures for people: masks, classes, tracks and risk drawn over frames; sheets and videos.

Videos are H.264, which browsers play, at the frames' own times.
"""

import colorsys
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from tasks.export.types import ExportFrame, Instance, Sink, Writer, bitmap
from tasks.frames.images import BadImageError, as_jpeg, decode_image
from tasks.wording import counted

Picture = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.float64]
Bgr = tuple[int, int, int]
Rect = tuple[int, int, int, int]  # left, top, right, bottom
_LEAST_PX = 11  # letters of fewer pixels cannot be read
_REACH_LINES = 5  # how far above or below its box a caption may go, with a line that leads there
_HIDDEN_LINES = 8  # a box of as many lines of text squared is seen beside a caption on it
_MOST_HIDDEN = 0.15  # of the picture, by captions
_DARK, _BRIGHT = (0, 0, 0), (255, 255, 255)


@dataclass(frozen=True)
class Caption:
    """What to say of a box.

    Attributes:
        texts: the caption and shorter forms of it, the longest first.
        box_xyxy_px: what it belongs to.
        color: of the label, (B, G, R).

    """

    texts: Sequence[str]
    box_xyxy_px: tuple[float, float, float, float]
    color: Bgr


@functools.lru_cache(maxsize=16)
def font(size_px: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with Matplotlib: letters of most of the world's languages."""
    spec = find_spec("matplotlib")
    folder = Path((spec and spec.origin) or "").parent
    return ImageFont.truetype(folder / "mpl-data/fonts/ttf/DejaVuSans.ttf", size_px)


def fitting(captions: Sequence[Caption], size_hw: tuple[int, ...]) -> tuple[int, Sequence[Caption]]:
    """Choose the size of letters, and shorter captions where many would hide the picture.

    Args:
        captions: all of a picture.
        size_hw: of the picture.

    Returns:
        Pixels of the letters, and the captions.

    """
    large = max(_LEAST_PX, round(size_hw[1] / 90))
    small = max(_LEAST_PX, round(0.65 * large))
    ways = [(large, 0), *((small, shorter) for shorter in range(3))]
    for size_px, shorter in ways:
        chosen = [
            replace(caption, texts=caption.texts[shorter:] or caption.texts[-1:])
            for caption in captions
        ]
        width = sum(width_px(caption.texts[0], size_px) for caption in chosen)
        if width * line_px(size_px) <= _MOST_HIDDEN * size_hw[0] * size_hw[1]:
            break
    return size_px, chosen


def text_picture(text: str, size_px: int, ground: Bgr) -> Picture:
    """Write a line of text on a ground of one colour, dark or bright, whichever can be read.

    Returns:
        uint8 (h, w, 3) BGR.

    """
    width, height = width_px(text, size_px), line_px(size_px)
    blue, green, red = ground
    letters = _DARK if 0.299 * red + 0.587 * green + 0.114 * blue > 110 else _BRIGHT
    image = Image.new("RGB", (width, height), ground)
    ImageDraw.Draw(image).text(
        (_margin_px(size_px), height // 2), text, letters, font(size_px), anchor="lm"
    )  # letters are black or white: the order of colours does not matter
    return np.asarray(image)


def width_px(text: str, size_px: int) -> int:
    """Width of a text and its margins."""
    return round(font(size_px).getlength(text)) + 2 * _margin_px(size_px)


def _margin_px(size_px: int) -> int:
    return max(2, size_px // 5)


def line_px(size_px: int) -> int:
    """Height of a line of text."""
    return round(1.35 * size_px)


def write_captions(picture: Picture, captions: Sequence[Caption], size_px: int) -> int:
    """Write captions on a picture, in place.

    Args:
        picture: uint8 (H, W, 3) BGR.
        captions: with boxes in its pixels; the first ones have the best places.
        size_px: of the letters.

    Returns:
        How many there was no room for.

    """
    written = placed(captions, picture.shape[:2], size_px)
    for caption, _, rect in written:
        _lead(picture, caption, rect)
    for caption, text, (left, top, right, bottom) in written:
        picture[top:bottom, left:right] = text_picture(text, size_px, caption.color)
    return len(captions) - len(written)


def placed(
    captions: Iterable[Caption], size_hw: tuple[int, ...], size_px: int
) -> list[tuple[Caption, str, Rect]]:
    """Find positions for captions, so that none lies on another one.

    Where there is no room for the whole caption near its box, a shorter form stands there; where
    there is none for that either, it is left out.
    """
    wanted = list(captions)
    # Boxes that a caption would hide; of larger ones it hides a part.
    boxes = np.array([caption.box_xyxy_px for caption in wanted], np.float64).reshape(-1, 4)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    small = boxes[areas < (_HIDDEN_LINES * line_px(size_px)) ** 2]
    taken = np.zeros((0, 4))
    found = []
    for caption in wanted:
        text, rect = _place_caption(caption, taken, small, size_hw, size_px)
        if rect is not None:
            taken = np.vstack([taken, rect])
            found.append((caption, text, rect))
    return found


def _place_caption(
    caption: Caption, taken: Numbers, small: Numbers, size_hw: tuple[int, ...], size_px: int
) -> tuple[str, Rect | None]:
    """Find a form of a caption and a free place near its box for it; best where it hides nothing.

    The whole caption over a small box is better than the shortest one beside it.
    """
    both, height = np.vstack([taken, small]), line_px(size_px)
    forms = [
        *((text, both) for text in caption.texts[:2]),
        *((text, taken) for text in caption.texts),
    ]
    for text, others in forms:
        width = width_px(text, size_px)
        if width > size_hw[1] or height > size_hw[0]:
            continue
        for left, top in _positions(caption, width, height, size_hw):
            rect = (left, top, left + width, top + height)
            free = (
                (others[:, 0] >= rect[2]) | (others[:, 2] <= left)
                | (others[:, 1] >= rect[3]) | (others[:, 3] <= top)
            )  # fmt: skip
            if free.all():
                return text, rect
    return "", None


def _positions(
    caption: Caption, width: int, height: int, size_hw: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
    """Yield places (left, top) for a caption, the best ones first: above the box, below it, on."""
    left, top, right, bottom = (round(side) for side in caption.box_xyxy_px)
    last_x, last_y = size_hw[1] - width, size_hw[0] - height
    for line in range(_REACH_LINES):
        for y in (top - (line + 1) * height, bottom + line * height, top + line * height):
            if 0 <= y <= last_y:
                for x in (left, right - width, (left + right - width) // 2):
                    yield min(max(x, 0), last_x), y


def _lead(picture: Picture, caption: Caption, rect: Rect) -> None:
    """Draw a line from a caption that is away from its box to the box."""
    left, top, right, bottom = (round(side) for side in caption.box_xyxy_px)
    gap = max(top - rect[3], rect[1] - bottom)
    if gap <= 0:
        return
    x = min(max((left + right) // 2, rect[0]), rect[2] - 1)
    start, end = (rect[3], top) if top > rect[3] else (rect[1], bottom)
    width = max(1, round(picture.shape[1] / 1280))
    view: Any = picture
    cv2.line(view, (x, start), ((left + right) // 2, end), caption.color, width, cv2.LINE_AA)


_UNKNOWN_NS = 100_000_000  # between frames without a time
_MS = 1_000_000
_MOST_NS = 100_000_000_000  # that a picture is shown: no film of years, whatever times tell
_TICKS = 90_000  # a second, as players of MP4 are used to: 24, 25 and 30 frames/s are whole numbers
_LENGTHS_TOLD = 1 << 8  # AV_CODEC_FLAG_FRAME_DURATION


class Film:
    """An MP4 of pictures, uint8 (H, W, 3) BGR; the first one decides its size, made even.

    Args:
        path: of the file.
        size_wh: of the first picture; others are scaled to it.

    """

    def __init__(self, path: Path, size_wh: tuple[int, int]) -> None:
        self.path, self._size_wh = path, size_wh
        self._container: Any = None
        self._stream: Any = None
        self._waiting: tuple[Picture, int | None] | None = None  # shown until the next one
        self._length_ns = _UNKNOWN_NS  # of the one before
        self._passed_ns = 0

    def add(self, picture: Picture, time_ns: int | None) -> None:
        """Add a picture, taken at this time."""
        width, height = self._size_wh
        if picture.shape[:2] != (height, width):
            picture = np.asarray(cv2.resize(picture, self._size_wh), np.uint8)
        even = np.ascontiguousarray(picture[: height - height % 2, : width - width % 2])
        if self._waiting is not None:
            shown, since_ns = self._waiting
            self._length_ns = _UNKNOWN_NS
            if time_ns is not None and since_ns is not None:
                self._length_ns = min(max(time_ns - since_ns, _MS), _MOST_NS)
            self._write(shown)
        self._waiting = even, time_ns

    def _write(self, picture: Picture) -> None:
        import av

        if self._container is None:
            self._container = av.open(str(self.path), "w", options={"movflags": "+faststart"})
            rate = Fraction(1_000_000_000, self._length_ns).limit_denominator(1001)
            self._stream = self._container.add_stream("libx264", rate=rate)
            self._stream.height, self._stream.width = picture.shape[:2]
            self._stream.pix_fmt = "yuv420p"
            self._stream.options = {"preset": "veryfast", "crf": "23"}
            self._stream.codec_context.time_base = Fraction(1, _TICKS)
            self._stream.codec_context.flags |= _LENGTHS_TOLD
        frame = av.VideoFrame.from_ndarray(picture, format="bgr24")
        frame.time_base = Fraction(1, _TICKS)
        frame.pts = _ticks(self._passed_ns)
        self._passed_ns += self._length_ns
        frame.duration = _ticks(self._passed_ns) - frame.pts
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        """Finish the file; the last picture is shown as long as the one before it."""
        if self._waiting is not None:
            self._write(self._waiting[0])
            self._container.mux(self._stream.encode(None))
            self._container.close()


def _ticks(time_ns: int) -> int:
    return round(time_ns * _TICKS / 1_000_000_000)


_SHEET, _COLUMNS, _THUMB_WIDTH = 24, 4, 480
_SHEET_LETTERS_PX, _GAP, _PAPER = 16, 8, (245, 245, 245)
QUALITY = 90
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


def paint(frame: ExportFrame) -> Picture | None:
    """Draw a frame's masks over its picture; None where that cannot be read.

    Returns:
        uint8 (H, W, 3) BGR.

    """
    if frame.image is None:
        return None
    try:
        picture: Any = decode_image(frame.image.read_bytes())[:, :, ::-1].copy()
    except (OSError, BadImageError):
        return None
    if picture.shape[:2] != frame.size_hw:
        return None
    width = max(1, round(max(frame.size_hw) / 640))
    for instance in sorted(frame.instances, key=lambda instance: -instance.area_px):
        mask, color = bitmap(instance, frame.size_hw), color_of(instance)
        inside = mask > 0
        picture[inside] = (0.55 * picture[inside] + 0.45 * np.array(color)).astype(np.uint8)
        outlines, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
        cv2.drawContours(picture, outlines, -1, color, width)
    return np.asarray(picture, np.uint8)


def caption(picture: Picture, frame: ExportFrame) -> None:
    """Write what a frame's labels are on its picture, of its own size or another one, in place.

    Large labels first; where there is no room for all, a line says how many have none.
    """
    share = np.array([picture.shape[1], picture.shape[0]] * 2) / (frame.size_hw[::-1] * 2)
    every = []
    for instance in sorted(frame.instances, key=lambda instance: -instance.area_px):
        left, top, right, bottom = (float(side) for side in np.array(instance.box_xyxy_px) * share)
        every.append(Caption(_texts(instance), (left, top, right, bottom), color_of(instance)))
    size_px, captions = fitting(every, picture.shape[:2])
    missing = write_captions(picture, captions, size_px)
    if missing:
        text = f"{counted(missing, 'label')} without a caption: no room"
        note = text_picture(text, size_px, (255, 255, 255))[:, : picture.shape[1]]
        picture[-note.shape[0] :, : note.shape[1]] = note


def _texts(instance: Instance) -> tuple[str, ...]:
    """Caption of a label, and shorter ones."""
    name = instance.label if instance.track_id is None else f"{instance.label} #{instance.track_id}"
    shortest = instance.label[:3] if instance.track_id is None else f"#{instance.track_id}"
    source = instance.source.get("source", "")
    return " ".join(filter(None, [name, source, f"risk {instance.risk:.0%}"])), name, shortest


class _Series:
    """Video and contact sheet of one camera; a sheet has at most 24 pictures, evenly spread."""

    def __init__(self, sink: Sink, name: str, frame: ExportFrame) -> None:
        self._sink, self.name, self._first_ns = sink, name, frame.timestamp_ns
        self._thumbs: list[Picture] = []
        self._step, self._count = 1, 0
        self._size_wh = (frame.size_hw[1], frame.size_hw[0])
        path = sink.folder / f"{hashlib.sha256(name.encode()).hexdigest()}.mp4"
        self._film = Film(path, self._size_wh)

    def add(self, frame: ExportFrame, painted: Picture, captioned: Picture) -> None:
        """Add a frame's picture, without and with its captions."""
        self._film.add(captioned, frame.timestamp_ns)
        if self._count % self._step == 0:
            self._thumbs.append(self._thumb(frame, painted))
        self._count += 1
        if len(self._thumbs) > _SHEET:
            self._thumbs, self._step = self._thumbs[::2], self._step * 2

    def _thumb(self, frame: ExportFrame, painted: Picture) -> Picture:
        """Draw a frame small, with captions of its own and which frame it is below."""
        height = max(1, round(_THUMB_WIDTH * self._size_wh[1] / self._size_wh[0]))
        how = cv2.INTER_AREA if painted.shape[1] > _THUMB_WIDTH else cv2.INTER_LINEAR
        small = np.asarray(cv2.resize(painted, (_THUMB_WIDTH, height), interpolation=how), np.uint8)
        caption(small, frame)
        when = ""
        if frame.timestamp_ns is not None and self._first_ns is not None:
            when = f", {(frame.timestamp_ns - self._first_ns) / 1e9:.3f} s"
        text = text_picture(f"frame {frame.index}{when}", _SHEET_LETTERS_PX, _PAPER)
        below = _paper(line_px(_SHEET_LETTERS_PX) + _GAP, _THUMB_WIDTH)
        below[: text.shape[0], : text.shape[1]] = text[:, :_THUMB_WIDTH]
        return np.vstack([small, below])

    def close(self) -> None:
        self._film.close()
        self._sink.upload(f"videos/{self.name}.mp4", self._film.path)
        self._sink.write(f"sheets/{self.name}.jpg", as_jpeg(_sheet(self._thumbs), QUALITY))


def _paper(height: int, width: int) -> Picture:
    return np.full((height, width, 3), _PAPER, np.uint8)


def _sheet(thumbs: Sequence[Picture]) -> Picture:
    """Lay pictures of one size in rows, from left to right."""
    columns = min(_COLUMNS, len(thumbs))
    rows = -(-len(thumbs) // columns)
    height, width = thumbs[0].shape[:2]
    sheet = _paper(rows * height, columns * (width + _GAP) - _GAP)
    for position, thumb in enumerate(thumbs):
        top, left = position // columns * height, position % columns * (width + _GAP)
        sheet[top : top + height, left : left + width] = thumb
    return sheet


class OverlayWriter(Writer):
    """`overlays/` one JPEG per frame, `sheets/` and `videos/` one per camera."""

    _series: _Series | None = None

    def add(self, frame: ExportFrame) -> None:
        """Write a frame."""
        painted = paint(frame)
        if painted is None:
            why = "label of a frame whose picture cannot be read"
            self.notes.leave_out(why, len(frame.instances))
            return
        name = f"{frame.split}/{frame.series}" if frame.split else frame.series
        if self._series is None or self._series.name != name:
            self.close()
            self._series = _Series(self.sink, name, frame)
        captioned = painted.copy()
        caption(captioned, frame)
        self.sink.write(f"overlays/{frame.name}.jpg", as_jpeg(captioned, QUALITY))
        self._series.add(frame, painted, captioned)

    def close(self) -> Mapping[str, Any]:
        """Finish the last video and sheet."""
        if self._series:
            self._series.close()
        return {}
