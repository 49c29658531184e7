"""Pictures that a list names one by one, sorted into sequences and cameras."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from sam2_core.types import AutolabelError
from tasks.frames.addresses import address_of
from tasks.frames.listing import File, natural_key, stat_file
from tasks.frames.patterns import shared_beginning
from tasks.frames.readers.protocol import Listed, Picture, Reader
from tasks.frames.source_names import fits_int64, is_camera_name, sequence_id_of, timestamps_ns
from tasks.store import storage
from tasks.wording import counted

_LOOKERS = 16

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """A picture as a list names it.

    Attributes:
        uri: its address, "" for a row that names none.
        sequence, camera: as the list calls them; "" for those of its folders.
        order: its place within them, where the list tells; else names decide.
        timestamp_ns: since 1970, or None.
        etag, size_bytes: where the list tells them; else the file is looked at.
        problem: why it cannot be labeled, "" for nothing.

    """

    uri: str
    sequence: str = ""
    camera: str = ""
    order: int | None = None
    timestamp_ns: int | None = None
    etag: str = ""
    size_bytes: int = 0
    problem: str = ""

    @property
    def folder(self) -> str:
        """Address of the folder that the picture is in."""
        return self.uri.rpartition("/")[0]

    @property
    def place(self) -> tuple[str, str]:
        """Sequence and camera, by the list or by the folders."""
        above, _, last = self.folder.rpartition("/")
        if self.sequence:
            return self.sequence, self.camera
        return (above, self.camera or last) if is_camera_name(last) else (self.folder, self.camera)


def time_ns_of(value: Any, problem: str, where: str) -> tuple[int | None, str]:
    """Return a picture's time as a list tells it, and why it cannot be labeled.

    Args:
        value: nanoseconds since 1970; None, or what is no number for tables, for no time.
        problem: what else is wrong with the picture.
        where: the row, for the message.

    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None, problem
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if whole and fits_int64(int(value)):
        return int(value), problem
    return None, problem or f"{where}: timestamp_ns {value!r} is no whole number of nanoseconds"


class RecordList(Reader):
    """Reads a file that names pictures."""

    @abstractmethod
    def records(self, source: str) -> Iterator[Record]:
        """Yield the records of a list.

        Raises:
            AutolabelError: it is no list of this format, or is damaged.

        """

    def source_of(self, _folder: str, part: str) -> str:
        """Return the address of the list, from the part of a sequence's address."""
        return part.partition("#")[0]

    def sequences(self, source: str) -> Iterator[Listed]:
        """List the sequences of a list."""
        records = list(self.records(source))
        if not records:
            raise AutolabelError(f"{storage.redact(source)} lists not a single frame")
        # What has no path has no folder: it is a failure of the first sequence.
        first = next((one for one in records if one.uri), Record(source))
        sequences: dict[str, list[Record]] = {}
        for number, one in enumerate(records):
            beside = first if not one.uri else one
            if not one.uri:
                one = replace(  # noqa: PLW2901
                    one, uri=f"{first.folder}/row-{number}", sequence=first.sequence,
                    camera=one.camera or first.camera,
                )  # fmt: skip
            sequences.setdefault(beside.place[0], []).append(one)
        around = "" if any(one.sequence for one in records) else _common(sequences)
        ways = {
            name: tuple(part for part in name.removeprefix(around).split("/") if part)
            for name in sequences
        }
        ids = Counter(sequence_id_of(source, way) for way in ways.values())
        for name in sorted(sequences, key=natural_key):
            cameras: dict[str, list[Record]] = {}
            for one in sequences[name]:
                cameras.setdefault(one.place[1], []).append(one)
            pictures = {
                camera: _pictures(cameras[camera]) for camera in sorted(cameras, key=natural_key)
            }
            folders = {one.folder for one in sequences[name]}
            folder = folders.pop() if len(folders) == 1 else _common(folders)
            address = address_of(folder, self.name, f"{source}#{name}")
            is_called_in_full = ids[sequence_id_of(source, ways[name])] > 1
            yield Listed(ways[name], address, pictures, is_called_in_full)


def _common(folders: Iterable[str]) -> str:
    """Return the folder around all of these; of a single one its parent."""
    ways = [folder.split("/") for folder in folders]
    return "/".join(ways[0][:-1] if len(ways) == 1 else shared_beginning(ways))


def _pictures(records: Sequence[Record]) -> list[Picture]:
    """Put the pictures of a camera in order, each once."""
    each = {one.uri: one for one in reversed(records)}
    if len(each) < len(records):
        again = counted(len(records) - len(each), "picture")
        uri = Counter(one.uri for one in records).most_common(1)[0][0]
        log.warning("%s named again, and left out: %s", again, storage.redact(uri))
    # What cannot be labeled may lack its time, and takes nobody else's.
    told = {one.uri: one.timestamp_ns for one in each.values() if not one.problem}
    times = [time_ns for time_ns in told.values() if time_ns is not None]
    first_ns, timed = min(times, default=0), bool(times) and len(times) == len(told)
    if times and not timed:
        without = next(uri for uri, time_ns in told.items() if time_ns is None)
        log.warning("no time of %s is told: its camera has none", storage.redact(without))
    ordered = sorted(each.values(), key=lambda one: natural_key(one.uri))
    if all(one.order is not None for one in ordered):
        ordered.sort(key=lambda one: one.order or 0)
    elif timed:
        ordered.sort(key=lambda one: one.timestamp_ns or first_ns)
    found = timestamps_ns([PurePosixPath(one.uri).stem for one in ordered])
    if timed:
        found = [first_ns if one.timestamp_ns is None else one.timestamp_ns for one in ordered]
    with ThreadPoolExecutor(_LOOKERS, "look") as pool:
        files = pool.map(_file, ordered)
        shown = zip(ordered, files, found, strict=True)
        return [Picture(file, time_ns, one.problem) for one, file, time_ns in shown]


def _file(one: Record) -> File:
    """Look at a file, unless the list tells its version; one that is gone has none."""
    name = one.uri.rpartition("/")[2]
    if one.problem or (one.etag and not storage.is_local(one.uri)):
        return File(name, one.uri, one.size_bytes, "" if one.problem else one.etag)
    try:
        return stat_file(one.uri) or File(name, one.uri, 0, "")
    except storage.NotFoundError:
        return File(name, one.uri, 0, "")
