"""Pictures that a list names one by one, sorted into sequences and cameras."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
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

_LOOKERS, _PIECE = 16, 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """A picture as a list names it.

    Attributes:
        uri: its address.
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


def listed_records(records: Iterable[Record], reader: str, source: str) -> Iterator[Listed]:
    """Yield the sequences of a list.

    Args:
        records: of all pictures.
        reader: the list's format.
        source: the list's own address, by which sequences are found again.

    """
    sequences: dict[str, list[Record]] = {}
    homeless = []
    for one in records:
        if one.problem and not one.sequence:
            homeless.append(one)
        else:
            sequences.setdefault(one.sequence or _folders(one)[0], []).append(one)
    # What has no path has no folder: it is a failure of the first sequence, not one of its own.
    first = next(iter(sequences), None)
    for one in homeless:
        known = _folders(one)[0]
        name = known if known in sequences or first is None else first
        sequences.setdefault(name, []).append(_moved(one, sequences.get(name, [])))
    around = _common(sequences) if not any(one.sequence for one in _all(sequences)) else ""
    ways = {name: _way(name, around) for name in sequences}
    ids = Counter(sequence_id_of(source, way) for way in ways.values())
    for name in sorted(sequences, key=natural_key):
        cameras: dict[str, list[Record]] = {}
        for one in sequences[name]:
            camera = one.camera if one.sequence else one.camera or _folders(one)[1]
            cameras.setdefault(camera, []).append(one)
        folder = _folder_of(sequences[name])
        pictures = {
            camera: _pictures(cameras[camera]) for camera in sorted(cameras, key=natural_key)
        }
        address = address_of(folder, reader, f"{source}#{name}")
        yield Listed(ways[name], address, pictures, ids[sequence_id_of(source, ways[name])] > 1)


def _way(name: str, around: str) -> tuple[str, ...]:
    """Names that lead to a sequence from the folder around all of them."""
    own = name.removeprefix(around) if around else name
    return tuple(part for part in own.split("/") if part)


class RecordList(Reader):
    """Reads a file that names pictures.

    Args:
        name: of its format.
        records: reads the records of the file at an address.

    """

    def __init__(self, name: str, records: Callable[[str], Iterable[Record]]) -> None:
        self.name, self._records = name, records

    def source_of(self, _folder: str, part: str) -> str:
        """Return the address of the list, from the part of a sequence's address."""
        return part.partition("#")[0]

    def sequences(self, source: str) -> Iterator[Listed]:
        """List the sequences of a list."""
        records = list(self._records(source))
        if not records:
            raise AutolabelError(f"{storage.redact(source)} lists not a single frame")
        yield from listed_records(records, self.name, source)


def _moved(one: Record, others: Sequence[Record]) -> Record:
    """Put a picture that cannot be labeled beside the first of others."""
    if not others or _folders(one) == _folders(others[0]):
        return one
    beside = others[0]
    uri = storage.join(beside.uri.rpartition("/")[0], one.uri.rpartition("/")[2])
    return replace(one, uri=uri, sequence=beside.sequence, camera=one.camera or beside.camera)


def _all(sequences: dict[str, list[Record]]) -> Iterator[Record]:
    for records in sequences.values():
        yield from records


def _folders(one: Record) -> tuple[str, str]:
    """Folder that is a record's sequence, and its camera."""
    folder = one.uri.rpartition("/")[0]
    above, _, last = folder.rpartition("/")
    return (above, last) if is_camera_name(last) else (folder, "")


def _common(folders: Iterable[str]) -> str:
    """Return the folder around all of these; of a single one its parent."""
    ways = [folder.split("/") for folder in folders]
    return "/".join(ways[0][:-1] if len(ways) == 1 else shared_beginning(ways))


def _folder_of(records: list[Record]) -> str:
    folders = {one.uri.rpartition("/")[0] for one in records}
    return folders.pop() if len(folders) == 1 else _common(folders)


def _pictures(records: list[Record]) -> list[Picture]:
    known = all(one.order is not None for one in records)
    # What cannot be labeled may lack its time, and takes nobody else's.
    told = [one.timestamp_ns for one in records if not one.problem]
    timed = bool(told) and None not in told
    first_ns = min(filter(None, told), default=None)
    if first_ns is not None and not timed:
        without = next(one for one in records if one.timestamp_ns is None and not one.problem)
        log.warning("no time of %s is told: its camera has none", storage.redact(without.uri))

    def key(one: Record) -> object:
        time_ns = first_ns if one.timestamp_ns is None else one.timestamp_ns
        return one.order if known else time_ns if timed else natural_key(one.uri)

    ordered = sorted(records, key=key)  # type: ignore[arg-type]
    if timed:
        times = [first_ns if one.timestamp_ns is None else one.timestamp_ns for one in ordered]
    else:
        times = timestamps_ns([PurePosixPath(one.uri).stem for one in ordered])
    found: list[Picture] = []
    with ThreadPoolExecutor(_LOOKERS, "look") as pool:
        for start in range(0, len(ordered), _PIECE):
            part = ordered[start : start + _PIECE]
            for one, file, time_ns in zip(part, pool.map(_file, part), times[start:], strict=False):
                found.append(Picture(file, time_ns, one.problem))
    return _each_once(found)


def _each_once(pictures: list[Picture]) -> list[Picture]:
    """Leave out what a list names again: a frame would be labeled twice."""
    each: dict[str, Picture] = {}
    for one in pictures:
        each.setdefault(one.file.uri, one)
    if len(each) < len(pictures):
        again = counted(len(pictures) - len(each), "picture")
        names = Counter(one.file.uri for one in pictures).most_common(1)[0][0]
        log.warning("%s named again, and left out: %s", again, storage.redact(names))
    return list(each.values())


def _file(one: Record) -> File:
    """Look at a file, unless the list tells its version; one that is gone has none."""
    name = one.uri.rpartition("/")[2]
    if one.problem or (one.etag and not storage.is_local(one.uri)):
        return File(name, one.uri, one.size_bytes, "" if one.problem else one.etag)
    try:
        return stat_file(one.uri) or File(name, one.uri, 0, "")
    except storage.NotFoundError:
        return File(name, one.uri, 0, "")
