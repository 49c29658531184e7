"""What a reader is: it knows one format of sources and lists sequences, opening no picture."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol
from urllib.parse import unquote

from tasks.frames.listing import File, folder_below, is_folder
from tasks.frames.listing_s3 import Prefix
from tasks.store import storage
from tasks.store.retry import with_retries


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture, a video, or pictures inside of a file, as a reader lists them.

    Attributes:
        file: where.
        timestamp_ns: since 1970, or None.
        problem: why it cannot be labeled, with file and place; "" for nothing.
        stream: topic of a recording, whose pictures are not known before it is opened.

    """

    file: File
    timestamp_ns: int | None = None
    problem: str = ""
    stream: str = ""


@dataclass(frozen=True)
class Listed:
    """A sequence as its reader lists it: nothing is selected yet.

    Attributes:
        names: way from the source to it, for its id; () for the source itself.
        address: by which its reader finds it again (`tasks.frames.addresses`).
        cameras: pictures in order, by camera; "" where there is only one.
        is_called_in_full: its id keeps folders such as `images`, as another sequence of the source
            would have the same without.

    """

    names: tuple[str, ...]
    address: str
    cameras: Mapping[str, Sequence[Picture]]
    is_called_in_full: bool = False


class Place:
    """A folder, looked at no more than needed: of a bucket only the first thousand names."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def __truediv__(self, name: str) -> Place:
        return Place(folder_below(self.uri, [name]))

    @property
    def folders(self) -> list[str]:
        """Names of the folders in it, sorted."""
        return sorted(name for name, is_folder in self._entries.items() if is_folder)

    @property
    def files(self) -> set[str]:
        """Names of the files in it."""
        return {name for name, is_folder in self._entries.items() if not is_folder}

    @cached_property
    def _entries(self) -> dict[str, bool]:
        fs, path = storage.filesystem(self.uri)
        try:
            with storage.explained("list", self.uri):
                if storage.is_local(self.uri):
                    with os.scandir(path) as entries:
                        return {one.name: is_folder(one) for one in entries}
                if storage.is_s3(self.uri):
                    return dict(_first_page(fs, path))
                what = f"listing {storage.redact(self.uri)}"
                found = with_retries(lambda: fs.ls(path, detail=True), what)
        except storage.NotFoundError:
            return {}  # whoever lists it in earnest says so
        names = {
            one["name"].rstrip("/").rpartition("/")[2]: one["type"] == "directory" for one in found
        }
        if storage.is_web(self.uri):
            return {unquote(name): is_folder for name, is_folder in names.items()}
        return names


def _first_page(fs: object, path: str) -> Iterator[tuple[str, bool]]:
    bucket, _, prefix = path.partition("/")
    prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    page = next(Prefix(fs, bucket, prefix).pages(Delimiter="/"))
    for one in page.get("CommonPrefixes", ()):
        yield one["Prefix"][len(prefix) :].rstrip("/"), True
    for one in page.get("Contents", ()):
        yield one["Key"][len(prefix) :], False


class Reader(Protocol):
    """Lists the sources of one format.

    Attributes:
        name: as `--format` takes it.
        layout: what a folder of this format holds; a message says "no" and then this.

    """

    name: str
    layout: str = ""

    def fits(self, place: Place) -> bool:
        """Whether a folder is of this format, by the names in it; of a file's format none is."""
        return False

    def sequences(self, source: str) -> Iterator[Listed]:
        """List the sequences of a source, one after another.

        Raises:
            AutolabelError: it is not of this format, or cannot be listed.

        """

    def source_of(self, folder: str, part: str) -> str:
        """Return the smallest source that has the sequence of this address: mostly its folder."""
        return folder
