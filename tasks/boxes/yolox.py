"""Detectors of YOLOX's ONNX form: letterbox, grid decoding, class-aware suppression.

Input (B, 3, H, W) float32 BGR 0..255, the image at the top left and 114 around it; output
(B, cells, 5 + classes): centre offsets in cells, log sizes in cells, objectness, class scores, over
grids of strides 8, 16 and 32 (YOLOX: Exceeding YOLO Series in 2021, Ge et al., and its ONNX demo).
"""

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from sam2_core.arrays import freeze_arrays
from sam2_core.backends.cuda_network import BUCKETS, CudaNetwork, LikelyRows
from sam2_core.backends.gpu import Gpu
from sam2_core.backends.onnxruntime_backend import MOST_CALLS, open_session, run_session
from sam2_core.machine import usable_cores
from sam2_core.preprocess import StagedFrame
from sam2_core.types import AutolabelError, Boxes, FloatArray, ImageArray
from tasks.boxes.detector_files import CPU, DetectorFile, takes_text

STRIDES = (8, 16, 32)
PADDING_GREY = 114
DYNAMIC_SIZE = 640
# Two boxes of one class that overlap by more are one object, of any class those that are one box: a
# pick-up is no car and truck.
SAME_CLASS_IOU, SAME_BOX_IOU = 0.45, 0.85
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


@dataclass(frozen=True, eq=False)
class Letterboxed:
    """An image as the network takes it."""

    pixels: FloatArray | StagedFrame  # (3, H, W) BGR; or the frame, which the device scales
    scale: float  # network pixels per image pixel
    size_hw: tuple[int, int]  # of the original
    scaled_wh: tuple[int, int]  # of the image in the input

    def __post_init__(self) -> None:
        if isinstance(self.pixels, np.ndarray):
            freeze_arrays(self, pixels="float32 (3, H, W)")


class AnyDetector:
    """A loaded detector; any thread may use it.

    Attributes:
        file: which one.
        classes: names of what it finds.
        batch: how many images it takes at once.

    """

    file: DetectorFile
    classes: tuple[str, ...]
    batch = 1

    def warm_up(self) -> None:
        """Let a device do once what it will do for every frame; nothing on a CPU."""

    def class_mask(self, classes: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which classes are wanted, bool (classes,); none named means all.

        Raises:
            AutolabelError: a name that the detector does not know.

        """
        unknown = [name for name in classes if name not in self.classes]
        if unknown:
            raise AutolabelError(
                f"detector {self.file.name} does not know the classes {', '.join(unknown)}; "
                f"it knows {', '.join(self.classes)}"
            )
        return np.array([not classes or name in classes for name in self.classes])

    def letterbox(self, image: ImageArray) -> Letterboxed:
        """Scale an image, uint8 (h, w, 3) RGB, to the input."""
        raise NotImplementedError

    def start(
        self, images: Sequence[Letterboxed], classes: Sequence[str] = (), min_score: float = 0.3
    ) -> Callable[[], list[Boxes]]:
        """Queue images on the device, as `detect`; returns a function that waits for the boxes.

        On a CPU nothing is queued: that function does it all.
        """
        raise NotImplementedError

    def detect(
        self, images: Sequence[Letterboxed], classes: Sequence[str] = (), min_score: float = 0.3
    ) -> list[Boxes]:
        """Boxes of up to `batch` images, best first, inside the image.

        Of boxes that overlap, the best one stays: of one class from SAME_CLASS_IOU on, of any class
        from SAME_BOX_IOU on.

        Args:
            images: from `letterbox`.
            classes: names to keep; all when empty.
            min_score: least score.

        """
        return self.start(images, classes, min_score)()

    def best(
        self, xywh: FloatArray, scores: FloatArray, image: Letterboxed, min_score: float,
        scale: float | FloatArray,
    ) -> Boxes:  # fmt: skip
        """Choose boxes.

        Args:
            xywh: left, top, width, height in pixels of the input, float32 (N, 4).
            scores: (N, classes), 0 for classes that are not wanted.
            image: that they were found in.
            min_score: least score.
            scale: pixels of the input per pixel of the image, of all four sides or of each.

        """
        classes = scores.argmax(1)
        score = scores[np.arange(len(classes)), classes]
        keep = (score >= min_score) & (score > 0) & np.isfinite(xywh).all(1)
        xywh, score, classes = xywh[keep], score[keep], classes[keep]
        chosen: Any = np.zeros(0, np.int64)
        if len(score):
            nms: Any = cv2.dnn  # OpenCV's stubs know lists only
            of_class = nms.NMSBoxesBatched(xywh, score, classes, min_score, SAME_CLASS_IOU)
            of_class = np.asarray(of_class, np.int64)
            kept = nms.NMSBoxes(xywh[of_class], score[of_class], min_score, SAME_BOX_IOU)
            chosen = of_class[np.asarray(kept, np.int64)]
            chosen = chosen[np.argsort(-score[chosen], kind="stable")]
        xyxy = np.hstack([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]])[chosen] / scale
        limit = np.array([image.size_hw[1], image.size_hw[0]] * 2, np.float32)
        names = tuple(self.classes[index] for index in classes[chosen])
        return Boxes(np.clip(xyxy, 0, limit), score[chosen], names, None, self.file.stamp)


class Detector(AnyDetector):
    """A loaded detector of YOLOX's form.

    Args:
        file: which one.
        gpu: the device that runs it, on which it scales frames too; None: the CPU.
        captured: on a GPU, as CUDA graphs: only where nothing but this and ONNX Runtime's mask
            model uses the device.
        engines: on a GPU, TensorRT's cache of engines, where that is to run it.

    Raises:
        AutolabelError: the file cannot be read or is not of YOLOX's form.

    """

    def __init__(
        self, file: DetectorFile, gpu: Gpu | None = None, *, captured: bool = True,
        engines: Path | None = None,
    ) -> None:  # fmt: skip
        self.file = file
        data = self.file.read()
        try:
            self._session = open_session(file.path, None, CPU, model=data)
        except AutolabelError as error:
            reason = f"cannot read the detector {file.path}: {error.__cause__}"
            raise AutolabelError(reason) from error
        self._input, self._output = self._session.get_inputs(), self._session.get_outputs()
        if len(self._input) != 1 or len(self._output) != 1 or len(self._input[0].shape) != 4:
            what = f"{len(self._input)} inputs, {len(self._output)} outputs"
            if takes_text({node.name: node.shape for node in self._input}):
                what += "; it takes text: say what to look for with --prompt 'car, traffic cone'"
            raise self._not_yolox(what)
        batch, _, height, width = self._input[0].shape
        # Images of a call; each core runs calls of its own, as the mask model does.
        self._size, cores = batch if isinstance(batch, int) else 1, usable_cores()
        self._calls = cores if cores <= MOST_CALLS else 1
        self._pool = ThreadPoolExecutor(self._calls, "detector")
        self._single: Any = None
        self._lock = threading.Lock()
        self.batch = self._calls * self._size
        self.input_hw = tuple(v if isinstance(v, int) else DYNAMIC_SIZE for v in (height, width))
        self._grid, self._stride = _grid(self.input_hw[0], self.input_hw[1])
        self.classes = self._class_names()
        self._network: CudaNetwork | None = None
        if gpu is not None:
            self._network = self._on_gpu(gpu, data, engines, captured=captured)
            self.batch = BUCKETS[-1]

    def _on_gpu(
        self, gpu: Gpu, data: bytes, engines: Path | None, *, captured: bool
    ) -> CudaNetwork:
        """Open it on a device; afterwards the CPU's session is not needed any more."""
        self._session = None
        if engines is not None:
            from sam2_core.backends.tensorrt_backend import tensorrt_network

            return tensorrt_network(self.file.path, data, gpu, engines)
        shapes = {
            self._input[0].name: (3, *self.input_hw),
            self._output[0].name: (len(self._grid), 5 + len(self.classes)),
        }
        return CudaNetwork(self.file.path, data, gpu, shapes, captured=captured)

    def _not_yolox(self, what: str) -> AutolabelError:
        return AutolabelError(
            f"{self.file.path} is not a detector of YOLOX's form (images in, rows of x, y, w, h, "
            f"objectness, class scores out): {what}"
        )

    def _class_names(self) -> tuple[str, ...]:
        """Names from the metadata key `classes` (a JSON list), else COCO's."""
        columns = self._output[0].shape[-1]
        metadata = self._session.get_modelmeta().custom_metadata_map
        if "classes" in metadata:
            try:
                names = tuple(str(name) for name in json.loads(metadata["classes"]))
            except (ValueError, TypeError) as error:
                raise self._not_yolox("its metadata `classes` is not a JSON list") from error
        else:
            names = COCO_CLASSES
        if isinstance(columns, int) and columns != 5 + len(names):
            raise self._not_yolox(f"{columns} columns for {len(names)} classes")
        return names

    def warm_up(self) -> None:  # noqa: D102 - as of every detector
        if self._network is not None:
            self._network.warm_up()

    def letterbox(self, image: ImageArray) -> Letterboxed:
        """Scale an image, uint8 (h, w, 3) RGB, into the top left of the input.

        On a GPU the image is put where the device fetches and scales it.
        """
        height, width = self.input_hw
        size_hw = (image.shape[0], image.shape[1])
        scale = min(height / size_hw[0], width / size_hw[1])
        scaled_wh = (max(1, int(size_hw[1] * scale)), max(1, int(size_hw[0] * scale)))
        if self._network is not None:
            return Letterboxed(self._network.gpu.stage(image), scale, size_hw, scaled_wh)
        pixels = np.full((height, width, 3), PADDING_GREY, np.uint8)
        resized = cv2.resize(image, scaled_wh, interpolation=cv2.INTER_LINEAR)
        pixels[: scaled_wh[1], : scaled_wh[0]] = resized[:, :, ::-1]
        planes = pixels.transpose(2, 0, 1).astype(np.float32)
        return Letterboxed(planes, scale, size_hw, scaled_wh)

    def start(  # noqa: D102 - as of every detector
        self, images: Sequence[Letterboxed], classes: Sequence[str] = (), min_score: float = 0.3
    ) -> Callable[[], list[Boxes]]:
        wanted = self.class_mask(classes)
        rows: Callable[[], list[LikelyRows]] = partial(self._likely, images, min_score)
        if self._network is not None:
            frames = [image.pixels for image in images if isinstance(image.pixels, StagedFrame)]
            sizes = [image.scaled_wh for image in images]
            rows = self._network.start(frames, sizes, min_score)
        return lambda: [
            self._boxes(found, image, wanted, min_score)
            for found, image in zip(rows(), images, strict=True)
        ]

    def _likely(self, images: Sequence[Letterboxed], min_score: float) -> list[LikelyRows]:
        rows = self._run(images)
        if rows.shape[1] != len(self._grid) or rows.shape[2] != 5 + len(self.classes):
            raise self._not_yolox(f"output {rows.shape} for an input of {self.input_hw}")
        return [LikelyRows.likely(found, min_score) for found in rows]

    def _run(self, images: Sequence[Letterboxed]) -> FloatArray:
        planes = [np.asarray(image.pixels) for image in images]
        planes += [np.zeros_like(planes[0])] * (-len(planes) % self._size)
        calls = [np.stack(planes[at : at + self._size]) for at in range(0, len(planes), self._size)]
        session: Any = self._session
        call_each: Any = map
        if len(calls) > 1 and self._calls > 1:
            session, call_each = self._single_core(), self._pool.map
        rows = call_each(partial(self._rows, session), calls)
        return np.concatenate(list(rows))[: len(images)]

    def _rows(self, session: Any, batch: FloatArray) -> FloatArray:
        return run_session(session, [self._output[0].name], {self._input[0].name: batch})[0]

    def _single_core(self) -> Any:
        """Return a session that uses one core, for calls beside each other."""
        with self._lock:
            if self._single is None:
                self._single = open_session(self.file.path, 1, CPU, model=self.file.read())
        return self._single

    def _boxes(
        self, found: LikelyRows, image: Letterboxed, wanted: np.ndarray[Any, np.dtype[np.bool_]],
        min_score: float,
    ) -> Boxes:  # fmt: skip
        rows, grid, stride = found.values, self._grid[found.cells], self._stride[found.cells]
        scores = rows[:, 5:] * rows[:, 4:5] * wanted
        with np.errstate(over="ignore", invalid="ignore"):
            sizes = np.exp(rows[:, 2:4]) * stride
            corners = (rows[:, :2] + grid) * stride - sizes / 2
        return self.best(np.hstack([corners, sizes]), scores, image, min_score, image.scale)


def _grid(height: int, width: int) -> tuple[FloatArray, FloatArray]:
    """Cell corners (cells, 2) x, y in cells, and the stride of each (cells, 1)."""
    corners, strides = [], []
    for stride in STRIDES:
        y, x = np.mgrid[: height // stride, : width // stride]
        corners.append(np.stack([x.ravel(), y.ravel()], 1).astype(np.float32))
        strides.append(np.full((x.size, 1), stride, np.float32))
    return np.concatenate(corners), np.concatenate(strides)
