"""A Parquet table as a list of frames, a row each.

Columns: `uri` (also `path`, `file_name`, `frame_uri`), absolute or relative to the table's folder;
optional `sequence_id` (`sequence`, `scene`), `camera` (`channel`), `timestamp_ns` (or `timestamp`,
of Parquet's type), `index` (`frame_id`), and `etag` with `size_bytes`, which spare a look at the
file. So tables that a query made can be labeled, and the `frames` tables of this product's runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sam2_core.types import AutolabelError
from tasks.frames.download import fetch
from tasks.frames.listing import stat_file
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
_BATCH_ROWS = 10_000
# A table of megabytes may unfold to gigabytes, and all that it lists is held in memory.
_MOST_ROWS = 2_000_000
_MOST_BYTES = 512 << 20


def _records(source: str) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    where, folder = storage.redact(source), source.rpartition("/")[0]
    number = 0
    try:
        data = pa.BufferReader(_read(source, where))
        schema = pq.read_schema(data)
        columns = _columns(schema.names, where)
        names = {values: name for name, values in columns.items()}
        # Values that repeat stay one until it is known how many bytes they unfold to.
        file = pq.ParquetFile(data, read_dictionary=list(names))
        _refuse_large(file, names, where)
        for batch in file.iter_batches(_BATCH_ROWS, columns=list(names)):
            table = _with_plain_times(batch, columns)
            for row in table.to_pylist():
                record = {names[name]: value for name, value in row.items()}
                yield _record(record, folder, f"{where}: row {number}")
                number += 1
    except MemoryError:  # pyarrow's is an ArrowException, too
        raise
    except (pa.ArrowException, OSError) as error:
        raise AutolabelError(f"{where} is no Parquet table, or is damaged: {error}") from error


def _read(source: str, where: str) -> bytes:
    file = stat_file(source)
    if file and file.size_bytes > _MOST_BYTES:
        raise _too_large(where)
    return fetch(source, file.etag, file.size_bytes).read_bytes() if file else b""


def _refuse_large(file: Any, names: Collection[str], where: str) -> None:
    metadata, unfolded = file.metadata, 0
    if metadata.num_rows > _MOST_ROWS:
        raise AutolabelError(
            f"{where} lists {metadata.num_rows} rows, more than {_MOST_ROWS}: cut it into several"
        )
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    chunks = (group.column(place) for group in groups for place in range(group.num_columns))
    wanted = (one for one in chunks if one.path_in_schema.partition(".")[0] in names)
    if sum(one.total_uncompressed_size for one in wanted) > _MOST_BYTES:
        raise _too_large(where)
    for batch in file.iter_batches(_BATCH_ROWS, columns=list(names)):
        unfolded += sum(map(_unfolded_bytes, batch.columns))
        if unfolded > _MOST_BYTES:
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
