"""Folders and files below an address, as a stream, and what a reader of a format makes of them.

One pass and few requests: on S3 one request per thousand objects whatever the folders; locally one
`scandir` per folder. Nothing is kept but the folders that are still open.
"""

from __future__ import annotations

import itertools
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit

from tasks.frames.identity import server_version, stat_version, timestamps_ns
from tasks.frames.unread import is_footage, is_hidden, is_path_read, is_read
from tasks.passed_over import PassedOver
from tasks.store import storage

_DIGITS = re.compile(r"(\d+)")
_ELSEWHERE = "file of footage outside the format", "files of footage outside the format"
_NO_FILE = "dangling link, pipe, socket or device", "dangling links, pipes, sockets or devices"

_HTTP_LEVELS = 40
_FIRST_NAMES = 1000  # of a bucket's folder: one request
OnSkipped = Callable[[Path, Path], object]


@dataclass(frozen=True, slots=True)
class File:
    """A file below an address; to readers a picture, a video, or pictures inside of a file.

    Attributes:
        name: last part of its path, unquoted.
        uri: fsspec URL.
        size_bytes: 0 when unknown.
        etag: what tells one content from another: the server's etag, or size and time of change.
        timestamp_ns: when it was taken, since 1970, where a reader knows.
        problem: why it cannot be labeled, with file and place; "" for nothing.
        stream: topic of a recording, whose pictures are not known before it is opened.

    """

    name: str
    uri: str
    size_bytes: int
    etag: str
    timestamp_ns: int | None = None
    problem: str = ""
    stream: str = ""


def natural_key(name: str) -> tuple[list[str | int], str]:
    """Sort key by which frame_2 comes before frame_10."""
    parts: list[str | int] = [*_DIGITS.split(name)]  # text, digits, text, digits, ..., text
    parts[1::2] = map(int, parts[1::2])
    return parts, name


def stat_file(uri: str) -> File | None:
    """Return one file, or None when the address is a folder.

    Raises:
        NotFoundError: there is nothing.

    """
    info = storage.ask("open", uri, lambda fs, path: fs.info(path))
    if info["type"] != "file":
        return None
    return _file_of(info, storage.absolute(uri))


def folder_below(root_uri: str, names: Iterable[str]) -> str:
    """Return the address of a folder that `walk` found: names on the web are quoted there."""
    return storage.join(root_uri, *(map(quote, names) if storage.is_web(root_uri) else names))


def walk(
    root_uri: str,
    passed_over: PassedOver | None = None,
    on_skipped: OnSkipped = lambda *_: None,
) -> Iterator[tuple[tuple[str, ...], list[File]]]:
    """Every folder with files below a root: (names from the root down, its files).

    A folder comes after the folders in it, and everything below a folder comes in one run. Hidden
    names are left out; so are names that lead elsewhere. Links to folders are followed, and each
    real folder comes once: by its own name where that is below the root.

    Args:
        root_uri: fsspec URL of a folder.
        passed_over: what should be footage and is not read, and empty folders, are added.
        on_skipped: called with a folder of this machine that comes under another name, and its
            real path.

    Raises:
        StorageError: the root does not exist or a folder cannot be listed.

    """
    passed_over = passed_over or PassedOver()
    if storage.is_local(root_uri):
        root = storage.local_path(root_uri)
        return _LocalWalk(root, passed_over, on_skipped).folders(root, ())
    if storage.is_web(root_uri):
        return _walk_http(root_uri.rstrip("/") + "/", (), passed_over)
    files = _walk_s3(root_uri) if storage.is_s3(root_uri) else _walk_any(root_uri)
    return _group_by_folder(files, root_uri, passed_over)


class _LocalWalk:
    """Walk through folders of this machine that ends, whatever links there are."""

    def __init__(self, root: Path, passed_over: PassedOver, on_skipped: OnSkipped) -> None:
        self._root, self._passed_over, self._on_skipped = root.resolve(), passed_over, on_skipped
        self._seen: set[tuple[int, int]] = set()  # device and inode of every folder read

    def folders(
        self, folder: Path, names: tuple[str, ...]
    ) -> Iterator[tuple[tuple[str, ...], list[File]]]:
        """Yield a folder and those below it, unless it was read before."""
        with storage.explained("list", str(folder)):
            status = folder.stat()
        if (status.st_dev, status.st_ino) in self._seen:
            self._on_skipped(folder, folder.resolve())
            return
        self._seen.add((status.st_dev, status.st_ino))
        files, below = self._sorted(folder)
        for name in sorted(below, key=natural_key):
            yield from self.folders(folder / name, (*names, name))
        if files:
            yield names, files

    def _sorted(self, folder: Path) -> tuple[list[File], list[str]]:
        """Files of a folder, and names of the folders in it that are to be read."""
        files: list[File] = []
        below: list[str] = []
        empty = True
        for entry, status in storage.scan(folder):
            is_folder = status is not None and stat.S_ISDIR(status.st_mode)
            if not is_read(entry.name, self._passed_over, is_folder=is_folder):
                continue
            empty = False
            if is_folder:
                if not entry.is_symlink() or self._is_to_follow(Path(entry.path)):
                    below.append(entry.name)
            elif status and stat.S_ISREG(status.st_mode):
                version = stat_version(status)
                files.append(File(entry.name, entry.path, status.st_size, version))
            else:
                self._passed_over.add(*_NO_FILE, example=entry.name)
        if empty:
            self._passed_over.add("empty folder", example=folder.name)
        return files, below

    def _is_to_follow(self, link: Path) -> bool:
        """Whether a link leads to a folder that this walk does not come to otherwise."""
        target = link.resolve()
        if link.parent.resolve().is_relative_to(target):  # up: it would come to itself again
            return False
        if not target.is_relative_to(self._root):
            return True
        if any(map(is_hidden, target.relative_to(self._root).parts)):
            return True
        self._on_skipped(link, target)
        return False


def _walk_s3(root_uri: str) -> Iterator[tuple[str, File]]:
    bucket, prefix = storage.s3_prefix(root_uri)
    for page in storage.s3_pages(root_uri):
        for item in page.get("Contents", ()):
            key, etag = item["Key"], item["ETag"].strip('"')
            if not key.endswith("/"):
                file = File(key.rpartition("/")[2], f"s3://{bucket}/{key}", item["Size"], etag)
                yield key[len(prefix) :], file


def _walk_any(root_uri: str) -> Iterator[tuple[str, File]]:
    def find(fs: Any, path: str) -> dict[str, File]:
        found = fs.find(path, detail=True)
        if not found and not fs.exists(path):
            raise FileNotFoundError(path)
        root = path.rstrip("/") + "/"
        return {
            name.removeprefix(root): _file_of(found[name], fs.unstrip_protocol(name))
            for name in sorted(found)
        }

    yield from storage.ask("list", root_uri, find).items()


def _group_by_folder(
    files: Iterable[tuple[str, File]], root_uri: str, passed_over: PassedOver
) -> Iterator[tuple[tuple[str, ...], list[File]]]:
    """Group files that come sorted by path: a prefix's files are then one run, its own included."""
    open_folders: list[tuple[tuple[str, ...], list[File]]] = []
    empty, counted = True, set[str]()
    for path, file in files:
        empty = False
        if not is_path_read(path, passed_over, counted):
            continue
        folder = tuple(path.split("/")[:-1])
        while open_folders and open_folders[-1][0] != folder[: len(open_folders[-1][0])]:
            yield open_folders.pop()
        if not open_folders or open_folders[-1][0] != folder:
            open_folders.append((folder, []))
        open_folders[-1][1].append(file)
    yield from reversed(open_folders)
    if empty:
        raise storage.NotFoundError(f"cannot list {storage.redact(root_uri)}: there is nothing")


def _walk_http(
    url: str, names: tuple[str, ...], passed_over: PassedOver
) -> Iterator[tuple[tuple[str, ...], list[File]]]:
    """Follow the links of index pages that lead one level down, and nowhere else."""
    if len(names) > _HTTP_LEVELS:
        raise storage.StorageError(f"{storage.redact(url)}: folders inside folders without end")
    entries = storage.ask("list", url, lambda fs, path: fs.ls(path, detail=True))
    files: list[tuple[str, str]] = []
    folders: list[tuple[str, str]] = []
    for link in sorted({entry["name"].partition("?")[0].partition("#")[0] for entry in entries}):
        name, is_folder = unquote(link.removeprefix(url).rstrip("/")), link.endswith("/")
        if link == url or not link.startswith(url):
            continue
        if is_read(name, passed_over, is_folder=is_folder):
            (folders if is_folder else files).append((name, link))
    for name, link in sorted(folders, key=lambda folder: natural_key(folder[0])):
        yield from _walk_http(link, (*names, name), passed_over)
    if files:
        links = [link for _, link in sorted(files)]
        yield names, [file for file in storage.at_once(stat_file, links) if file]


def _file_of(info: dict[str, Any], uri: str) -> File:
    size = int(info.get("size") or 0)
    local = storage.is_local(uri)
    version = stat_version(Path(uri).stat()) if local else server_version(info, size)
    name = unquote(urlsplit(uri).path) if storage.is_web(uri) else info["name"]
    return File(name.rstrip("/").rsplit("/", 1)[-1], uri, size, version)


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


def stem(file: File) -> str:
    """Return a file's name without its ending."""
    return file.name.rpartition(".")[0] or file.name


def by_camera(cameras: dict[str, list[File]]) -> dict[str, list[File]]:
    """Put cameras and their pictures in order, with the times that their names tell."""
    return {camera: pictures(cameras[camera]) for camera in sorted(cameras, key=natural_key)}


def pictures(files: Sequence[File]) -> list[File]:
    """Put files of one camera in order, with the times that their names tell."""
    ordered = sorted(files, key=lambda file: natural_key(file.name))
    times = timestamps_ns([stem(file) for file in ordered])
    return [
        file if at is None else replace(file, timestamp_ns=at)
        for file, at in zip(ordered, times, strict=True)
    ]


def count_elsewhere(files: Iterable[File], passed_over: PassedOver) -> None:
    """Count footage that lies where a format has none."""
    for file in files:
        if is_footage(file.name):
            passed_over.add(*_ELSEWHERE, example=file.name)


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
        # Where there is no folder, the reader that lists it says so.
        most = _FIRST_NAMES if storage.is_s3(self.uri) else None
        there = itertools.islice(storage.entries(self.uri), most)
        return {name: is_folder for name, is_folder, *_ in there if not is_hidden(name)}


class Reader(Protocol):
    """Lists the sources of one format.

    Attributes:
        name: as `--layout` takes it.
        layout: what a folder of this format holds; a message says "no" and then this.

    """

    name: str
    layout: str = ""

    def fits(self, folder: Folder) -> bool:
        """Whether a folder is of this format, by the names in it; of a file's format none is."""
        return False

    def sequences(
        self, source: str, passed_over: PassedOver, part: str = ""
    ) -> Iterator[ListedSequence]:
        """List the sequences of a source, one after another; count there what is not read.

        Args:
            source: a folder or file.
            passed_over: where to count.
            part: of the address of the one sequence that is wanted: looking at others can be left.

        Raises:
            AutolabelError: it is not of this format, or cannot be listed.

        """

    def source_of(self, folder: str, part: str) -> str:
        """Return the smallest source that has the sequence of this address: mostly its folder."""
        return folder
