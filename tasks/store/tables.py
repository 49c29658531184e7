"""Parquet tables of boxes, masks and frames: schemas, conversion from and to the types, and checks.

The metadata carries a checksum of the whole file, the key and the stamps, so that a truncated,
damaged or foreign file is told from a whole one by reading it.
"""

from __future__ import annotations

import io
import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sam2_core.types import Boxes, IntArray, Masks
from tasks.store import checksums
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.table_rules import refuse_broken, refuse_large, refuse_long
from tasks.types import FrameFailure, FrameRef


class _NoPandas:
    """No pandas while pyarrow looks for it at its first array, to take its objects.

    Nothing here has any, and the import takes a second of CPU time. Where a table is to become a
    data frame after all (`to_pandas`), it looks again.
    """

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if "pandas" not in sys.modules:
    sys.meta_path.insert(0, _NoPandas)
    pa.array([0])
    sys.meta_path.remove(_NoPandas)

FORMAT_VERSION = 2
# Sources of boxes that no detector has found.
FOLLOWED, INTERPOLATED = "followed", "interpolated"

Kind = Literal["boxes", "masks", "frames", "tracks"]
Columns = dict[str, Any]

_FRAME_KEY: list[tuple[str, Any]] = [
    ("sequence_id", pa.string()),
    ("camera", pa.string()),
    ("index", pa.int64()),
]
_BOX: list[tuple[str, Any]] = [
    *_FRAME_KEY,
    ("box_index", pa.int32()),
    ("label", pa.string()),
    ("score", pa.float32()),
    ("x1_px", pa.float32()),
    ("y1_px", pa.float32()),
    ("x2_px", pa.float32()),
    ("y2_px", pa.float32()),
    ("track_id", pa.int64()),
]
_MASK = [
    ("rle", pa.string()),
    ("height", pa.int32()),
    ("width", pa.int32()),
    ("predicted_iou", pa.float32()),
    ("stability", pa.float32()),
    ("object_score", pa.float32()),
    ("area_px", pa.int64()),
    ("reason", pa.string()),
]
_FRAME: list[tuple[str, Any]] = [
    *_FRAME_KEY,
    ("timestamp_ns", pa.int64()),
    ("uri", pa.string()),
    ("etag", pa.string()),
    ("size_bytes", pa.int64()),
    ("height", pa.int32()),
    ("width", pa.int32()),
    ("status", pa.string()),
    ("stage", pa.string()),
    ("reason", pa.string()),
    ("instances", pa.int32()),
]
_TRACK: list[tuple[str, Any]] = [
    *_FRAME_KEY,
    ("box_index", pa.int32()),
    ("track_id", pa.int64()),
    ("track_label", pa.string()),
]
SCHEMAS: dict[Kind, pa.Schema] = {
    "boxes": pa.schema(_BOX),
    "masks": pa.schema([*_BOX, *_MASK]),
    "frames": pa.schema(_FRAME),
    "tracks": pa.schema(_TRACK),
}
# Of a chunk; tracks are those of a whole sequence, and so are interpolated masks.
_MOST_ROWS: dict[Kind, int] = {
    "boxes": 1_000_000, "masks": 1_000_000, "frames": 10_000, "tracks": 4_000_000,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class LabeledFrame:
    """One frame's outcome.

    Attributes:
        frame: which frame; `size_hw` is known when it was decoded.
        boxes: N boxes in the order of the detector or the imported file.
        masks: N masks, row i belongs to box i; None when the frame failed.
        failure: why there are no masks; None when there are.
        track_labels: N classes, of each box's object over time; empty where tracks were not read.
        followed: frames since its object was last detected, of each box that no detector has found
            and that is around a mask which memory has made; behind the detected boxes.
        interpolated: how many of the last boxes no detector has found: they lie between those of
            the frames before and after.

    """

    frame: FrameRef
    boxes: Boxes
    masks: Masks | None = None
    failure: FrameFailure | None = None
    track_labels: tuple[str, ...] = ()
    followed: tuple[int, ...] = ()
    interpolated: int = 0

    def __post_init__(self) -> None:
        if (self.masks is None) == (self.failure is None):
            raise ValueError(f"frame {self.frame.uri}: needs either masks or a failure")
        if self.masks is not None and len(self.masks) != len(self.boxes):
            raise ValueError(
                f"frame {self.frame.uri}: {len(self.masks)} masks for {len(self.boxes)} boxes"
            )
        if self.detected < 0:
            raise ValueError(f"frame {self.frame.uri}: more boxes are followed than there are")

    @property
    def detected(self) -> int:
        """How many of the boxes a detector has found, or somebody has given; they come first."""
        return len(self.boxes) - len(self.followed) - self.interpolated

    def source_of(self, row: int) -> dict[str, Any]:
        """Say of a box that was not detected where it comes from; {} of the others."""
        if row < self.detected:
            return {}
        if row >= len(self.boxes) - self.interpolated:
            return {"source": INTERPOLATED}
        return {"source": FOLLOWED, "undetected_frames": self.followed[row - self.detected]}

    def with_more(self, boxes: Boxes, masks: Masks) -> LabeledFrame:
        """Return the frame with more boxes and their masks behind its own.

        Track ids stay where all of them have one.

        Raises:
            ValueError: the frame has failed, or the masks are of another size.

        """
        own = self.boxes
        if self.masks is None or self.masks.size_hw != masks.size_hw:
            raise ValueError(f"{self.frame.uri}: masks of another size than the frame's")
        ids = boxes.track_ids
        if len(own) and ids is not None:
            ids = None if own.track_ids is None else np.concatenate([own.track_ids, ids])
        return replace(
            self,
            boxes=Boxes(
                np.concatenate([own.xyxy_px, boxes.xyxy_px]),
                np.concatenate([own.scores, boxes.scores]),
                (*own.labels, *boxes.labels), ids, own.source,
            ),
            masks=Masks.joined([self.masks, masks]),
        )  # fmt: skip


def encode_table(kind: Kind, parts: Iterable[Columns], metadata: Mapping[str, Any]) -> bytes:
    """Parquet bytes of the parts' rows, one after another; equal input gives equal bytes."""
    parts = list(parts)
    schema = SCHEMAS[kind]
    arrays = [
        pa.concat_arrays([pa.array(part[name], type=type_) for part in parts])
        if parts else pa.array([], type=type_)
        for name, type_ in zip(schema.names, schema.types, strict=True)
    ]  # fmt: skip
    values = {name: json.dumps(value, sort_keys=True) for name, value in metadata.items()}
    values |= {"kind": kind, "format_version": str(FORMAT_VERSION)}
    values[checksums.PARQUET_KEY] = checksums.UNSEALED
    table = pa.Table.from_arrays(arrays, schema=schema.with_metadata(values))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    return checksums.seal_parquet(buffer.getvalue())


def decode_table(data: bytes, kind: Kind, key: str, name: str) -> tuple[pa.Table, dict[str, Any]]:
    """Read a table and its metadata back.

    Raises:
        IncompleteArtifactError: truncated, damaged, of another key, kind or format version.
        MemoryError: this machine has too little memory; that says nothing of the table.

    """
    checksums.check_parquet(data, name)
    try:
        with pq.ParquetFile(io.BytesIO(data)) as file:
            schema, footer = file.schema_arrow, file.metadata
        found = {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}
        wanted = {"kind": kind, "format_version": str(FORMAT_VERSION), "key": json.dumps(key)}
        wrong = [f"{k} is {found.get(k)}, not {v}" for k, v in wanted.items() if found.get(k) != v]
        if wrong or not schema.equals(SCHEMAS[kind]):
            raise IncompleteArtifactError(f"{name} is not what its name says: {wrong or 'columns'}")
        plain = {"kind", "format_version", checksums.PARQUET_KEY}
        values = {k: checksums.plain_json(v) for k, v in found.items() if k not in plain}
        refuse_large(footer, _MOST_ROWS[kind])
        texts = [field.name for field in schema if field.type == pa.string()]
        # Its threads may let go of the file late, as those of read_table do: at exit that aborts.
        with pq.ParquetFile(
            io.BytesIO(data), page_checksum_verification=True, read_dictionary=texts
        ) as file:
            table = file.read(use_threads=False)
        refuse_long(table, texts)
        table = table.cast(SCHEMAS[kind])
    except MemoryError:  # pyarrow's is an ArrowException, too
        raise
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        raise IncompleteArtifactError(f"{name} is truncated or damaged: {error}") from error
    try:
        refuse_broken(table)
    except ValueError as error:  # of pyarrow, too
        raise IncompleteArtifactError(f"{name} holds what no label of ours has: {error}") from error
    return table, values


def _key_columns(frame: FrameRef, count: int) -> Columns:
    """Columns that say which frame and box each of its rows is."""
    return {
        "sequence_id": [frame.sequence_id] * count,
        "camera": [frame.camera] * count,
        "index": np.full(count, frame.index, np.int64),
        "box_index": np.arange(count, dtype=np.int32),
    }


def box_columns(frame: FrameRef, boxes: Boxes) -> Columns:
    """Columns of the boxes of one frame."""
    count, sides = len(boxes), np.ascontiguousarray(boxes.xyxy_px.T)
    return _key_columns(frame, count) | {
        "label": list(boxes.labels),
        "score": boxes.scores,
        "track_id": [None] * count if boxes.track_ids is None else boxes.track_ids,
        **dict(zip(("x1_px", "y1_px", "x2_px", "y2_px"), sides, strict=True)),
    }


def mask_columns(frame: FrameRef, boxes: Boxes, masks: Masks) -> Columns:
    """Columns of the boxes and masks of one frame."""
    height, width = masks.size_hw
    return box_columns(frame, boxes) | {
        "rle": [counts.decode("ascii") for counts in masks.rle],
        "height": np.full(len(masks), height, np.int32),
        "width": np.full(len(masks), width, np.int32),
        "predicted_iou": masks.predicted_iou,
        "stability": masks.stability,
        "object_score": masks.object_score,
        "area_px": masks.area_px,
        "reason": list(masks.reasons),
    }


def track_columns(frame: FrameRef, ids: IntArray, labels: Sequence[str]) -> Columns:
    """Columns of the tracks of the boxes of one frame."""
    return _key_columns(frame, len(ids)) | {"track_id": ids, "track_label": list(labels)}


def frame_columns(labeled: LabeledFrame) -> Columns:
    """Columns of the one row of a frame."""
    frame, failure = labeled.frame, labeled.failure
    size_hw = frame.size_hw if labeled.masks is None else labeled.masks.size_hw
    row = {
        "sequence_id": frame.sequence_id, "camera": frame.camera, "index": frame.index,
        "timestamp_ns": frame.timestamp_ns, "uri": frame.uri, "etag": frame.etag,
        "size_bytes": frame.size_bytes, "height": size_hw[0], "width": size_hw[1],
        "status": "failed" if failure else "ok",
        "stage": failure.stage if failure else "",
        "reason": failure.reason if failure else "",
        "instances": 0 if failure else len(labeled.boxes),
    }  # fmt: skip
    return {name: [value] for name, value in row.items()}


def as_stored(labeled: LabeledFrame) -> LabeledFrame:
    """Return an outcome as it is read back after it was written."""
    size_hw = labeled.frame.size_hw if labeled.masks is None else labeled.masks.size_hw
    frame = replace(labeled.frame, size_hw=size_hw, local_path="", problem="")
    if labeled.failure:
        return LabeledFrame(frame, Boxes.empty(labeled.boxes.source), failure=labeled.failure)
    return replace(labeled, frame=frame)


def split_by_frame(table: pa.Table) -> dict[tuple[str, int], pa.Table]:
    """Rows of each camera's frames by (camera, index), in the order written; no copy."""
    cameras = table["camera"].combine_chunks().dictionary_encode()
    number, index = cameras.indices.to_numpy(), table["index"].to_numpy()
    changes = np.flatnonzero((np.diff(number) != 0) | (np.diff(index) != 0)) + 1
    edges = [0, *changes.tolist(), len(index)] if len(index) else [0]
    names = cameras.dictionary.to_pylist()
    return {
        (names[number[start]], int(index[start])): table.slice(start, stop - start)
        for start, stop in itertools.pairwise(edges)
    }


def strings_of(column: Any) -> tuple[str, ...]:
    """Texts of a column."""
    return tuple(column.to_pylist())


def to_boxes(rows: pa.Table, source: str) -> Boxes:
    """Boxes of one frame's rows."""
    sides = [rows[name].to_numpy() for name in ("x1_px", "y1_px", "x2_px", "y2_px")]
    track_ids = rows["track_id"]
    return Boxes(
        np.stack(sides, axis=1),
        rows["score"].to_numpy(),
        strings_of(rows["label"]),
        None if track_ids.null_count else track_ids.to_numpy(),
        source,
    )


def to_masks(rows: pa.Table, size_hw: tuple[int, int]) -> Masks:
    """Masks of one frame's rows; raises ValueError for masks of another size."""
    sides = zip(("height", "width"), size_hw, strict=True)
    if any({*rows[side].to_pylist()} - {wanted_px} for side, wanted_px in sides):
        raise ValueError(f"masks of another size than {size_hw}")
    return Masks(
        tuple(counts.encode("ascii") for counts in strings_of(rows["rle"])),
        size_hw,
        rows["predicted_iou"].to_numpy(),
        rows["stability"].to_numpy(),
        rows["object_score"].to_numpy(),
        rows["area_px"].to_numpy(),
        strings_of(rows["reason"]),
    )


def to_frame(row: Mapping[str, Any]) -> FrameRef:
    """Make the reference of one row of a frames table."""
    names = ("sequence_id", "camera", "index", "timestamp_ns", "uri", "etag", "size_bytes")
    return FrameRef(**{name: row[name] for name in names}, size_hw=(row["height"], row["width"]))


def to_labeled(
    frame: FrameRef, row: Mapping[str, Any], masks: pa.Table, source: str, followed: Sequence[int]
) -> LabeledFrame:
    """Outcome of a frame, of its row of the frames table and its rows of the masks table.

    Raises:
        ValueError: the two disagree.

    """
    if row["instances"] != len(masks):
        raise ValueError(f"{row['instances']} labels of frame {frame.index}, {len(masks)} masks")
    if row["status"] == "failed":
        failure = FrameFailure.of(frame, row["stage"], row["reason"])
        return LabeledFrame(frame, Boxes.empty(source), failure=failure)
    boxes, made = to_boxes(masks, source), to_masks(masks, frame.size_hw)
    return LabeledFrame(frame, boxes, made, followed=tuple(map(int, followed)))
