"""ONNX files of YOLOX's form with a known answer, written without the onnx package.

The protobuf fields are those of onnx.proto (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto).
"""

import json
from pathlib import Path

import numpy as np

FLOAT, INT, INTS = 1, 2, 7


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    value = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _tensor(name: str, array: np.ndarray) -> bytes:
    array = np.asarray(array, np.float32)
    dims = b"".join(_field(1, size) for size in array.shape)
    return dims + _field(2, FLOAT) + _field(8, name) + _field(9, array.tobytes())


def _value(name: str, shape: list[int | str]) -> bytes:
    dims = b"".join(_field(1, _field(1 if isinstance(d, int) else 2, d)) for d in shape)
    return _field(1, name) + _field(2, _field(1, _field(1, FLOAT) + _field(2, dims)))


def _node(kind: str, inputs: list[str], output: str, **attributes: int | list[int]) -> bytes:
    data = b"".join(_field(1, name) for name in inputs) + _field(2, output) + _field(4, kind)
    for name, value in attributes.items():
        if isinstance(value, int):
            inside = _field(3, value) + _field(20, INT)
        else:
            inside = b"".join(_field(8, one) for one in value) + _field(20, INTS)
        data += _field(5, _field(1, name) + inside)
    return data


def write_yolox(
    path: Path,
    rows: np.ndarray,
    size: int = 64,
    batch: int | str = "batch",
    classes: list[str] | None = None,
) -> Path:
    """Write a detector that answers `rows` (cells, 5 + classes) for every image.

    It adds 0 times the image's mean, so that a NaN in its input shows.
    """
    graph = b"".join(
        _field(1, node)
        for node in (
            _node("ReduceMean", ["images"], "mean", axes=[1, 2, 3], keepdims=1),
            _node("Squeeze", ["mean"], "flat", axes=[3]),
            _node("Mul", ["flat", "zero"], "nothing"),
            _node("Add", ["nothing", "rows"], "output"),
        )
    )
    graph += _field(2, "detector")
    graph += _field(5, _tensor("rows", rows[None])) + _field(5, _tensor("zero", np.zeros(1)))
    graph += _field(11, _value("images", [batch, 3, size, size]))
    graph += _field(12, _value("output", [batch, *rows.shape]))
    model = _field(1, 6) + _field(7, graph) + _field(8, _field(1, "") + _field(2, 11))
    if classes is not None:
        model += _field(14, _field(1, "classes") + _field(2, json.dumps(classes)))
    path.write_bytes(model)
    return path
