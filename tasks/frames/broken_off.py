"""Whether a video file breaks off: it is shorter than the lengths in it say.

That fewer frames come out than a header promises proves nothing: edit lists hide frames, and where
a container does not count them their number is made of duration and rate. Lengths do. Read are the
outermost parts of MP4 and MOV, AVI, Matroska and WebM; a file of another form, or one whose
recorder never wrote the lengths, counts as whole.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import BinaryIO

from tasks.wording import counted

_EBML = b"\x1a\x45\xdf\xa3"
_BOX_NAME = re.compile(rb"[ -~\xa9][ -~]{3}")


def why_frames_lack(path: Path, decoded: int, promised: int) -> str:
    """Say why there is no frame after those that were decoded; "" where the video just ends.

    Args:
        path: of the video.
        decoded: frames that came out of it.
        promised: frames that its header tells of, or that duration and rate make; below 1: unknown.

    """
    with path.open("rb") as file:
        size_bytes = file.seek(0, 2)
        file.seek(0)
        head = file.read(4)
        if head == _EBML:
            end, counts = _end_of_segment(file), False
        elif head == b"RIFF":
            end, counts = _end_of_lists(file, size_bytes), True
        else:
            end, counts = _end_of_boxes(file, size_bytes)
    if end <= size_bytes:
        return ""
    if not counts:
        return f"the file breaks off after {counted(decoded, 'frame')}"
    if decoded >= promised > 0:  # what is missing is sound, or an index
        return ""
    return f"{decoded} of {promised} frames could be decoded: the file breaks off"


def _end_of_boxes(file: BinaryIO, size_bytes: int) -> tuple[int, bool]:
    """Return where an MP4 (ISO 14496-12) ends, and whether its header counts its frames."""
    at, counts = 0, True
    while at + 16 <= size_bytes:
        file.seek(at)
        length, name, long = struct.unpack(">I4sQ", file.read(16))
        length = long if length == 1 else length
        if length < 8 or not _BOX_NAME.fullmatch(name):  # 0: to the end of the file
            break
        at += length
        counts = counts and name != b"moof"
    return at, counts


def _end_of_lists(file: BinaryIO, size_bytes: int) -> int:
    """Return where an AVI ends: it is one list, or several of at most a gigabyte each."""
    at = 0
    while at + 8 <= size_bytes:
        file.seek(at)
        name, length = struct.unpack("<4sI", file.read(8))
        if name != b"RIFF" or not 0 < length < 0x7FFFFFF0:  # as recorders leave it
            break
        at += 8 + length + length % 2
    return at


def _end_of_segment(file: BinaryIO) -> int:
    """Return where the segment of a Matroska file (RFC 8794) ends, 0 where that is unknown."""
    at = 0
    for _ in ("header", "segment"):
        file.seek(at + len(_EBML))
        field = file.read(8)
        digits = 9 - field[0].bit_length() if field else 9
        if digits > 8:
            return 0
        most = (1 << 7 * digits) - 1
        length = int.from_bytes(field[:digits], "big") & most
        if length == most:
            return 0
        at += len(_EBML) + digits + length
    return at
