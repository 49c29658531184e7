"""Detectors of boxes: letterbox, grid decoding, class-aware suppression.

`tasks/boxes/forms.py` tells the forms apart. YOLOX's: input (B, 3, H, W) float32 BGR 0..255, the
image at the top left and 114 around it; output (B, cells, 5 + classes): centre offsets in cells,
log sizes in cells, objectness, class scores, over grids of strides 8, 16 and 32 (YOLOX: Exceeding
YOLO Series in 2021, Ge et al., and its ONNX demo). Others have centre and size in pixels there.
"""

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
from tasks.boxes.detector_files import CPU, DetectorFile
from tasks.boxes.forms import STRIDES, read_form

PADDING_GREY = 114
# Two boxes of one class that overlap by more are one object, of any class those that are one box: a
# pick-up is no car and truck.
SAME_CLASS_IOU, SAME_BOX_IOU = 0.45, 0.85


@dataclass(frozen=True, eq=False)
class Letterboxed:
    """An image as the network takes it."""

    pixels: FloatArray | StagedFrame  # (3, H, W) BGR; or the frame, which the device scales
    scale: float | FloatArray  # network pixels per image pixel, of all four sides or of each
    size_hw: tuple[int, int]  # of the original
    scaled_wh: tuple[int, int]  # of the image in the input
    left_top: tuple[int, int] = (0, 0)  # where the image is in the input

    def __post_init__(self) -> None:
        if isinstance(self.pixels, np.ndarray):
            freeze_arrays(self, pixels="float32 (3, H, W)")


class AnyDetector:
    """A loaded detector; any thread may use it.

    Attributes:
        file: which one.
        classes: names of what it finds.
        batch: how many images it takes at once.
        one_each: it leaves one box to an object by itself, if of one class.

    """

    file: DetectorFile
    classes: tuple[str, ...]
    batch = 1
    one_each = False

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
                f"it knows {', '.join(filter(None, self.classes))}"
            )
        wanted = classes or [name for name in self.classes if name]
        return np.array([name in wanted for name in self.classes])

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

        Of boxes that overlap, the best one stays: of one class from SAME_CLASS_IOU on (not where
        the graph leaves one box to an object by itself), of any class from SAME_BOX_IOU on.

        Args:
            images: from `letterbox`.
            classes: names to keep; all when empty.
            min_score: least score.

        """
        return self.start(images, classes, min_score)()

    def best(
        self, xywh: FloatArray, scores: FloatArray, image: Letterboxed, min_score: float
    ) -> Boxes:
        """Choose boxes.

        Args:
            xywh: left, top, width, height in pixels of the input, float32 (N, 4).
            scores: (N, classes), 0 for classes that are not wanted.
            image: that they were found in.
            min_score: least score.

        """
        classes = scores.argmax(1)
        score = scores[np.arange(len(classes)), classes]
        keep = (
            (score >= min_score)
            & (score > 0)
            & np.isfinite(xywh).all(1)
            & (xywh[:, 2:] >= 0).all(1)
        )
        xywh, score, classes = xywh[keep], score[keep], classes[keep]
        chosen: Any = np.zeros(0, np.int64)
        if len(score):
            nms: Any = cv2.dnn  # OpenCV's stubs know lists only
            iou = 1.0 if self.one_each else SAME_CLASS_IOU
            of_class = nms.NMSBoxesBatched(xywh, score, classes, min_score, iou)
            of_class = np.asarray(of_class, np.int64)
            kept = nms.NMSBoxes(xywh[of_class], score[of_class], min_score, SAME_BOX_IOU)
            chosen = of_class[np.asarray(kept, np.int64)]
            chosen = chosen[np.argsort(-score[chosen], kind="stable")]
        corners = np.hstack([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]])[chosen]
        xyxy = (corners - np.array(image.left_top * 2, np.float32)) / image.scale
        limit = np.array([image.size_hw[1], image.size_hw[0]] * 2, np.float32)
        names = tuple(self.classes[index] for index in classes[chosen])
        return Boxes(np.clip(xyxy, 0, limit), score[chosen], names, None, self.file.stamp)


class Detector(AnyDetector):
    """A loaded detector of a known form.

    Args:
        file: which one.
        gpu: the device that runs it, on which it scales frames too; None: the CPU.
        captured: on a GPU, as CUDA graphs: only where nothing but this and ONNX Runtime's mask
            model uses the device.
        engines: on a GPU, TensorRT's cache of engines, where that is to run it.

    Raises:
        AutolabelError: the file cannot be read or is of no known form.

    """

    def __init__(
        self, file: DetectorFile, gpu: Gpu | None = None, *, captured: bool = True,
        engines: Path | None = None,
    ) -> None:  # fmt: skip
        self.file = file
        self._form = form = read_form(file.path, file.read(), file.names)
        # Images of a call; each core runs calls of its own, as the mask model does.
        self._size, cores = form.batch or 1, usable_cores()
        self._calls = cores if cores <= MOST_CALLS else 1
        self._pool = ThreadPoolExecutor(self._calls, "detector")
        self._sessions: dict[int | None, Any] = {}
        self._lock = threading.Lock()
        self.batch = self._calls * self._size
        self.classes, self.one_each = form.classes, form.one_each
        self._grid, self._stride = _grid(*form.input_hw)
        self._network: CudaNetwork | None = None
        if gpu is not None:
            self._network = self._on_gpu(gpu, engines, captured=captured)
            self.batch = self._network.buckets[-1]

    def _on_gpu(self, gpu: Gpu, engines: Path | None, *, captured: bool) -> CudaNetwork:
        form, data = self._form, self._form.graph
        buckets = (form.batch,) if form.batch else BUCKETS
        if form.in_cells:  # others are not known to bear it
            from sam2_core.backends.onnx_batches import in_batches

            data, buckets = in_batches(data), BUCKETS
        if engines is not None:
            from sam2_core.backends.tensorrt_backend import tensorrt_network

            return tensorrt_network(self.file.path, data, gpu, engines, buckets)
        shapes = dict(zip(form.ends, ((3, *form.input_hw), form.row_shape), strict=True))
        captured = captured and form.in_cells
        return CudaNetwork(self.file.path, data, gpu, shapes, buckets=buckets, captured=captured)

    def warm_up(self) -> None:  # noqa: D102 - as of every detector
        if self._network is not None:
            self._network.warm_up()

    def letterbox(self, image: ImageArray) -> Letterboxed:
        """Scale an image, uint8 (h, w, 3) RGB, into the input.

        On a GPU the image is put where the device fetches and scales it.
        """
        size_hw, (height, width) = (image.shape[0], image.shape[1]), self._form.input_hw
        scale: float | FloatArray = min(height / size_hw[0], width / size_hw[1])
        whole = int if self._form.placing == "corner" else round
        scaled_wh = (max(1, whole(size_hw[1] * scale)), max(1, whole(size_hw[0] * scale)))
        share = 0.5 if self._form.placing == "middle" else 0.0
        left = round((width - scaled_wh[0]) * share - 0.1)
        top = round((height - scaled_wh[1]) * share - 0.1)
        if self._form.placing == "stretched":
            scaled_wh = (width, height)
            scale = np.array([width / size_hw[1], height / size_hw[0]] * 2, np.float32)
        if self._network is not None:
            staged = self._network.gpu.stage(image)
            return Letterboxed(staged, scale, size_hw, scaled_wh, (left, top))
        pixels = np.full((height, width, 3), PADDING_GREY, np.uint8)
        resized = cv2.resize(image, scaled_wh, interpolation=cv2.INTER_LINEAR)
        pixels[top : top + scaled_wh[1], left : left + scaled_wh[0]] = resized[:, :, ::-1]
        planes = pixels.transpose(2, 0, 1).astype(np.float32)
        return Letterboxed(planes, scale, size_hw, scaled_wh, (left, top))

    def start(  # noqa: D102 - as of every detector
        self, images: Sequence[Letterboxed], classes: Sequence[str] = (), min_score: float = 0.3
    ) -> Callable[[], list[Boxes]]:
        wanted = self.class_mask(classes)
        rows: Callable[[], list[LikelyRows]] = partial(self._likely, images, min_score)
        if self._network is not None:
            frames = [image.pixels for image in images if isinstance(image.pixels, StagedFrame)]
            places = [(*image.left_top, *image.scaled_wh) for image in images]
            rows = self._network.start(frames, places, min_score)
        return lambda: [
            self._boxes(found, image, wanted, min_score)
            for found, image in zip(rows(), images, strict=True)
        ]

    def _likely(self, images: Sequence[Letterboxed], min_score: float) -> list[LikelyRows]:
        rows = self._run(images)
        if rows.shape[1:] != self._form.row_shape:
            raise AutolabelError(
                f"the detector {self.file.path} gives {rows.shape[1:]} for one picture and "
                f"{self._form.row_shape} for another: its answers need one shape"
            )
        return [LikelyRows.likely(found, min_score) for found in rows]

    def _run(self, images: Sequence[Letterboxed]) -> FloatArray:
        planes = [np.asarray(image.pixels) for image in images]
        planes += [np.zeros_like(planes[0])] * (-len(planes) % self._size)
        calls = [np.stack(planes[at : at + self._size]) for at in range(0, len(planes), self._size)]
        beside = len(calls) > 1 and self._calls > 1
        call_each: Any = self._pool.map if beside else map
        rows = call_each(partial(self._rows, self._session(1 if beside else None)), calls)
        return np.concatenate(list(rows))[: len(images)]

    def _rows(self, session: Any, batch: FloatArray) -> FloatArray:
        picture, rows = self._form.ends
        return run_session(session, [rows], {picture: batch})[0]

    def _session(self, cores: int | None) -> Any:
        """Return a session that uses so many cores: one, for calls beside each other; None: all."""
        with self._lock:
            if cores not in self._sessions:
                self._sessions[cores] = open_session(
                    self.file.path, cores, CPU, model=self._form.graph
                )
            return self._sessions[cores]

    def _boxes(
        self, found: LikelyRows, image: Letterboxed, wanted: np.ndarray[Any, np.dtype[np.bool_]],
        min_score: float,
    ) -> Boxes:  # fmt: skip
        rows = found.values
        scores = rows[:, 5:] * rows[:, 4:5] * wanted
        centres, sizes = rows[:, :2], rows[:, 2:4]
        with np.errstate(over="ignore", invalid="ignore"):
            if self._form.in_cells:
                stride = self._stride[found.cells]
                sizes = np.exp(sizes) * stride
                centres = (centres + self._grid[found.cells]) * stride
            corners = centres - sizes / 2
        return self.best(np.hstack([corners, sizes]), scores, image, min_score)


def _grid(height: int, width: int) -> tuple[FloatArray, FloatArray]:
    """Cell corners (cells, 2) x, y in cells, and the stride of each (cells, 1)."""
    corners, strides = [], []
    for stride in STRIDES:
        y, x = np.mgrid[: height // stride, : width // stride]
        corners.append(np.stack([x.ravel(), y.ravel()], 1).astype(np.float32))
        strides.append(np.full((x.size, 1), stride, np.float32))
    return np.concatenate(corners), np.concatenate(strides)
