"""Open-vocabulary detectors: an ONNX graph that takes texts beside the picture.

Picture: the graph's only float input of four dimensions, (1, 3, H, W) RGB. If it is called `images`
its values are 0..1 (YOLO-World), else they are normalised by `preprocessor_config.json` beside the
graph (without one, ImageNet's mean and deviation). Fixed H and W: the picture is stretched to them,
or, where the configuration says `do_pad`, put at the top left of the input. Otherwise it is scaled
to the configured sides (shortest and longest edge; without them 800 and 1333). `pixel_mask`, if
there is one, is 1 where the picture is. Texts: `tasks.boxes.prompt_text`.

Outputs: `pred_boxes` (1, Q, 4), centre, width and height in fractions of the input, and `logits`
(1, Q, C or T) before the sigmoid; or `boxes` (1, Q, 4), corners in pixels of the input, and
`scores` (1, Q, C). It runs on the CPU, one picture at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sam2_core.backends.onnxruntime_backend import open_session, run_session
from sam2_core.types import AutolabelError, Boxes, FloatArray, ImageArray
from tasks.boxes.detector_files import DetectorFile
from tasks.boxes.prompt_text import files_beside, takes_text, text_inputs
from tasks.boxes.tiles import suppressed
from tasks.boxes.yolox import CPU, Letterboxed

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_EDGES = (800, 1333)
_IN_FRACTIONS, _IN_PIXELS = {"pred_boxes", "logits"}, {"boxes", "scores"}


class PromptedDetector:
    """A loaded open-vocabulary detector and the texts that it looks for; any thread may use it.

    Args:
        file: which one, with prompts.

    Raises:
        AutolabelError: the file cannot be read, is not of this form, or lacks what its texts need.

    """

    batch = 1

    def __init__(self, file: DetectorFile) -> None:
        self.file, self.classes = file, file.prompts
        data = file.read()
        self._session = open_session(file.path, None, CPU, model=data)
        self._inputs = {one.name: one.shape for one in self._session.get_inputs()}
        pictures = [name for name, shape in self._inputs.items() if len(shape) == 4]
        outputs = {one.name for one in self._session.get_outputs()}
        if not takes_text(self._inputs):
            raise AutolabelError(
                f"{file.path} takes no text (its inputs are {', '.join(self._inputs)}): "
                "leave out the prompt, and use --classes"
            )
        self._fractions = outputs >= _IN_FRACTIONS
        if len(pictures) != 1 or not (self._fractions or outputs >= _IN_PIXELS):
            raise AutolabelError(
                f"{file.path} is no open-vocabulary detector of a known form: of pictures it takes "
                f"{', '.join(pictures) or 'none'}, and it gives {', '.join(sorted(outputs))}; "
                "needed are one (1, 3, H, W), and pred_boxes and logits, or boxes and scores"
            )
        self._picture = pictures[0]
        self._text = text_inputs(file.path, self._inputs, file.prompts)
        self._config = _configuration(file.path)
        file.read()  # what lies beside it is still what the stamp says

    def warm_up(self) -> None:
        """Do nothing: nothing is captured on a CPU."""

    def class_mask(self, classes: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which texts are wanted, bool (texts,); none named means all.

        Raises:
            AutolabelError: one that the prompt does not name.

        """
        unknown = [name for name in classes if name not in self.classes]
        if unknown:
            raise AutolabelError(
                f"--classes {','.join(unknown)}: the prompt names {', '.join(self.classes)}"
            )
        return np.array([not classes or name in classes for name in self.classes])

    def letterbox(self, image: ImageArray) -> Letterboxed:
        """Scale an image, uint8 (h, w, 3) RGB, to the input; float32 (3, H, W)."""
        import cv2

        size_hw = (image.shape[0], image.shape[1])
        input_hw, scaled_wh = self._sizes(size_hw)
        resized = cv2.resize(image, scaled_wh, interpolation=cv2.INTER_LINEAR)
        mean, deviation = _MEAN, _DEVIATION
        if self._picture == "images":
            mean, deviation = (0.0,) * 3, (1.0,) * 3
        mean = self._config.get("image_mean", mean)
        deviation = self._config.get("image_std", deviation)
        values = (resized.astype(np.float32) / 255 - mean) / deviation
        planes = np.zeros((3, *input_hw), np.float32)
        planes[:, : scaled_wh[1], : scaled_wh[0]] = values.transpose(2, 0, 1)
        return Letterboxed(planes, scaled_wh[0] / size_hw[1], size_hw, scaled_wh)

    def _sizes(self, size_hw: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Height and width of the input, width and height of the picture in it."""
        height, width = self._inputs[self._picture][2:]
        if isinstance(height, int) and isinstance(width, int):
            if not self._config.get("do_pad"):
                return (height, width), (width, height)
            scale = min(height / size_hw[0], width / size_hw[1])
            return (height, width), (round(size_hw[1] * scale), round(size_hw[0] * scale))
        sides = self._config.get("size") or {}
        shortest = sides.get("shortest_edge", _EDGES[0])
        longest = sides.get("longest_edge", _EDGES[1])
        scale = min(shortest / min(size_hw), longest / max(size_hw))
        scaled_hw = (round(size_hw[0] * scale), round(size_hw[1] * scale))
        return scaled_hw, (scaled_hw[1], scaled_hw[0])

    def detect(
        self, images: Sequence[Letterboxed], classes: Sequence[str] = (), min_score: float = 0.3,
        max_overlap_iou: float = 0.45,
    ) -> list[Boxes]:  # fmt: skip
        """Boxes of images from `letterbox`, best first, inside the image."""
        return self.start(images, classes, min_score, max_overlap_iou)()

    def start(
        self, images: Sequence[Letterboxed], classes: Sequence[str] = (), min_score: float = 0.3,
        max_overlap_iou: float = 0.45,
    ) -> Callable[[], list[Boxes]]:  # fmt: skip
        """As `Detector.start`; nothing is queued."""
        wanted, limits = self.class_mask(classes), (min_score, max_overlap_iou)
        return lambda: [self._boxes(image, wanted, limits) for image in images]

    def _boxes(
        self,
        image: Letterboxed,
        wanted: np.ndarray[Any, np.dtype[np.bool_]],
        limits: tuple[float, float],
    ) -> Boxes:
        planes = np.asarray(image.pixels)
        corners, scores = self._found(planes, image.scaled_wh)
        scores = scores * wanted
        best = scores.argmax(1)
        score = scores[np.arange(len(best)), best].astype(np.float32)
        keep = (score >= limits[0]) & (score > 0) & np.isfinite(corners).all(1)
        corners, score, best = corners[keep], score[keep], best[keep]
        # Of the input's pixels to the picture's: a stretched picture has a scale for each side.
        to_px = np.array(image.size_hw[::-1], np.float32) / np.array(image.scaled_wh, np.float32)
        xyxy = corners * np.tile(to_px, 2)
        xywh = np.hstack([xyxy[:, :2], xyxy[:, 2:] - xyxy[:, :2]])
        chosen = suppressed(xywh, score, best, limits)
        limit = np.array([*image.size_hw[::-1]] * 2, np.float32)
        names = tuple(self.classes[index] for index in best[chosen])
        boxes = np.clip(xyxy[chosen], 0, limit)
        return Boxes(boxes, score[chosen], names, None, self.file.stamp)

    def _found(
        self, planes: FloatArray, scaled_wh: tuple[int, int]
    ) -> tuple[FloatArray, FloatArray]:
        """Corners (Q, 4) in pixels of the input and scores (Q, texts)."""
        inputs: dict[str, Any] = {self._picture: planes[None], **self._text.arrays}
        height, width = planes.shape[1:]
        if "pixel_mask" in self._inputs:
            mask = np.zeros((1, height, width), np.int64)
            mask[:, : scaled_wh[1], : scaled_wh[0]] = 1
            inputs["pixel_mask"] = mask
        names = ["pred_boxes", "logits"] if self._fractions else ["boxes", "scores"]
        boxes, scores = (np.asarray(one[0]) for one in self._run(names, inputs))
        if self._fractions:
            scores = 1 / (1 + np.exp(-np.clip(scores.astype(np.float64), -50, 50)))
            centres, halves = boxes[:, :2], boxes[:, 2:] / 2
            boxes = np.hstack([centres - halves, centres + halves]) * ([width, height] * 2)
        scores = self._text.scores(scores)
        if scores.shape != (len(boxes), len(self.classes)):
            raise AutolabelError(
                f"{self.file.path}: scores {scores.shape} for {len(boxes)} boxes and "
                f"{len(self.classes)} texts"
            )
        return boxes.astype(np.float32), scores.astype(np.float32)

    def _run(self, names: list[str], inputs: dict[str, Any]) -> list[Any]:
        lacking = set(self._inputs) - set(inputs)
        if lacking:
            raise AutolabelError(f"{self.file.path}: unknown inputs {', '.join(sorted(lacking))}")
        return run_session(self._session, names, inputs)


def _configuration(model: Path) -> dict[str, Any]:
    for path in files_beside(model):
        if path.name == "preprocessor_config.json":
            try:
                return dict(json.loads(path.read_bytes()))
            except (ValueError, TypeError) as error:
                raise AutolabelError(f"cannot read {path}: {error}") from error
    return {}
