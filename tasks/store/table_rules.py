"""What the columns of our tables may hold besides their types: checked once, where one is read.

A checksum says that a table is whole and not who wrote it, and a writer of that storage can
write a right one. Numbers that nothing of ours writes end exports, and run lengths that are none
end the process in C.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rlemasklib import RLEMask

from sam2_core.images import max_megapixels
from sam2_core.mask_geometry import mask_of

# Where a row may have no value.
_OPTIONAL = frozenset({"timestamp_ns", "track_id"})
_MOST_BYTES = 256 << 20  # of a table's numbers, and of each of its columns of texts
Holds = Callable[[Any], bool]


def _within(low: int, high: int) -> Holds:
    def holds(column: Any) -> bool:
        lowest, highest = pc.min(column).as_py(), pc.max(column).as_py()
        return lowest is None or (low <= lowest and highest <= high)

    return holds


def _is_finite(column: Any) -> bool:
    return bool(pc.all(pc.is_finite(column)).as_py())


def _text(characters: int, but: str) -> Holds:
    """Hold texts of at most so many characters, and without what a pattern finds."""

    def holds(column: Any) -> bool:
        longest: Any = pc.max(pc.utf8_length(column))
        found = pc.any(pc.match_substring_regex(column, but))
        return longest.as_py() <= characters and not found.as_py()

    return holds


_is_name = _text(1024, r"[\x00-\x1f\x7f-\x{9f}]")
_is_address = _text(4096, r"\x00")

# What a column holds, in words, and whether it does; all others may hold any value of their type.
_COLUMNS: Mapping[str, tuple[str, Holds]] = {
    "sequence_id": ("names", _is_name),
    "camera": ("names", _is_name),
    "index": ("numbers of frames from 0", _within(0, 2**31 - 1)),
    "box_index": ("numbers of boxes from 0", _within(0, 2**31 - 1)),
    "timestamp_ns": ("times from 1823 to 2116", _within(-(2**62), 2**62)),
    "uri": ("addresses", _is_address),
    "etag": ("addresses", _is_address),
    "reason": ("reasons", _text(100_000, r"\x00")),
    "size_bytes": ("sizes", _within(0, 2**63 - 1)),
    "height": ("pixels", _within(0, 2**31 - 1)),
    "width": ("pixels", _within(0, 2**31 - 1)),
    "status": ("ok or failed", lambda column: {*column.to_pylist()} <= {"ok", "failed"}),
    "stage": ("names", _is_name),
    "label": ("names of classes", _is_name),
    "track_label": ("names of classes", _is_name),
    "predicted_iou": ("finite numbers", _is_finite),
    "stability": ("finite numbers", _is_finite),
    "object_score": ("finite numbers", _is_finite),
}


def refuse_large(footer: Any, most_rows: int) -> None:
    """Refuse a Parquet file by its footer, before it is unpacked.

    Raises:
        ValueError: the reason.

    """
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    size_bytes = sum(group.total_byte_size for group in groups)
    if footer.num_rows > most_rows or size_bytes > _MOST_BYTES:
        raise ValueError(f"{footer.num_rows:,} rows of {size_bytes:,} bytes are too many")


def refuse_long(table: pa.Table, texts: Sequence[str]) -> None:
    """Refuse texts before each row gets its own: one of a dictionary can be that of all rows.

    Raises:
        ValueError: the reason.

    """
    for name in texts:
        parts: list[Any] = table[name].chunks
        sizes = (pc.binary_length(part.dictionary).take(part.indices) for part in parts)
        size_bytes = sum(pc.sum(size).as_py() or 0 for size in sizes)
        if size_bytes > _MOST_BYTES:
            raise ValueError(f"{name} has texts of {size_bytes:,} bytes, which are too many")


def refuse_broken(table: pa.Table) -> None:
    """Refuse a table of ours that holds what nothing of ours writes.

    Raises:
        ValueError: the reason.

    """
    if not table.num_rows:
        return
    table.validate(full=True)
    for name in table.column_names:
        words, holds = _COLUMNS.get(name, ("", lambda _: True))
        if table[name].null_count and name not in _OPTIONAL:
            raise ValueError(f"{name} is missing in a row")
        if not holds(table[name]):
            raise ValueError(f"{name} must be {words}")
    if "box_index" in table.column_names:
        _refuse_wrong_order(table)
    if "height" in table.column_names:
        pixels = table["height"].to_numpy().astype(np.int64) * table["width"].to_numpy()
        if pixels.max() > max_megapixels() * 1_000_000:
            raise ValueError(f"a picture of more than {max_megapixels()} megapixels")
    if "rle" in table.column_names:
        _refuse_broken_masks(table)


def _refuse_wrong_order(table: pa.Table) -> None:
    """Refuse boxes that are not numbered from 0 in each frame, and frames that come twice."""
    camera = table["camera"].combine_chunks().dictionary_encode().indices.to_numpy()
    index, box = table["index"].to_numpy(), table["box_index"].to_numpy()
    starts = np.flatnonzero((np.diff(camera, prepend=-1) != 0) | (np.diff(index, prepend=-1) != 0))
    own = np.arange(len(box)) - np.repeat(starts, np.diff(starts, append=len(box)))
    frames = set(zip(camera[starts].tolist(), index[starts].tolist(), strict=True))
    if (own != box).any() or len(frames) < len(starts):
        raise ValueError("boxes are not numbered from 0 in each frame")


def sound_mask(counts: str, size_hw: Sequence[int]) -> RLEMask:
    """Read run lengths that anybody may have written.

    Those that add up, but are not written as COCO's, are refused, too: pycocotools writes beyond
    its memory with some of them.

    Raises:
        ValueError: they are none of a mask of this (height, width), or it is too large.

    """
    if min(size_hw) < 1 or size_hw[0] * size_hw[1] > max_megapixels() * 1_000_000:
        raise ValueError(f"a mask of {size_hw[0]} x {size_hw[1]} pixels")
    mask = mask_of(counts.encode(), size_hw)
    if mask.to_dict()["counts"] != counts.encode():
        raise ValueError("run lengths that are not written as COCO's are")
    return mask


def _refuse_broken_masks(table: pa.Table) -> None:
    names = ("rle", "height", "width", "area_px")
    for counts, *size_hw, area_px in zip(*(table[name].to_pylist() for name in names), strict=True):
        found_px = sound_mask(counts, size_hw).area()
        if found_px != area_px:
            raise ValueError(f"a mask of {found_px} pixels, not of {area_px}")
    sides = np.stack([table[name].to_numpy() for name in ("x1_px", "y1_px", "x2_px", "y2_px")])
    if not np.isfinite(sides[:, table["area_px"].to_numpy() > 0]).all():
        raise ValueError("a mask with pixels has a box that is none")
