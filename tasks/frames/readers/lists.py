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

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from sam2_core.types import AutolabelError
from tasks.frames.download import fetch
from tasks.frames.listing import stat_file
from tasks.frames.patterns import IMAGE_SUFFIXES, suffix_of
from tasks.frames.readers.records import Record, RecordList, time_ns_of
from tasks.store import storage
from tasks.store.addresses import checked
from tasks.wording import counted

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


def _placed(named: str, base: str, where: str, *, anywhere: bool) -> tuple[str, str]:
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


class CocoList(RecordList):
    """Reads COCO json."""

    name = "coco"

    def records(self, source: str) -> Iterator[Record]:
        """Yield the images."""
        where = storage.redact(source)
        try:
            content = json.loads(storage.read_bytes(source))
            images = [one for one in content["images"] if isinstance(one, dict)]
            videos = {one["id"]: str(one["name"]) for one in content.get("videos") or ()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise AutolabelError(
                f"{where} is no COCO json with a list `images`: {error}"
            ) from error
        names = [str(one.get("file_name") or "").replace("\\", "/") for one in images]
        if not any(names):
            raise AutolabelError(f"{where} has {counted(len(images), 'image')} and no `file_name`")
        base = _base(source, list(filter(None, names)))
        for number, (one, name) in enumerate(zip(images, names, strict=True)):
            row = f"{where}: image number {number}"
            uri, problem = _placed(name, base, row, anywhere=False)
            time_ns, problem = time_ns_of(one.get("timestamp_ns"), problem, row)
            sequence = one.get("sequence_id") or videos.get(one.get("video_id"), "")
            order = one.get("frame_id", one.get("frame_index"))
            yield Record(
                uri, str(sequence), str(one.get("camera") or ""),
                order if isinstance(order, int) else None, time_ns, problem=problem,
            )  # fmt: skip


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
            try:
                if stat_file(storage.join(base, name)):
                    return base
            except storage.StorageError:
                continue
    shown = ", ".join(map(storage.redact, bases))
    raise AutolabelError(
        f"{storage.redact(source)} names {names[0]!r}, which is in none of: {shown}"
    )


class ParquetList(RecordList):
    """Reads Parquet tables."""

    name = "parquet"

    def records(self, source: str) -> Iterator[Record]:
        """Yield the rows."""
        import pyarrow as pa

        where, folder = storage.redact(source), source.rpartition("/")[0]
        try:
            for number, row in enumerate(_rows(source, where)):
                place = f"{where}: row {number}"
                named = row.get("uri") or ""
                # Some writers do not say that their bytes are text.
                named = named.decode("utf-8", "replace") if isinstance(named, bytes) else str(named)
                uri, problem = _placed(named, folder, place, anywhere=True)
                time_ns, problem = time_ns_of(row.get("timestamp_ns"), problem, place)
                order = row.get("order")
                yield Record(
                    uri, str(row.get("sequence") or ""), str(row.get("camera") or ""),
                    order if isinstance(order, int) else None, time_ns,
                    str(row.get("etag") or ""), int(row.get("size_bytes") or 0), problem,
                )  # fmt: skip
        except MemoryError:  # pyarrow's is an ArrowException, too
            raise
        except (pa.ArrowException, OSError) as error:
            raise AutolabelError(f"{where} is no Parquet table, or is damaged: {error}") from error


def _rows(source: str, where: str) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    listed = stat_file(source)
    if listed and listed.size_bytes > _MOST_BYTES:
        raise _too_large(where)
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
            raise _too_large(where)
        columns = {names[name]: batch.column(name) for name in batch.schema.names}
        times = columns.get("timestamp_ns")
        if times is not None and pa.types.is_timestamp(times.type):
            columns["timestamp_ns"] = times.cast(pa.timestamp("ns")).cast(pa.int64())
        yield from pa.table(columns).to_pylist()


def _columns(there: Collection[str], where: str) -> dict[str, str]:
    """Return what the columns of a table tell, by their names."""
    found: dict[str, str] = {}
    for what, names in _COLUMNS.items():
        for name in [one for one in names if one in there][:1]:
            found[name] = what
    if "uri" not in found.values():
        raise AutolabelError(
            f"{where} has no column {' or '.join(_COLUMNS['uri'])}; it has {', '.join(there)}"
        )
    return found


def _refuse_large(metadata: Any, names: Collection[str], where: str) -> None:
    if metadata.num_rows > _MOST_ROWS:
        raise AutolabelError(
            f"{where} lists {metadata.num_rows} rows, more than {_MOST_ROWS}: cut it into several"
        )
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    chunks = (group.column(place) for group in groups for place in range(group.num_columns))
    wanted = (one for one in chunks if one.path_in_schema.partition(".")[0] in names)
    if sum(one.total_uncompressed_size for one in wanted) > _MOST_BYTES:
        raise _too_large(where)


def _unfolded_bytes(values: Any) -> int:
    """Return how many bytes values take when each is an object of its own."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(values.type):
        return int(values.nbytes)
    lengths = pc.binary_length(values.dictionary)
    return int(pc.sum(lengths.take(values.indices)).as_py() or 0)


def _too_large(where: str) -> AutolabelError:
    most = _MOST_BYTES >> 20
    return AutolabelError(f"{where} unfolds to more than {most} MiB: cut it into several lists")
