"""What an exported model's model.json says, held against its graphs and what this version knows.

Labels carry the preset's name, and weights are looked for by it, so what somebody wrote there by
hand is not simply believed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from sam2_core.export import GRAPHS, METADATA, PRECISIONS
from sam2_core.presets import MICRO, PRESETS

NEEDED = {"preset", "image_size", "checkpoint_sha256", "graph", "precision"}
# Fields of ONNX's ModelProto and of an entry of its metadata.
_METADATA, _KEY, _VALUE = 14, 1, 2
# Of protobuf: kinds of fields, how many bytes the fixed ones have, the bits of a number.
_VARINT, _SIZES, _LONGEST = 0, {1: 8, 5: 4}, 63
_PRESETS = (*PRESETS, MICRO.name)
_CHOICES = {"preset": _PRESETS, "graph": GRAPHS, "precision": PRECISIONS}


def problem_of(facts: dict[str, Any], folder: Path) -> str:
    """Say what is wrong with a model.json that has what every one needs; "" where nothing is.

    Args:
        facts: what it says.
        folder: where its graphs are, each of which names its preset, weights and sizes, too.

    """
    for name, choices in _CHOICES.items():
        if facts[name] not in choices:
            return f"{name} is {facts[name]!r}, which is none of {', '.join(choices)}"
    for name in ("image_size", "close_up_size"):
        if not _is_count(facts.get(name, 0)):
            return f"{name} is {facts[name]!r}, which is no number of pixels"
    kinds = {"checkpoint_sha256": str, "also": dict, "files": dict, "windows": list}
    for name, kind in kinds.items():
        if not isinstance(facts.get(name, kind()), kind):
            return f"{name} is {facts[name]!r}, which is not what an export writes"
    if not all(map(_is_count, facts.get("windows", ()))):
        return f"windows is {facts['windows']!r}, which are no numbers of cells"
    for name, said in metadata_of(folder / "encoder.onnx").items():
        if name in METADATA and name in facts and str(facts[name]) != said:
            return f"{name} is {facts[name]!r}, and encoder.onnx was exported with {said!r}"
    return ""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def metadata_of(graph: Path) -> dict[str, str]:
    """Return the metadata of an ONNX file, without reading its weights; none of what is none."""
    try:
        with graph.open("rb") as file:
            entries = [dict(_fields(BytesIO(one))) for _, one in _fields(file, only=_METADATA)]
        return {one[_KEY].decode(): one[_VALUE].decode() for one in entries}
    except (OSError, ValueError, KeyError, OverflowError):
        return {}


def _fields(file: BinaryIO, only: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers and bytes of a protobuf message's fields, passing over what has none.

    Args:
        file: the message.
        only: number of the fields that are wanted; all of them when 0.

    """
    while start := file.read(1):
        field, kind = divmod(_number(file, start), 8)
        if kind == _VARINT:
            _number(file, file.read(1))
            continue
        size = _SIZES.get(kind) or _number(file, file.read(1))
        if only in {0, field}:
            yield field, file.read(size)
        else:
            file.seek(size, os.SEEK_CUR)


def _number(file: BinaryIO, byte: bytes) -> int:
    """Read a number as protobuf writes it, seven bits a byte and the least first."""
    value, shift = 0, 0
    while True:
        (bits,) = byte
        value |= (bits & 0x7F) << shift
        if bits < 0x80:
            return value
        if shift > _LONGEST:
            raise ValueError("no protobuf")
        shift, byte = shift + 7, file.read(1)
