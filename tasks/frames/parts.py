"""Pictures that are no files of their own: frames of videos and topics, members of archives.

Their addresses are `VIDEO#frame=NUMBER`, `FILE.mcap#TOPIC#frame=NUMBER` and
`FILE.tar#MEMBER#at=OFFSET`, with the byte at which the member begins. No picture's own address ends
so. Versions (etags) of such a picture are those of the file around it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tasks.store import storage

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
