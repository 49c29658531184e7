"""What a frame is: its address in its sequence and the version of its content, never its position.

Samples, labels, decisions and requests are named by this. A frame that sorts earlier moves every
position behind it, and a frame rewritten in place keeps its own: a name made of positions would
then show what belongs to one picture on another.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from tasks.types import FrameRef


@dataclass(frozen=True, order=True, slots=True)
class FrameIdentity:
    """One content of one frame.

    Attributes:
        sequence_id: the sequence it belongs to.
        address: path below the sequence's own address; for a frame of a video the video's path and
            the frame's number in it.
        version: etag of the image or video, or its size where the server tells no more.

    """

    sequence_id: str
    address: str
    version: str

    @property
    def key(self) -> str:
        """Name of the frame within a dataset: the same for every run and machine."""
        return f"{self.sequence_id}/{self.address}@{self.version}"


def frame_identity(frame: FrameRef, frames_uri: str = "") -> FrameIdentity:
    """Tell what a frame is.

    Args:
        frame: as its labels name it.
        frames_uri: address of its sequence, as manifests name it; without one the frame's whole
            address takes the place of the one in the sequence.

    """
    version = frame.etag or f"size-{frame.size_bytes:x}"
    return FrameIdentity(frame.sequence_id, relative_address(frame.uri, frames_uri), version)


def relative_address(uri: str, frames_uri: str) -> str:
    """Address of a frame below that of its sequence; unchanged where it is elsewhere."""
    address, root = _plain(uri), _plain(frames_uri).rstrip("/")
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
        stat = path.stat()
    except OSError:
        return None
    return f"{stat.st_size:x}-{stat.st_mtime_ns:x}"
