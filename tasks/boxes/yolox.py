"""Detectors of YOLOX's ONNX form: letterbox, grid decoding, class-aware suppression.

Input (B, 3, H, W) float32 BGR 0..255, the image at the top left and 114 around it; output
(B, cells, 5 + classes): centre offsets in cells, log sizes in cells, objectness, class scores, over
grids of strides 8, 16 and 32 (YOLOX: Exceeding YOLO Series in 2021, Ge et al., and its ONNX demo).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sam2_core.arrays import freeze_arrays
from sam2_core.backends.gpu import Gpu
from sam2_core.backends.onnxruntime_backend import MOST_CALLS, open_session, run_session
from sam2_core.backends.onnxruntime_network import BUCKETS, CudaNetwork, Rows
from sam2_core.machine import usable_cores
from sam2_core.preprocess import StagedFrame
from sam2_core.types import AutolabelError, Boxes, FloatArray, ImageArray
from tasks.boxes.detector_files import DetectorFile, ReplacedError
from tasks.boxes.prompt_text import takes_text
from tasks.boxes.tiles import suppressed

CPU, CUDA = ("CPUExecutionProvider",), "onnxruntime-cuda"
STRIDES = (8, 16, 32)
PADDING_GREY = 114
DYNAMIC_BATCH = 8
DYNAMIC_SIZE = 640
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


class Detector:
    """A loaded detector; any thread may use it.

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
        try:
            data = self.file.read()
            self._session = open_session(file.path, None, CPU, model=data)
        except ReplacedError:
            raise
        except AutolabelError as error:
            reason = f"cannot read the detector {file.path}: {error.__cause__}"
            raise AutolabelError(reason) from error
        self._input, self._output = self._session.get_inputs(), self._session.get_outputs()
        if len(self._input) != 1 or len(self._output) != 1 or len(self._input[0].shape) != 4:
            what = f"{len(self._input)} inputs, {len(self._output)} outputs"
            if takes_text({one.name: one.shape for one in self._input}):
                what += "; it takes text: say what to look for with --prompt 'car, traffic cone'"
            raise self._not_yolox(what)
        batch, _, height, width = self._input[0].shape
        self._static_batch = isinstance(batch, int)
        cores = usable_cores()
        # A network of one image: each core runs images of its own, as the mask model does.
        self._calls = cores if batch == 1 and cores <= MOST_CALLS else 1
        self._pool = ThreadPoolExecutor(self._calls, "detector")
        self._single: Any = None
        self._lock = threading.Lock()
        self.batch = self._calls * batch if isinstance(batch, int) else DYNAMIC_BATCH
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
        if engines is not None:
            from sam2_core.backends.tensorrt_network import tensorrt_network

            # The placeholders that tests run engines on know no halves.
            network = tensorrt_network(
                self.file.path, data, gpu, engines, halves=gpu.where == "cuda"
            )
            self._session = None
            return network
        shapes = {
            self._input[0].name: (3, *self.input_hw),
            self._output[0].name: (len(self._grid), 5 + len(self.classes)),
        }
        network = CudaNetwork(self.file.path, data, gpu, shapes, captured=captured)
        self._session = None
        return network

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

    def warm_up(self) -> None:
        """Let a device do once what it will do for every frame; nothing on a CPU."""
        if self._network is not None:
            self._network.warm_up()

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
        """Scale an image, uint8 (h, w, 3) RGB, into the top left of the input.

        On a GPU the image is put where the device fetches and scales it.
        """
        import cv2

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

    def detect(
        self,
        images: Sequence[Letterboxed],
        classes: Sequence[str] = (),
        min_score: float = 0.3,
        max_overlap_iou: float = 0.45,
    ) -> list[Boxes]:
        """Boxes of up to `batch` images, best first, inside the image.

        Args:
            images: from `letterbox`.
            classes: names to keep; all when empty.
            min_score: least product of objectness and class score.
            max_overlap_iou: boxes of one class that overlap a better one by more are dropped;
                of any class, those that are the same box.

        """
        return self.start(images, classes, min_score, max_overlap_iou)()

    def start(
        self,
        images: Sequence[Letterboxed],
        classes: Sequence[str] = (),
        min_score: float = 0.3,
        max_overlap_iou: float = 0.45,
    ) -> Callable[[], list[Boxes]]:
        """Queue images on the device, as `detect`; returns a function that waits for the boxes.

        On a CPU nothing is queued: that function does it all.
        """
        wanted = self.class_mask(classes)
        limits = (min_score, max_overlap_iou)
        rows: Callable[[], list[Rows]] = partial(self._likely, images, min_score)
        if self._network is not None:
            frames = [one.pixels for one in images if isinstance(one.pixels, StagedFrame)]
            sizes = [one.scaled_wh for one in images]
            rows = self._network.start(frames, sizes, min_score)
        return lambda: [
            self._boxes(one, image, wanted, limits)
            for one, image in zip(rows(), images, strict=True)
        ]

    def _likely(self, images: Sequence[Letterboxed], min_score: float) -> list[Rows]:
        rows = self._run(images)
        if rows.shape[1] != len(self._grid) or rows.shape[2] != 5 + len(self.classes):
            raise self._not_yolox(f"output {rows.shape} for an input of {self.input_hw}")
        return [Rows.likely(one, min_score) for one in rows]

    def _run(self, images: Sequence[Letterboxed]) -> FloatArray:
        planes = [np.asarray(image.pixels) for image in images]
        if self._calls > 1:
            return self._run_each([one[None] for one in planes])
        batch = np.stack(planes)
        if self._static_batch and len(batch) < self.batch:
            padding = np.zeros((self.batch - len(batch), *batch.shape[1:]), np.float32)
            batch = np.concatenate([batch, padding])
        return self._rows(self._session, batch)[: len(planes)]

    def _rows(self, session: Any, batch: FloatArray) -> FloatArray:
        rows: FloatArray = run_session(
            session, [self._output[0].name], {self._input[0].name: batch}
        )[0]
        return rows

    def _run_each(self, images: Sequence[FloatArray]) -> FloatArray:
        """Run a network of one image: a single one on all cores, several on one core each."""
        if len(images) == 1:
            return self._rows(self._session, images[0])
        with self._lock:
            if self._single is None:
                self._single = open_session(self.file.path, 1, CPU, model=self.file.read())
        rows = self._pool.map(lambda image: self._rows(self._single, image), images)
        return np.concatenate(list(rows))

    def _boxes(
        self,
        found: Rows,
        image: Letterboxed,
        wanted: np.ndarray[Any, np.dtype[np.bool_]],
        limits: tuple[float, float],
    ) -> Boxes:
        rows, grid, stride = found.values, self._grid[found.cells], self._stride[found.cells]
        scores = rows[:, 5:] * rows[:, 4:5] * wanted
        best = scores.argmax(1)
        score = scores[np.arange(len(best)), best]
        with np.errstate(over="ignore"):
            sizes = np.exp(rows[:, 2:4]) * stride
        corners = (rows[:, :2] + grid) * stride - sizes / 2
        keep = (score >= limits[0]) & (score > 0) & np.isfinite(sizes).all(1)
        xywh, score, best = np.hstack([corners, sizes])[keep], score[keep], best[keep]
        chosen = suppressed(xywh, score, best, limits)
        xyxy = np.hstack([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]])[chosen] / image.scale
        limit = np.array([image.size_hw[1], image.size_hw[0]] * 2, np.float32)
        names = tuple(self.classes[index] for index in best[chosen])
        return Boxes(np.clip(xyxy, 0, limit), score[chosen], names, None, self.file.stamp)


def _grid(height: int, width: int) -> tuple[FloatArray, FloatArray]:
    """Cell corners (cells, 2) x, y in cells, and the stride of each (cells, 1)."""
    corners, strides = [], []
    for stride in STRIDES:
        y, x = np.mgrid[: height // stride, : width // stride]
        corners.append(np.stack([x.ravel(), y.ravel()], 1).astype(np.float32))
        strides.append(np.full((x.size, 1), stride, np.float32))
    return np.concatenate(corners), np.concatenate(strides)
