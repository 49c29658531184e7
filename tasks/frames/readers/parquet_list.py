"""A Parquet table as a list of frames, a row each.

Columns: `uri` (also `path`, `file_name`, `frame_uri`), absolute or relative to the table's folder;
optional `sequence_id` (`sequence`, `scene`), `camera` (`channel`), `timestamp_ns` (or `timestamp`,
of Parquet's type), `index` (`frame_id`), and `etag` with `size_bytes`, which spare a look at the
file. So tables that a query made can be labeled, and the `frames` tables of this product's runs.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from sam2_core.types import AutolabelError
from tasks.frames.patterns import IMAGE_SUFFIXES, suffix_of
from tasks.frames.readers.records import Record, RecordList, time_ns_of
from tasks.store import storage
from tasks.store.addresses import checked

_COLUMNS: dict[str, tuple[str, ...]] = {
    "uri": ("uri", "path", "file_name", "frame_uri", "filename"),
    "sequence": ("sequence_id", "sequence", "scene"),
    "camera": ("camera", "channel"),
    "order": ("index", "frame_id"),
    "timestamp_ns": ("timestamp_ns", "timestamp"),
    "etag": ("etag",),
    "size_bytes": ("size_bytes",),
}
_ROWS = 10_000


def _records(source: str) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    where, folder = storage.redact(source), source.rpartition("/")[0]
    number = 0
    try:
        file = pq.ParquetFile(io.BytesIO(storage.read_bytes(source)))
        columns = _columns(file.schema_arrow.names, where)
        for batch in file.iter_batches(_ROWS, columns=list(columns.values())):
            names = {values: name for name, values in columns.items()}
            table = _with_plain_times(batch, columns)
            for row in table.to_pylist():
                record = {names[name]: value for name, value in row.items()}
                yield _record(record, folder, f"{where}: row {number}")
                number += 1
    except MemoryError:  # pyarrow's is an ArrowException, too
        raise
    except (pa.ArrowException, OSError) as error:
        raise AutolabelError(f"{where} is no Parquet table, or is damaged: {error}") from error


def _columns(there: list[str], where: str) -> dict[str, str]:
    found = {
        what: next((name for name in names if name in there), "")
        for what, names in _COLUMNS.items()
    }
    if not found["uri"]:
        raise AutolabelError(
            f"{where} has no column {' or '.join(_COLUMNS['uri'])}; it has {', '.join(there)}"
        )
    return {what: name for what, name in found.items() if name}


def _with_plain_times(batch: Any, columns: Mapping[str, str]) -> Any:
    """Turn a column of Parquet's type for times into nanoseconds."""
    import pyarrow as pa

    name = columns.get("timestamp_ns")
    if not name or not pa.types.is_timestamp(batch.schema.field(name).type):
        return batch
    place = batch.schema.get_field_index(name)
    times = batch.column(place).cast(pa.timestamp("ns")).cast(pa.int64())
    return batch.set_column(place, name, times)


def _record(row: Mapping[str, Any], folder: str, where: str) -> Record:
    named, problem = row.get("uri") or "", ""
    # Some writers do not say that their bytes are text.
    named = named.decode("utf-8", "replace") if isinstance(named, bytes) else str(named)
    named = named.removeprefix("file://") if named.startswith("file:///") else named
    uri = named if "://" in named or named.startswith("/") else f"{folder}/{named}"
    if not named:
        problem = f"{where}: it names no picture"
    elif suffix_of(named.rpartition("/")[2]) not in IMAGE_SUFFIXES:
        problem = f"{where}: {named!r} is no picture"
    elif ".." in named.split("/"):
        problem = f"{where}: {named!r} leads out of its folder: no '..' in paths"
    else:
        try:
            checked(uri)
        except AutolabelError as error:
            problem = f"{where}: {error}"
    if problem:
        uri = f"{folder}/{where.rpartition(' ')[2]}"
    order = row.get("order")
    time_ns, problem = time_ns_of(row.get("timestamp_ns"), problem, where)
    return Record(
        uri, str(row.get("sequence") or ""), str(row.get("camera") or ""),
        order if isinstance(order, int) else None, time_ns,
        str(row.get("etag") or ""), int(row.get("size_bytes") or 0), problem,
    )  # fmt: skip


PARQUET_LIST = RecordList("parquet", _records)
