"""Lists of frames: COCO json, and Parquet tables with a row each.

COCO: `images` with `file_name`; boxes are left aside. File names are relative to the json's folder,
to the one around it, or to `images` or a folder named like the split in one of these: the first is
taken in which one of the first pictures is. Sequences are `video_id` (COCO-VID, TAO) or
`sequence_id` (exports of this product), else folders.

Parquet: columns `uri` (also `path`, `file_name`, `frame_uri`), absolute or relative to the table's
folder; optional `sequence_id` (`sequence`, `scene`), `camera` (`channel`), `timestamp_ns` (or
`timestamp`, of Parquet's type), `index` (`frame_id`), and `etag` with `size_bytes`, which spare a
look at the file. So tables that a query made can be labeled, and the `frames` tables of our runs.
"""

import contextlib
import json
import logging
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sam2_core.types import AutolabelError
from tasks.frames.download import fetch
from tasks.frames.identity import (
    IMAGE_SUFFIXES,
    address_of,
    fits_int64,
    is_camera_name,
    sequence_id_of,
    shared_beginning,
    spellings,
    suffix_of,
    timestamps_ns,
)
from tasks.frames.listing import File, ListedSequence, Reader, natural_key, stat_file
from tasks.passed_over import PassedOver
from tasks.store import storage
from tasks.store.addresses import checked
from tasks.wording import counted

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """A picture as a list names it.

    Attributes:
        uri: its address, "" for a row that names none.
        sequence, camera: as the list calls them; "" for those of its folders.
        order: its position in them, where the list tells; else names decide.
        timestamp_ns: since 1970, or None.
        etag, size_bytes: where the list tells them; else the file is looked at.
        problem: why it cannot be labeled, "" for nothing.
        named: the end of its address that the list tells; disks may spell it otherwise.

    """

    uri: str
    sequence: str = ""
    camera: str = ""
    order: int | None = None
    timestamp_ns: int | None = None
    etag: str = ""
    size_bytes: int = 0
    problem: str = ""
    named: str = ""

    @property
    def folder(self) -> str:
        """Address of the folder that the picture is in."""
        return self.uri.rpartition("/")[0]

    @property
    def names(self) -> tuple[str, str]:
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
    return None, problem or f"{where}: the time {value!r} is no whole number of nanoseconds"


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

    def sequences(
        self, source: str, passed_over: PassedOver, part: str = ""
    ) -> Iterator[ListedSequence]:
        """List the sequences of a list."""
        records = list(self.records(source))
        if not records:
            raise AutolabelError(f"{storage.redact(source)} lists not a single frame")
        _refuse_other_units(records, storage.redact(source))
        # What has no path has no folder: it is a failure of the first sequence.
        first = next((record for record in records if record.uri), Record(source))
        sequences: dict[str, list[Record]] = {}
        for number, record in enumerate(records):
            placed = record if record.uri else replace(
                record, uri=f"{first.folder}/row-{number}", sequence=first.sequence,
                camera=record.camera or first.camera,
            )  # fmt: skip
            sequences.setdefault(placed.names[0], []).append(placed)
        around = "" if any(record.sequence for record in records) else _common(sequences)
        ways = {
            name: tuple(part for part in name.removeprefix(around).split("/") if part)
            for name in sequences
        }
        ids = Counter(sequence_id_of(source, way) for way in ways.values())
        wanted = part.partition("#")[2]
        for name in [wanted] if wanted in sequences else sorted(sequences, key=natural_key):
            cameras: dict[str, list[Record]] = {}
            for record in sequences[name]:
                cameras.setdefault(record.names[1], []).append(record)
            pictures = {
                camera: _files_in_order(cameras[camera])
                for camera in sorted(cameras, key=natural_key)
            }
            folders = {record.folder for record in sequences[name]}
            folder = folders.pop() if len(folders) == 1 else _common(folders)
            address = address_of(folder, self.name, f"{source}#{name}")
            is_called_in_full = ids[sequence_id_of(source, ways[name])] > 1
            yield ListedSequence(ways[name], address, pictures, is_called_in_full)


# A time of these decades is so many seconds, milliseconds and microseconds.
_DECADES = {
    unit: (1_000_000_000 * factor, 2_500_000_000 * factor)
    for unit, factor in (("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6))
}


def _refuse_other_units(records: Iterable[Record], where: str) -> None:
    """Refuse times that are dates of our days only in another unit than nanoseconds.

    Raises:
        AutolabelError: it names the unit.

    """
    times = [record.timestamp_ns for record in records if record.timestamp_ns is not None]
    for unit, (first, last) in _DECADES.items():
        if times and first <= min(times) <= max(times) < last:
            raise AutolabelError(
                f"{where}: its times, such as {times[0]}, are {unit} since 1970, it seems: give "
                "them in nanoseconds, or, in Parquet, in a column of the type timestamp"
            )


def _common(folders: Iterable[str]) -> str:
    """Return the folder around all of these; of a single one its parent."""
    ways = [folder.split("/") for folder in folders]
    return "/".join(ways[0][:-1] if len(ways) == 1 else shared_beginning(ways))


def _files_in_order(records: Sequence[Record]) -> list[File]:
    """Put the pictures of a camera in order, each once."""
    each = {record.uri: record for record in reversed(records)}
    if len(each) < len(records):
        again = counted(len(records) - len(each), "picture")
        uri = Counter(record.uri for record in records).most_common(1)[0][0]
        log.warning("%s named again, and left out: %s", again, storage.redact(uri))
    # What cannot be labeled may lack its time, and takes no other frame's.
    told = {record.uri: record.timestamp_ns for record in each.values() if not record.problem}
    times = [time_ns for time_ns in told.values() if time_ns is not None]
    first_ns, timed = min(times, default=0), bool(times) and len(times) == len(told)
    if times and not timed:
        without = next(uri for uri, time_ns in told.items() if time_ns is None)
        log.warning("no time of %s is told: its camera has none", storage.redact(without))
    ordered = sorted(each.values(), key=lambda record: natural_key(record.uri))
    if all(record.order is not None for record in ordered):
        ordered.sort(key=lambda record: record.order or 0)
    elif timed:
        ordered.sort(key=lambda record: record.timestamp_ns or first_ns)
    found = timestamps_ns([PurePosixPath(record.uri).stem for record in ordered])
    if timed:
        found = [
            first_ns if record.timestamp_ns is None else record.timestamp_ns for record in ordered
        ]
    shown = zip(ordered, storage.at_once(_file, ordered), found, strict=True)
    return [replace(file, timestamp_ns=at, problem=record.problem) for record, file, at in shown]


def _file(record: Record) -> File:
    """Look at a file, unless the list tells its version; one that is gone has none."""
    name = record.uri.rpartition("/")[2]
    if record.problem or (record.etag and not storage.is_local(record.uri)):
        return File(name, record.uri, record.size_bytes, "" if record.problem else record.etag)
    around = record.uri.removesuffix(record.named)
    for spelled in spellings(record.named):
        with contextlib.suppress(storage.NotFoundError):
            if file := stat_file(around + spelled):
                return file
    return File(name, record.uri, 0, "")


_COLUMNS: dict[str, tuple[str, ...]] = {
    "uri": ("uri", "path", "file_name", "frame_uri", "filename"),
    "sequence": ("sequence_id", "sequence", "scene"),
    "camera": ("camera", "channel"),
    "order": ("index", "frame_id"),
    "timestamp_ns": ("timestamp_ns", "timestamp"),
    "etag": ("etag",),
    "size_bytes": ("size_bytes",),
}
_BATCH_ROWS = 10_000
# A table of megabytes may unfold to gigabytes, and all that it lists is held in memory.
_MOST_ROWS = 2_000_000
_MOST_BYTES = 512 << 20


def _address_of_picture(named: str, base: str, where: str, *, anywhere: bool) -> tuple[str, str]:
    """Return the address of a picture as a list names it, "" for none, and then why.

    Args:
        named: path or, if `anywhere`, address.
        base: folder that paths are relative to.
        where: the row, for the message.
        anywhere: pictures may be outside the folder.

    """
    outside = named.startswith("/") or "://" in named
    if not named or ".." in named.split("/") or (outside and not anywhere):
        return "", f"{where}: {named!r} is no path below {storage.redact(base)}"
    if suffix_of(named.rpartition("/")[2]) not in IMAGE_SUFFIXES:
        return "", f"{where}: {named!r} is no picture"
    uri = named if outside else storage.join(base, named)
    try:
        checked(uri)
    except AutolabelError as error:
        return "", f"{where}: {error}"
    return uri.removeprefix("file://"), ""


def _record_of_row(row: Mapping[str, Any], base: str, where: str, *, anywhere: bool) -> Record:
    """Make the record of a row, its values by the names in `_COLUMNS`."""
    named, order = row.get("uri") or "", row.get("order")
    # Some writers do not say that their bytes are text.
    named = named.decode("utf-8", "replace") if isinstance(named, bytes) else str(named)
    uri, problem = _address_of_picture(named, base, where, anywhere=anywhere)
    time_ns, problem = time_ns_of(row.get("timestamp_ns"), problem, where)
    return Record(
        uri, str(row.get("sequence") or ""), str(row.get("camera") or ""),
        order if isinstance(order, int) else None, time_ns,
        str(row.get("etag") or ""), int(row.get("size_bytes") or 0), problem,
        named if uri.endswith(named) else "",
    )  # fmt: skip


class CocoList(RecordList):
    """Reads COCO json."""

    name = "coco"

    def records(self, source: str) -> Iterator[Record]:
        """Yield the images."""
        where = storage.redact(source)
        try:
            content = json.loads(storage.read_bytes(source))
            images = [image for image in content["images"] if isinstance(image, dict)]
            videos = {video["id"]: str(video["name"]) for video in content.get("videos") or ()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise AutolabelError(
                f"{where} is no COCO json with a list `images`: {error}"
            ) from error
        names = [str(image.get("file_name") or "").replace("\\", "/") for image in images]
        if not any(names):
            raise AutolabelError(f"{where} has {counted(len(images), 'image')} and no `file_name`")
        base = _base(source, list(filter(None, names)))
        for number, (image, name) in enumerate(zip(images, names, strict=True)):
            row = {
                "uri": name, "camera": image.get("camera"),
                "timestamp_ns": image.get("timestamp_ns"),
                "sequence": image.get("sequence_id") or videos.get(image.get("video_id")),
                "order": image.get("frame_id", image.get("frame_index")),
            }  # fmt: skip
            yield _record_of_row(row, base, f"{where}: image number {number}", anywhere=False)


def _base(source: str, names: list[str]) -> str:
    """Find the folder that file names are relative to.

    Raises:
        AutolabelError: the first picture is in none of them.

    """
    folder, _, file = source.rpartition("/")
    split = file.rpartition(".")[0].rpartition("_")[2]
    bases = [
        base
        for around in dict.fromkeys((folder, folder.rpartition("/")[0]))
        if around
        for base in (around, f"{around}/images", f"{around}/{split}")
    ]
    for name in names[:20]:  # the first ones may be gone
        for base in bases:
            for spelled in spellings(name):
                with contextlib.suppress(storage.StorageError):
                    if stat_file(storage.join(base, spelled)):
                        return base
    shown = ", ".join(map(storage.redact, bases))
    raise AutolabelError(
        f"{storage.redact(source)} names {names[0]!r}, which is in none of: {shown}"
    )


class ParquetList(RecordList):
    """Reads Parquet tables."""

    name = "parquet"

    def records(self, source: str) -> Iterator[Record]:
        """Yield the rows."""
        where, folder = storage.redact(source), source.rpartition("/")[0]
        try:
            for number, row in enumerate(_rows(source, where)):
                yield _record_of_row(row, folder, f"{where}: row {number}", anywhere=True)
        except MemoryError:  # pyarrow's is an ArrowException, too
            raise
        except (pa.ArrowException, OSError) as error:
            raise AutolabelError(f"{where} is no Parquet table, or is damaged: {error}") from error


def _rows(source: str, where: str) -> Iterator[dict[str, Any]]:

    listed = stat_file(source)
    if listed and listed.size_bytes > _MOST_BYTES:
        raise _too_many_bytes(where)
    path = fetch(source, listed.etag, listed.size_bytes) if listed else None
    data = pa.BufferReader(path.read_bytes() if path else b"")
    names = _columns(pq.read_schema(data).names, where)
    # Values that repeat stay one until it is known how many bytes they unfold to.
    file = pq.ParquetFile(data, read_dictionary=list(names))
    _refuse_large(file.metadata, names, where)
    unfolded = 0
    for batch in file.iter_batches(_BATCH_ROWS, columns=list(names)):
        unfolded += sum(map(_unfolded_bytes, batch.columns))
        if unfolded > _MOST_BYTES:
            raise _too_many_bytes(where)
        columns = {names[name]: batch.column(name) for name in batch.schema.names}
        times = columns.get("timestamp_ns")
        if times is not None and pa.types.is_timestamp(times.type):
            columns["timestamp_ns"] = times.cast(pa.timestamp("ns")).cast(pa.int64())
        yield from pa.table(columns).to_pylist()


def _columns(there: Collection[str], where: str) -> dict[str, str]:
    """Return what the columns of a table tell, by their names."""
    found = {what: next((name for name in names if name in there), "")
             for what, names in _COLUMNS.items()}  # fmt: skip
    if not found["uri"]:
        raise AutolabelError(
            f"{where} has no column {' or '.join(_COLUMNS['uri'])}; it has {', '.join(there)}"
        )
    return {name: what for what, name in found.items() if name}


def _refuse_large(metadata: Any, names: Collection[str], where: str) -> None:
    if metadata.num_rows > _MOST_ROWS:
        raise AutolabelError(
            f"{where} lists {metadata.num_rows} rows, more than {_MOST_ROWS}: cut it into several"
        )
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    chunks = (group.column(column) for group in groups for column in range(group.num_columns))
    wanted = (chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in names)
    if sum(chunk.total_uncompressed_size for chunk in wanted) > _MOST_BYTES:
        raise _too_many_bytes(where)


def _unfolded_bytes(values: Any) -> int:
    """Return how many bytes values take when each is an object of its own."""
    if not pa.types.is_dictionary(values.type):
        return int(values.nbytes)
    lengths = pc.binary_length(values.dictionary)
    return int(pc.sum(lengths.take(values.indices)).as_py() or 0)


def _too_many_bytes(where: str) -> AutolabelError:
    most = _MOST_BYTES >> 20
    return AutolabelError(f"{where} unfolds to more than {most} MiB: cut it into several lists")
