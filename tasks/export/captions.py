"""Captions on a picture: each beside its box, none over another one."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import ImageFont

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
    from importlib.util import find_spec
    from pathlib import Path

    from PIL import ImageFont

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
        chosen = [replace(one, texts=one.texts[shorter:] or one.texts[-1:]) for one in captions]
        width = sum(width_px(one.texts[0], size_px) for one in chosen)
        if width * line_px(size_px) <= _MOST_HIDDEN * size_hw[0] * size_hw[1]:
            break
    return size_px, chosen


def text_picture(text: str, size_px: int, ground: Bgr) -> Picture:
    """Write a line of text on a ground of one colour, dark or bright, whichever can be read.

    Returns:
        uint8 (h, w, 3) BGR.

    """
    from PIL import Image, ImageDraw

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
    for one, _, rect in written:
        _lead(picture, one, rect)
    for one, text, (left, top, right, bottom) in written:
        picture[top:bottom, left:right] = text_picture(text, size_px, one.color)
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
    boxes = np.array([one.box_xyxy_px for one in wanted], np.float64).reshape(-1, 4)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    small = boxes[areas < (_HIDDEN_LINES * line_px(size_px)) ** 2]
    taken = np.zeros((0, 4))
    found = []
    for one in wanted:
        text, rect = _placed(one, taken, small, size_hw, size_px)
        if rect is not None:
            taken = np.vstack([taken, rect])
            found.append((one, text, rect))
    return found


def _placed(
    one: Caption, taken: Numbers, small: Numbers, size_hw: tuple[int, ...], size_px: int
) -> tuple[str, Rect | None]:
    """Find a form of a caption and a free place near its box for it; best where it hides nothing.

    The whole caption over a small box is better than the shortest one beside it.
    """
    both, height = np.vstack([taken, small]), line_px(size_px)
    forms = [*((text, both) for text in one.texts[:2]), *((text, taken) for text in one.texts)]
    for text, others in forms:
        width = width_px(text, size_px)
        if width > size_hw[1] or height > size_hw[0]:
            continue
        for left, top in _positions(one, width, height, size_hw):
            rect = (left, top, left + width, top + height)
            free = (
                (others[:, 0] >= rect[2]) | (others[:, 2] <= left)
                | (others[:, 1] >= rect[3]) | (others[:, 3] <= top)
            )  # fmt: skip
            if free.all():
                return text, rect
    return "", None


def _positions(
    one: Caption, width: int, height: int, size_hw: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
    """Yield places (left, top) for a caption, the best ones first: above the box, below it, on."""
    left, top, right, bottom = (round(side) for side in one.box_xyxy_px)
    last_x, last_y = size_hw[1] - width, size_hw[0] - height
    for line in range(_REACH_LINES):
        for y in (top - (line + 1) * height, bottom + line * height, top + line * height):
            if 0 <= y <= last_y:
                for x in (left, right - width, (left + right - width) // 2):
                    yield min(max(x, 0), last_x), y


def _lead(picture: Picture, one: Caption, rect: Rect) -> None:
    """Draw a line from a caption that is away from its box to the box."""
    import cv2

    left, top, right, bottom = (round(side) for side in one.box_xyxy_px)
    gap = max(top - rect[3], rect[1] - bottom)
    if gap <= 0:
        return
    x = min(max((left + right) // 2, rect[0]), rect[2] - 1)
    start, end = (rect[3], top) if top > rect[3] else (rect[1], bottom)
    width = max(1, round(picture.shape[1] / 1280))
    view: Any = picture
    cv2.line(view, (x, start), ((left + right) // 2, end), one.color, width, cv2.LINE_AA)
