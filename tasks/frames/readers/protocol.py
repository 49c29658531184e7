"""What a reader is: it knows one format of sources and lists sequences, opening no picture."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from tasks.frames.listing import File, folder_below, s3_pages, s3_prefix
from tasks.store import storage


@dataclass(frozen=True)
class ListedSequence:
    """A sequence as its reader lists it: nothing is selected yet.

    Attributes:
        names: way from the source to it, for its id; () for the source itself.
        address: by which its reader finds it again (`tasks.frames.identity`).
        cameras: pictures in order, by camera; "" where there is only one.
        is_called_in_full: its id keeps folders such as `images`, as another sequence of the source
            would have the same without.

    """

    names: tuple[str, ...]
    address: str
    cameras: Mapping[str, Sequence[File]]
    is_called_in_full: bool = False


class Folder:
    """A folder, looked at no more than needed: of a bucket only the first thousand names."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def __truediv__(self, name: str) -> Folder:
        return Folder(folder_below(self.uri, [name]))

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
        try:
            if storage.is_local(self.uri):
                return self._entries_here()
            if storage.is_s3(self.uri):
                return self._first_page()
            found = storage.ask("list", self.uri, lambda fs, path: fs.ls(path, detail=True))
        except storage.NotFoundError:
            return {}  # the reader that lists it says so
        plain = unquote if storage.is_web(self.uri) else str
        return {
            plain(one["name"].rstrip("/").rpartition("/")[2]): one["type"] == "directory"
            for one in found
        }

    def _entries_here(self) -> dict[str, bool]:
        path = storage.local_path(self.uri)
        with storage.explained("list", self.uri), os.scandir(path) as entries:
            # A link that leads to itself is no folder, and no error.
            return {
                one.name: Path(one).is_dir() if one.is_symlink() else one.is_dir()
                for one in entries
            }

    def _first_page(self) -> dict[str, bool]:
        start, page = len(s3_prefix(self.uri)[1]), next(s3_pages(self.uri, Delimiter="/"))
        folders = (one["Prefix"][start:-1] for one in page.get("CommonPrefixes", ()))
        files = (one["Key"][start:] for one in page.get("Contents", ()))
        return dict.fromkeys(folders, True) | dict.fromkeys(files, False)


class Reader(Protocol):
    """Lists the sources of one format.

    Attributes:
        name: as `--format` takes it.
        layout: what a folder of this format holds; a message says "no" and then this.

    """

    name: str
    layout: str = ""

    def fits(self, folder: Folder) -> bool:
        """Whether a folder is of this format, by the names in it; of a file's format none is."""
        return False

    def sequences(self, source: str) -> Iterator[ListedSequence]:
        """List the sequences of a source, one after another.

        Raises:
            AutolabelError: it is not of this format, or cannot be listed.

        """

    def source_of(self, folder: str, part: str) -> str:
        """Return the smallest source that has the sequence of this address: mostly its folder."""
        return folder
