"""Open-vocabulary detectors: an ONNX graph that takes texts beside the picture.

Picture: the graph's only float input of four dimensions, (1, 3, H, W) RGB. If it is called `images`
its values are 0..1 (YOLO-World), else they are normalised by `preprocessor_config.json` beside the
graph (without one, ImageNet's mean and deviation). Fixed H and W: the picture is stretched to them,
or, where the configuration says `do_pad`, put at the top left of the input. Otherwise it is scaled
to the configured sides (shortest and longest edge; without them 800 and 1333). `pixel_mask`, if
there is one, is 1 where the picture is.

Texts have three forms, told apart by the names of the graph's inputs:

- embeddings: `text_embeddings` (or `txt_feats`) float32 (1, C, D) or (C, D), a row for each text,
  from `MODEL.embeddings.npz` beside MODEL.onnx, where each text is the name of its vector.
- phrases (OWL-ViT): `input_ids` and `attention_mask` int64 (C, T), a row for each text.
- caption (Grounding DINO): the same of one row (1, T), beside `token_type_ids`: all texts in one
  sentence, "car. traffic cone."; which tokens are of which text says which class was found.

Tokens are made by the `tokenizer.json` beside the graph; above it, where it lies in `onnx/`.

Outputs: `pred_boxes` (1, Q, 4), centre, width and height in fractions of the input, and `logits`
(1, Q, C or T) before the sigmoid; or `boxes` (1, Q, 4), corners in pixels of the input, and
`scores` (1, Q, C). It runs on the CPU, one picture at a time.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.backends.onnxruntime_backend import open_session, run_session
from sam2_core.machine import of_extra
from sam2_core.types import AutolabelError, Boxes, FloatArray, ImageArray
from tasks.boxes.detector_files import CPU, EMBEDDINGS, DetectorFile, files_beside, takes_text
from tasks.boxes.yolox import AnyDetector, Letterboxed

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_EDGES = (800, 1333)
Inputs = dict[str, npt.NDArray[Any]]
_IN_FRACTIONS, _IN_PIXELS = {"pred_boxes", "logits"}, {"boxes", "scores"}


class PromptedDetector(AnyDetector):
    """A loaded open-vocabulary detector and the texts that it looks for; any thread may use it.

    Args:
        file: which one, with prompts.

    Raises:
        AutolabelError: the file cannot be read, is not of this form, or lacks what its texts need.

    """

    def __init__(self, file: DetectorFile) -> None:
        self.file, self.classes = file, file.prompts
        data = file.read()
        self._session = open_session(file.path, None, CPU, model=data)
        self._inputs = {node.name: node.shape for node in self._session.get_inputs()}
        pictures = [name for name, shape in self._inputs.items() if len(shape) == 4]
        outputs = {node.name for node in self._session.get_outputs()}
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
        # A stretched picture has a scale for each side.
        scale = np.array(scaled_wh, np.float32) / np.array(size_hw[::-1], np.float32)
        return Letterboxed(planes, np.tile(scale, 2), size_hw, scaled_wh)

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

    def start(  # noqa: D102 - as of every detector; nothing is queued
        self, images: Sequence[Letterboxed], classes: Sequence[str] = (), min_score: float = 0.3
    ) -> Callable[[], list[Boxes]]:
        wanted = self.class_mask(classes)
        return lambda: [self._boxes(image, wanted, min_score) for image in images]

    def _boxes(
        self, image: Letterboxed, wanted: np.ndarray[Any, np.dtype[np.bool_]], min_score: float
    ) -> Boxes:
        xywh, scores = self._found(np.asarray(image.pixels), image.scaled_wh)
        return self.best(xywh, scores * wanted, image, min_score)

    def _found(
        self, planes: FloatArray, scaled_wh: tuple[int, int]
    ) -> tuple[FloatArray, FloatArray]:
        """Left, top, width, height (Q, 4) in pixels of the input, and scores (Q, texts)."""
        inputs: dict[str, Any] = {self._picture: planes[None], **self._text.arrays}
        height, width = planes.shape[1:]
        if "pixel_mask" in self._inputs:
            mask = np.zeros((1, height, width), np.int64)
            mask[:, : scaled_wh[1], : scaled_wh[0]] = 1
            inputs["pixel_mask"] = mask
        names = ["pred_boxes", "logits"] if self._fractions else ["boxes", "scores"]
        lacking = set(self._inputs) - set(inputs)
        if lacking:
            raise AutolabelError(f"{self.file.path}: unknown inputs {', '.join(sorted(lacking))}")
        found = run_session(self._session, names, inputs)
        boxes, scores = (np.asarray(batch[0]) for batch in found)
        if self._fractions:
            scores = 1 / (1 + np.exp(-np.clip(scores.astype(np.float64), -50, 50)))
            boxes = np.hstack([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, 2:]])
            boxes = boxes * ([width, height] * 2)
        else:
            boxes = np.hstack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]])
        scores = self._text.scores(scores)
        if scores.shape != (len(boxes), len(self.classes)):
            raise AutolabelError(
                f"{self.file.path}: scores {scores.shape} for {len(boxes)} boxes and "
                f"{len(self.classes)} texts"
            )
        return boxes.astype(np.float32), scores.astype(np.float32)


def _configuration(model: Path) -> dict[str, Any]:
    for path in files_beside(model):
        if path.name == "preprocessor_config.json":
            try:
                return dict(json.loads(path.read_bytes()))
            except (ValueError, TypeError) as error:
                raise AutolabelError(f"cannot read {path}: {error}") from error
    return {}


@dataclass(frozen=True)
class TextInputs:
    """What the graph gets of the texts, the same for every picture.

    Attributes:
        arrays: by name of the input.
        tokens_of: of a caption, the positions of each text's tokens; () where the graph's scores
            are by text.

    """

    arrays: Inputs
    tokens_of: tuple[tuple[int, ...], ...] = ()

    def scores(self, given: FloatArray) -> FloatArray:
        """Scores by text (Q, C) from those by token or text (Q, T): the best of its tokens."""
        if not self.tokens_of:
            return given
        return np.stack([given[:, list(tokens)].max(1) for tokens in self.tokens_of], 1)


def text_inputs(model: Path, inputs: Mapping[str, Any], prompts: Sequence[str]) -> TextInputs:
    """Make the graph's inputs of texts.

    Args:
        model: the graph's file.
        inputs: shapes of the graph's inputs, by name.
        prompts: texts.

    Raises:
        AutolabelError: a file beside the graph is missing, or it does not have a text.

    """
    for name in EMBEDDINGS:
        if name in inputs:
            vectors = _embeddings(model, prompts)
            return TextInputs({name: vectors[None] if len(inputs[name]) == 3 else vectors})
    tokenizer, width = _tokenizer(model), inputs["input_ids"][-1]
    length = width if isinstance(width, int) else None
    if "token_type_ids" in inputs:
        return _caption(tokenizer, inputs, prompts, length)
    rows = [tokenizer.encode(prompt) for prompt in prompts]
    return TextInputs(_padded([row.ids for row in rows], inputs, length))


def _embeddings(model: Path, prompts: Sequence[str]) -> FloatArray:
    path = model.with_suffix(".embeddings.npz")
    if not path.is_file():
        raise AutolabelError(
            f"{model} takes embeddings of texts: put them into {path}, each vector under its text"
        )
    try:
        with np.load(path) as stored:
            unknown = [prompt for prompt in prompts if prompt not in stored]
            if unknown:
                raise AutolabelError(
                    f"{path} has no embedding of {', '.join(unknown)}; it has those of "
                    f"{', '.join(stored)}"
                )
            return np.stack([stored[prompt].astype(np.float32).ravel() for prompt in prompts])
    except (OSError, ValueError) as error:
        raise AutolabelError(f"cannot read the embeddings {path}: {error}") from error


def _tokenizer(model: Path) -> Any:
    found = [path for path in files_beside(model) if path.name == "tokenizer.json"]
    if not found:
        raise AutolabelError(
            f"{model} takes tokens of texts: put its tokenizer.json into {model.parent}"
        )
    tokenizers = of_extra("tokenizers", f"the prompt of {model.name}", "prompts")
    try:
        return tokenizers.Tokenizer.from_file(str(found[0]))
    except Exception as error:  # the package raises nothing narrower
        raise AutolabelError(f"cannot read {found[0]}: {error}") from error


def _caption(
    tokenizer: Any, inputs: Mapping[str, Any], prompts: Sequence[str], length: int | None
) -> TextInputs:
    caption, spans = "", []
    for prompt in prompts:
        spans.append((len(caption), len(caption) + len(prompt)))
        caption += f"{prompt.lower()}. "
    encoded = tokenizer.encode(caption.strip())
    offsets = list(enumerate(encoded.offsets))
    tokens = tuple(
        tuple(position for position, (at, to) in offsets if to > at and start <= at < end)
        for start, end in spans
    )
    missing = [prompt for prompt, of in zip(prompts, tokens, strict=True) if not of]
    if missing:
        raise AutolabelError(f"the tokenizer has no token for {', '.join(missing)}")
    return TextInputs(_padded([encoded.ids], inputs, length), tokens)


def _padded(rows: list[list[int]], inputs: Mapping[str, Any], length: int | None) -> Inputs:
    longest = max(len(row) for row in rows)
    if length is not None and longest > length:
        raise AutolabelError(
            f"the prompt has {longest} tokens, and the detector takes {length}: use fewer words"
        )
    ids = np.zeros((len(rows), length or longest), np.int64)
    mask = np.zeros_like(ids)
    for row, numbers in enumerate(rows):
        ids[row, : len(numbers)], mask[row, : len(numbers)] = numbers, 1
    every = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {name: array for name, array in every.items() if name in inputs}
