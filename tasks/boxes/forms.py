"""Forms of detectors' ONNX graphs: which one a file is of, and that file made to one form.

A form is read off the names and sizes of inputs and outputs and the metadata. Sizes that a file
leaves open are those of its answer to a black picture. What no form fits is refused.

YOLOX's form is run as it is. Nodes around every other graph give it the same ends, so that the CPU
and every device run all of them in one way: a picture in, BGR 0 to 255, and rows out: centre and
size in pixels of the input, objectness, and a score for each class.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sam2_core.backends.onnxruntime_backend import open_session, run_session
from sam2_core.types import AutolabelError, DeviceMemoryError
from tasks.boxes.detector_files import CPU, takes_text

KNOWN = (
    "YOLOX, YOLOv5 to YOLO26 and RT-DETR as Ultralytics exports them (with NMS or without), "
    "RT-DETR and D-FINE (labels, boxes, scores), and RF-DETR (dets, labels)"
)
STRIDES = (8, 16, 32)
_GRIDS = (STRIDES, (8, 16, 32, 64), (4, 8, 16, 32))
DYNAMIC_SIZE = 640
MOST_SIDE_PX, MOST_IMAGES = 8192, 128
# Of COCO, in the order of detectors trained on it.
COCO_CLASSES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat",
    "traffic light", "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog",
    "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella",
    "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard", "sports ball", "kite",
    "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange",
    "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant",
    "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone",
    "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors",
    "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip
# Of COCO's own numbers, 0 to 90, those without a class.
_COCO_GAPS = {0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
_TASKS = ("detect", "segment")
_SIZES, _PICTURE = "orig_target_sizes", "autolabel_picture"
_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


# Nodes before a graph and behind it, in ONNX's own notation. `values` become its picture, and
# `boxes` (centre and size in pixels of the input) and `scores` are made of its outputs.
_BEFORE = """
    rgb = Gather<axis=1>(picture, red_first)
    shares = Div(rgb, whole)
    values = Sub(shares, offset)
"""
_SIZES_BEFORE = """
    shape = Shape(picture)
    count = Slice(shape, at_0, at_1)
    pairs = Concat<axis=0>(count, at_2)
    wanted_sizes = Expand(input_wh, pairs)
"""
_END = """
    width = Slice(boxes, at_2, at_3, last)
    is_number = Equal(width, width)
    objectness = Cast<to=1>(is_number)
    rows = Concat<axis=-1>(boxes, objectness, scores)
"""
_OF_CORNERS = """
    low = Slice(corners, at_0, at_2, last)
    high = Slice(corners, at_2, at_4, last)
    ends = Add(low, high)
    centre = Mul(ends, half)
    size = Sub(high, low)
    boxes = Concat<axis=-1>(centre, size)
"""
_OF_FRACTIONS = "boxes = Mul(fractions, input_whwh)\n"
_OF_LABEL = """
    is_label = Equal(label, numbers)
    share = Cast<to=1>(is_label)
    scores = Mul(score, share)
"""
_SCORES = "scores = Slice(first, at_4, at_classes, last)\n"
_SCORE_AND_LABEL = """
    score = Slice(first, at_4, at_5, last)
    label = Slice(first, at_5, at_6, last)
"""
# Rows of centre, size and a score of each class; the same in columns; with objectness between.
_SCORED = "boxes = Slice(first, at_0, at_4, last)\n" + _SCORES
_TURNED = "first = Transpose<perm=[0, 2, 1]>(first_turned)\n" + _SCORED
_WITH_OBJECTNESS = """
    boxes = Slice(first, at_0, at_4, last)
    sure = Slice(first, at_4, at_5, last)
    each = Slice(first, at_5, at_columns, last)
    scores = Mul(each, sure)
"""
# Rows of corners, score and label. Queries: centre and size in fractions, and either.
_BEST = "corners = Slice(first, at_0, at_4, last)\n" + _OF_CORNERS + _SCORE_AND_LABEL + _OF_LABEL
_FRACTIONS = "fractions = Slice(first, at_0, at_4, last)\n" + _OF_FRACTIONS
_QUERIES = _FRACTIONS + _SCORES
_BEST_QUERIES = _FRACTIONS + _SCORE_AND_LABEL + _OF_LABEL
# Labels (B, N), corners (B, N, 4) and scores (B, N).
_LABELS_BOXES_SCORES = (
    """
    score = Reshape(third, as_column)
    number = Reshape(first, as_column)
    label = Min(number, last_number)
    corners = Identity(second)
    """
    + _OF_CORNERS + _OF_LABEL
)  # fmt: skip
# Centre and size in fractions (B, N, 4), logits of each class (B, N, classes).
_DETS_LABELS = "fractions = Identity(first)\nscores = Sigmoid(second)\n" + _OF_FRACTIONS


Placing = Literal["corner", "middle", "stretched"]


@dataclass(frozen=True, eq=False)
class Form:
    """How a detector is fed and read.

    Attributes:
        graph: the ONNX file: one input, float32 BGR 0 to 255 (B, 3, H, W), and one output, float32
            rows (B, N, 5 + classes).
        ends: names of the input and the output.
        classes: a name for each column of scores; "" for a column without a class.
        input_hw: height and width of the input in pixels.
        batch: B, as many images as it takes at once; None: any number.
        rows: N.
        placing: where the picture is in the input: at the top left, in the middle, all over it.
        in_cells: rows are of YOLOX's grids: centres in cells, sizes as logarithms.
        one_each: the graph itself leaves one box to an object.

    """

    graph: bytes
    ends: tuple[str, str]
    classes: tuple[str, ...]
    input_hw: tuple[int, int]
    batch: int | None
    rows: int
    placing: Placing
    in_cells: bool = False
    one_each: bool = False

    @property
    def row_shape(self) -> tuple[int, int]:
        """N and columns."""
        return self.rows, 5 + len(self.classes)


def read_form(path: Path, data: bytes, given: Sequence[str] = ()) -> Form:
    """Tell which form a file is of.

    Args:
        path: the ONNX file, for messages.
        data: its bytes.
        given: class names that take the place of its own; ("coco",): COCO's.

    Raises:
        AutolabelError: it cannot be read, or is of none: what was seen, and what is known.

    """
    seen = _Seen(path, data, given)
    task = seen.facts.get("task") or seen.metadata.get("task") or _TASKS[0]
    if task not in _TASKS:
        raise AutolabelError(
            f"{path} was exported for the task {task}: boxes come from {' and '.join(_TASKS)}"
        )
    seen.check_input()
    if {"labels", "boxes", "scores"} <= seen.shapes.keys() and _SIZES in seen.inputs:
        # Labels beyond the names are to be seen.
        form = seen.form((*seen.named(), "unnamed"), seen.shapes["boxes"][0], "stretched")
        return seen.around(form, _LABELS_BOXES_SCORES, ("labels", "boxes", "scores"))
    if {"dets", "labels"} <= seen.shapes.keys() and len(seen.shapes["labels"]) == 2:
        queries, classes = seen.shapes["labels"]
        form = seen.form(seen.named(classes), queries, "stretched")
        return seen.around(form, _DETS_LABELS, ("dets", "labels"), _MEAN, _DEVIATION)
    return _one_output(seen)


def _one_output(seen: _Seen) -> Form:
    """Tell apart the forms whose boxes and scores are in one output."""
    first, *more = seen.shapes.values()
    if len(first) != 2:
        raise seen.refused()
    high, wide = first
    masks = more[0][0] if more and len(more[0]) == 3 else 0
    is_queries = any(
        "rtdetr" in seen.metadata.get(key, "").lower() for key in ("description", "head")
    )
    placing: Placing = "stretched" if is_queries else "middle"
    form, reading = seen.form(seen.names or COCO_CLASSES, high, placing), ""
    scored = 4 + len(form.classes) + masks
    cells = [_cells(form.input_hw, strides) for strides in _GRIDS]
    if is_queries:
        best = wide == 6 and (scored != 6 or "head" in seen.metadata)  # of newer versions
        reading = _BEST_QUERIES if best else _QUERIES if wide == scored else ""
    elif high == scored and wide in cells:
        form, reading = replace(form, rows=wide), _TURNED
    elif wide == scored and high in cells:
        reading = _SCORED
    elif wide == scored + 1 and high in [3 * count for count in cells]:
        reading = _WITH_OBJECTNESS
    elif wide == scored + 1 and high == cells[0]:
        seen.refuse_decoded()
        return replace(form, placing="corner", in_cells=True)
    elif wide == 6 + masks and "names" in seen.metadata:
        form, reading = replace(form, one_each=True), _BEST
    if not reading:
        raise seen.refused()
    return seen.around(form, reading, list(seen.shapes)[:1])


def _cells(input_hw: tuple[int, int], strides: Sequence[int]) -> int:
    return sum((input_hw[0] // stride) * (input_hw[1] // stride) for stride in strides)


class _Seen:
    """What can be seen of a file: its ends, its metadata, its answer to a black picture.

    Args:
        path: the ONNX file, for messages.
        data: its bytes.
        given: class names that take the place of its own.

    Attributes:
        shapes: of the outputs by name, without the first size.
        facts: what RF-DETR's exporter writes.
        names: of its classes, as far as they are known.

    Raises:
        AutolabelError: it cannot be read.

    """

    def __init__(self, path: Path, data: bytes, given: Sequence[str]) -> None:
        self.path, self.data, self.session = path, data, _opened(path, data)
        self.metadata: Mapping[str, str] = self.session.get_modelmeta().custom_metadata_map
        self.inputs = {node.name: node for node in self.session.get_inputs()}
        self.shapes = {node.name: tuple(node.shape[1:]) for node in self.session.get_outputs()}
        self.facts: dict[str, Any] = self._read("rfdetr_inference", _facts) or {}
        self.given = COCO_CLASSES if tuple(given) == ("coco",) else tuple(given)
        self.names: tuple[str, ...] = (
            self.given
            or self._read("names", lambda text: _listed(ast.literal_eval(text)))
            or self._read("classes", lambda text: _listed(json.loads(text)))
            or ()
        )

    def _read(self, key: str, read: Callable[[str], Any]) -> Any:
        """Read metadata; None where there is none."""
        try:
            return read(self.metadata[key]) if key in self.metadata else None
        except (ValueError, TypeError, LookupError, SyntaxError, RecursionError, MemoryError) as e:
            raise AutolabelError(f"{self.path}: its metadata `{key}` cannot be read") from e

    def check_input(self) -> None:
        """Refuse what takes something else than pictures; learn the sizes that are left open."""
        pictures = [node for node in self.inputs.values() if len(node.shape) == 4]
        if not pictures or self.inputs.keys() - {pictures[0].name, _SIZES}:
            raise self.refused()
        self.image = pictures[0]
        usual = self._read("imgsz", _sides) or (DYNAMIC_SIZE, DYNAMIC_SIZE)
        batch, colours, *sides = (
            size if isinstance(size, int) else open_
            for size, open_ in zip(self.image.shape, (None, None, *usual), strict=True)
        )
        if not (
            (batch is None or 0 < batch <= MOST_IMAGES)
            and 0 < min(sides) <= max(sides) <= MOST_SIDE_PX
            and colours == 3
            and self.image.type in _FLOATS
        ):
            raise self.refused()
        self.batch, self.input_hw = batch, (sides[0], sides[1])
        if not all(isinstance(size, int) for shape in self.shapes.values() for size in shape):
            self._ask()

    def _ask(self) -> None:
        shape = (self.batch or 1, 3, *self.input_hw)
        inputs = {self.image.name: np.zeros(shape, _FLOATS[self.image.type])}
        if _SIZES in self.inputs:
            kind = np.int64 if "int" in self.inputs[_SIZES].type else np.float32
            inputs[_SIZES] = np.array([self.input_hw[::-1]] * shape[0], kind)
        try:
            found = run_session(self.session, list(self.shapes), inputs)
        except DeviceMemoryError:
            raise
        except Exception as error:  # onnxruntime's own exception classes are private
            raise AutolabelError(f"the detector {self.path} fails: {error}") from error
        self.shapes = {name: rows.shape[1:] for name, rows in zip(self.shapes, found, strict=True)}

    def named(self, count: int | None = None) -> tuple[str, ...]:
        """Return a name for each of so many scores, "" for a score without a class.

        Raises:
            AutolabelError: they are not known, or are too few or too many.

        """
        numbered = self.facts.get("class_id_to_name")
        if count and numbered and not self.given:
            return tuple(str(numbered.get(str(number), "")) for number in range(count))
        if count == len(_COCO_GAPS) + len(COCO_CLASSES) and self.names in {(), COCO_CLASSES}:
            names = iter(COCO_CLASSES)
            return tuple("" if number in _COCO_GAPS else next(names) for number in range(count))
        more = count - len(self.names) if count else 0
        if not self.names or more not in {0, 1}:  # the last score may be of no object
            raise AutolabelError(
                f"{self.path} has {len(self.names) or 'no'} class names"
                f"{f' for its {count} scores' if count else ''}: give them with "
                "--detector-classes 'car, truck', or 'coco' for those of COCO"
            )
        return (*self.names, *[""] * more)

    def form(self, classes: tuple[str, ...], rows: int, placing: Placing) -> Form:
        """Return a form of what was seen; what takes a stretched picture has queries."""
        return Form(
            self.data, (self.image.name, next(iter(self.shapes))), classes, self.input_hw,
            self.batch, rows, placing, one_each=placing == "stretched",
        )  # fmt: skip

    def refuse_decoded(self) -> None:
        """Refuse YOLOX with decoded boxes, whose sizes are exponentials already."""
        if b'"\x03Exp' not in self.data:  # as the name of an operator is stored
            return
        import onnx  # a seventh of a second, which every run of the bundled detector would wait

        if any(node.op_type == "Exp" for node in onnx.load_from_string(self.data).graph.node):
            raise AutolabelError(
                f"{self.path} is a YOLOX that decodes its boxes itself: export it without "
                "--decode_in_inference"
            )

    def refused(self) -> AutolabelError:
        """Say what was seen, and what is known."""
        takes = ", ".join(f"{name} {node.shape}" for name, node in self.inputs.items())
        gives = ", ".join(f"{name} {['any', *shape]}" for name, shape in self.shapes.items())
        if takes_text(self.inputs):
            takes += "; it takes text: say what to look for with --prompt 'car, traffic cone'"
        return AutolabelError(
            f"{self.path} is not a detector of a known form: it takes {takes}; it gives {gives}; "
            f"it has {len(self.names) or 'no'} class names; known are {KNOWN}"
        )

    def around(
        self, form: Form, reading: str, outputs: Sequence[str],
        mean: Sequence[float] = (0, 0, 0), deviation: Sequence[float] = (1, 1, 1),
    ) -> Form:  # fmt: skip
        """Put nodes around the graph.

        Args:
            form: of the file.
            reading: nodes that make boxes and scores of its outputs.
            outputs: `first`, `second`, `third`.
            mean: of RGB in 0 to 1, which is taken off.
            deviation: that the rest is divided by.

        """
        import onnx

        model, end = onnx.load_from_string(self.data), onnx.helper.make_tensor_value_info
        graph, classes, wh = model.graph, len(form.classes), form.input_hw[::-1]
        names = {"picture": _PICTURE}
        constants = {
            **{f"at_{number}": np.array([number]) for number in range(7)},
            "at_classes": np.array([4 + classes]), "at_columns": np.array([5 + classes]),
            "last": np.array([-1]), "as_column": np.array([0, -1, 1]),
            "red_first": np.array([2, 1, 0]), "half": np.array([0.5], np.float32),
            "input_wh": np.array([wh]), "input_whwh": np.array([*wh, *wh], np.float32),
            "numbers": np.arange(classes, dtype=np.float32),
            "last_number": np.array([classes - 1], np.float32),
            "whole": np.reshape(np.multiply(255, deviation), (1, 3, 1, 1)).astype(np.float32),
            "offset": np.reshape(np.divide(mean, deviation), (1, 3, 1, 1)).astype(np.float32),
        }  # fmt: skip

        def nodes_of(text: str) -> list[Any]:
            nodes = [onnx.parser.parse_node(line) for line in text.splitlines() if line.strip()]
            for node in nodes:
                for ends in (node.input, node.output):
                    ends[:] = [names.get(name, f"autolabel_{name}") for name in ends]
            return nodes

        before, behind = _BEFORE, reading + _END
        if _SIZES in self.inputs:
            before += _SIZES_BEFORE
        for declared in graph.input:
            made = {self.image.name: "values", _SIZES: "wanted_sizes"}.get(declared.name)
            if made:
                names[f"{made}_in"] = declared.name
                before += f"{made}_in = Cast<to={declared.type.tensor_type.elem_type}>({made})\n"
        for output, place in zip(outputs, ("first", "second", "third"), strict=False):
            names[f"{place}_out"] = output
            turned = "_turned" if reading == _TURNED else ""
            behind = f"{place}{turned} = Cast<to=1>({place}_out)\n" + behind
        nodes = [*nodes_of(before), *graph.node, *nodes_of(behind)]
        batch = form.batch or "B"
        inputs = [declared for declared in graph.input if declared.name not in self.inputs]
        for field in ("node", "input", "output"):
            graph.ClearField(field)
        graph.node.extend(nodes)
        graph.input.extend([end(_PICTURE, 1, [batch, 3, *form.input_hw]), *inputs])
        graph.output.append(end("autolabel_rows", 1, [batch, *form.row_shape]))
        graph.initializer.extend(
            onnx.numpy_helper.from_array(array, f"autolabel_{name}")
            for name, array in constants.items()
        )
        return replace(form, graph=model.SerializeToString(), ends=(_PICTURE, "autolabel_rows"))


def _opened(path: Path, data: bytes) -> Any:
    """Open it on the CPU, without any file beside it."""
    if b"\n\x08location" in data:  # as the name of a file is stored
        raise AutolabelError(
            f"{path} keeps weights in another file, which is not read: put all into one, "
            f"`onnx.save(onnx.load('{path.name}'), 'whole.onnx')`"
        )
    try:
        return open_session(path, None, CPU, model=data)
    except AutolabelError as error:
        reason = f"cannot read the detector {path}: {error.__cause__}"
        if "is not a registered function/op" in reason:
            reason += ", and operators of your own are not loaded"
        raise AutolabelError(reason) from error


def _sides(text: str) -> tuple[int, int]:
    height, width = ast.literal_eval(text)
    return int(height), int(width)


def _listed(names: Any) -> tuple[str, ...]:
    return tuple(str(names[number]) for number in range(len(names)))


def _facts(text: str) -> dict[str, Any]:
    """Read what RF-DETR's exporter writes; `ValueError` where pictures are made otherwise."""
    facts = dict(json.loads(text))
    facts["class_id_to_name"] = dict(facts.get("class_id_to_name") or {})
    if [*facts.get("means", _MEAN), *facts.get("stds", _DEVIATION)] != [*_MEAN, *_DEVIATION]:
        raise ValueError("another mean and deviation than ImageNet's")
    return facts
