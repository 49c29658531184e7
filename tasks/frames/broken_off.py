"""Whether a video file breaks off: one of its parts is longer than what is left of the file.

That fewer frames come out than a header promises proves nothing: edit lists hide frames, and where
a container does not count them their number is made of duration and rate. Lengths of parts do. Read
are those of MP4 and MOV, AVI, Matroska and WebM; a file of another form, or one whose recorder
never wrote the lengths, counts as whole.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tasks.wording import counted

_EBML = b"\x1a\x45\xdf\xa3"
_SEGMENT, _CLUSTER = b"\x18\x53\x80\x67", b"\x1f\x43\xb6\x75"
_MEDIA = {b"mdat", b"moof", b"movi", _CLUSTER}
_BOX_NAME = re.compile(rb"[ -~\xa9][ -~]{3}")
_LONGEST_LIST = 0x7FFFFFF0  # from there on, what recorders write who do not know it yet
# The name of a part, and where it ends by its own length.
Part = tuple[bytes, int]


def why_frames_lack(path: Path, decoded: int, promised: int) -> str:
    """Say why there is no frame after those that were decoded; "" where the video just ends.

    Args:
        path: of the video.
        decoded: frames that came out of it.
        promised: frames that its header tells of, or that duration and rate make; below 1: unknown.

    """
    with path.open("rb") as file:
        size_bytes = file.seek(0, 2)
        parts = list(_parts(file, size_bytes))
    if not any(name in _MEDIA and end > size_bytes for name, end in parts):
        return ""
    if any(name in {b"moof", _CLUSTER} for name, _ in parts):  # these do not count their frames
        return f"the file breaks off after {counted(decoded, 'frame')}"
    if decoded >= promised > 0:  # what is missing is sound, or an index
        return ""
    return f"{decoded} of {promised} frames could be decoded: the file breaks off"


def _parts(file: BinaryIO, size_bytes: int) -> Iterator[Part]:
    file.seek(0)
    head = file.read(4)
    if head == _EBML:
        return _elements(file, size_bytes)
    return _chunks(file, size_bytes) if head == b"RIFF" else _boxes(file, size_bytes)


def _boxes(file: BinaryIO, size_bytes: int) -> Iterator[Part]:
    """Yield the boxes of an MP4 (ISO 14496-12) that are in no other."""
    at = 0
    while at + 16 <= size_bytes:
        file.seek(at)
        length, name, long = struct.unpack(">I4sQ", file.read(16))
        length = long if length == 1 else length
        if length < 8 or not _BOX_NAME.fullmatch(name):  # 0: to the end of the file
            return
        at += length
        yield name, at


def _chunks(file: BinaryIO, size_bytes: int) -> Iterator[Part]:
    """Yield lists and chunks of an AVI, but for those around them or in them."""
    at = 0
    while at + 12 <= size_bytes:
        file.seek(at)
        name, length, kind = struct.unpack("<4sI4s", file.read(12))
        if name == b"RIFF":
            at += 12
            continue
        if name == b"LIST":
            if not 4 <= length < _LONGEST_LIST:
                return
            name = kind
        at += 8 + length
        yield name, at
        at += length % 2


def _elements(file: BinaryIO, size_bytes: int) -> Iterator[Part]:
    """Yield the elements of a Matroska file (RFC 8794): those in its segment, and before it."""
    at = 0
    while at + 12 <= size_bytes:
        file.seek(at)
        head = file.read(12)
        width = 9 - head[0].bit_length()  # as many bits are 0 before the first 1 as bytes follow
        if width > 4:
            return
        name, digits = head[:width], 9 - head[width].bit_length()
        if digits > 8:
            return
        most = (1 << 7 * digits) - 1
        length = int.from_bytes(head[width : width + digits], "big") & most
        at += width + digits
        if name == _SEGMENT:
            continue
        if length == most:  # unknown: it ends where the next one begins
            return
        at += length
        yield name, at
