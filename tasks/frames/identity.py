"""What a frame is: its address in its sequence and the version of its content, never its position.

Samples, labels, decisions and requests are named by this. A frame that sorts earlier moves every
position behind it, and a frame rewritten in place keeps its own: a name made of positions would
then show what belongs to one picture on another.

Pictures that are no files of their own have the addresses `VIDEO#frame=NUMBER`,
`FILE.mcap#TOPIC#frame=NUMBER` and `FILE.tar#MEMBER#at=OFFSET`, with the byte at which the member
begins. No picture's own address ends so. Their versions (etags) are those of the file around them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import unquote

from tasks.store import storage
from tasks.store.storage import modified_time
from tasks.types import FrameRef

CHANGED_SINCE_LISTED = "its content changed while it was being labeled: run again"


def frame_key(frame: FrameRef, frames_uri: str = "") -> str:
    """Name one content of one frame: `SEQUENCE/ADDRESS@VERSION`, equal for every run and machine.

    Args:
        frame: as its labels name it. The version is its etag, or its size where there is none.
        frames_uri: address of its sequence, as manifests name it; the frame's address is relative
            to it. Without one it is the frame's whole address.

    """
    version = frame.etag or f"size-{frame.size_bytes:x}"
    return f"{frame.sequence_id}/{relative_address(frame.uri, frames_uri)}@{version}"


def relative_address(uri: str, frames_uri: str) -> str:
    """Address of a frame below that of its sequence; unchanged where it is elsewhere."""
    address, root = _plain(uri), _plain(split_address(frames_uri)[0]).rstrip("/")
    if root and address.startswith(f"{root}/"):
        return address[len(root) + 1 :]
    if root and (address == root or address.startswith(f"{root}#")):  # the sequence is the video
        return root.rpartition("/")[2] + address[len(root) :]
    return address


def is_below(uri: str, frames_uri: str) -> bool:
    """Whether an address lies at or below that of a sequence, without a way up in it."""
    address = _plain(uri)
    return ".." not in address.split("/") and relative_address(uri, frames_uri) != address


def _plain(uri: str) -> str:
    """Write the spellings of one address alike."""
    if uri.startswith(("http://", "https://")):
        return unquote(uri)
    for spelling, plain in (("file://", ""), ("local://", ""), ("s3a://", "s3://")):
        if uri.startswith(spelling):
            return plain + uri[len(spelling) :]
    scheme, mark, path = uri.partition("://")
    return f"{scheme}://{path.lstrip('/')}" if mark else uri


def file_version(path: Path) -> str | None:
    """Version of a file on this machine, as listings tell it; None where there is none."""
    try:
        return stat_version(path.stat())
    except OSError:
        return None


def read_versioned(path: Path) -> tuple[bytes, str]:
    """Read a file on this machine; returns its bytes and the version that they are of.

    The version is that of the opened file after its last byte: what lies under the name may be
    another one by then.
    """
    with path.open("rb") as file:
        data = file.read()
        return data, stat_version(os.fstat(file.fileno()))


def stat_version(stat: os.stat_result) -> str:
    """Version of a file on this machine by what the system says of it: size, time of change."""
    return f"{stat.st_size:x}-{stat.st_mtime_ns:x}"


def server_version(info: Mapping[str, Any], size_bytes: int) -> str:
    """Version of a file by what a server says of it: its etag, or else size and time of change."""
    etag = info.get("ETag") or info.get("etag")
    if etag is None:
        etag = f"{size_bytes:x}-{modified_time(info)}"
    return str(etag).strip('"')


_PART = re.compile(r"#(frame|at)=(\d+)$")
_CONTAINER = re.compile(r"\.(?:mcap|tar)(#)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """A picture inside of a file.

    Attributes:
        file_uri: address of the file.
        stream: topic or name of the member, "" for a video.
        number: of the frame in the video or topic, from 0; or byte at which the member begins.
        is_member: whether it is a member of an archive.

    """

    file_uri: str
    stream: str
    number: int
    is_member: bool = False

    @property
    def path(self) -> str:
        """The address as if the file were a folder, without the number."""
        return f"{self.file_uri}/{self.stream.lstrip('/')}" if self.stream else self.file_uri


def part_of(uri: str) -> Part | None:
    """Take the address of a picture inside of a file apart; None for a picture of its own."""
    match = _PART.search(uri)
    if match is None:
        return None
    file_uri, stream = uri[: match.start()], ""
    mark = _CONTAINER.search(file_uri)
    if mark:
        file_uri, stream = file_uri[: mark.start(1)], file_uri[mark.end(1) :]
    is_member = match[1] == "at"
    return None if is_member and not stream else Part(file_uri, stream, int(match[2]), is_member)


def is_file_here(uri: str) -> bool:
    """Whether an address is a file of this machine, used where it lies."""
    return storage.is_local(uri) and part_of(uri) is None


Format = Literal[
    "auto",
    "folders",
    "nuscenes",
    "kitti-raw",
    "kitti-tracking",
    "cityscapes",
    "coco",
    "parquet",
    "tar",
    "mcap",
]
FORMATS: tuple[str, ...] = get_args(Format)
_MARK = re.compile(rf"#({'|'.join(FORMATS)})=")


def address_of(folder: str, reader: str, part: str) -> str:
    """Return the address of a sequence that is not simply a folder or a file.

    Args:
        folder: the smallest one that holds all its pictures. A worker lists it again and takes the
            sequence with this same address.
        reader: its name.
        part: what tells the sequence from others in that folder, "" where there are none.

    """
    return f"{folder}#{reader}={part}"


def split_address(address: str) -> tuple[str, str, str]:
    """Folder, reader and part of a sequence's address; reader "" for a plain folder or file."""
    match = _MARK.search(address)
    if match is None:
        return address, "", ""
    return address[: match.start()], match[1], address[match.end() :]
