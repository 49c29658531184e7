"""Addresses of sequences and of pictures that are no plain folders and files.

A sequence is found again by its address: for plain folders and videos their own, else
`FOLDER#READER=PART`, where all its pictures are below FOLDER and the reader makes and reads PART.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

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
