"""Measure a model on images with ground truth: by boxes, jittered boxes or clicks.

The truth is a COCO instances json, a field of a FiftyOne dataset, the labels of a run, the examples
of the package, or a folder of indexed PNGs with a number for each object. Known layouts of those:

    <TRUTH>/<sequence>/00000.png         DAVIS, MOSE; pictures <images>/<sequence>/00000.jpg
                                         (DAVIS 2016: one object, grey and white)
    <TRUTH>/<city>/*_gtFine_instanceIds.png   Cityscapes; <images>/<city>/*_leftImg8bit.png
    <TRUTH>/*.png                        one folder; pictures of the same names

Certificates are made with more pictures from here, too: the examples, and frames of a user.
"""

import contextlib
import importlib.util
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt
from rlemasklib import RLEMask

from sam2_core.checkpoints import PYTORCH
from sam2_core.images import open_image
from sam2_core.mask_geometry import mask_of
from sam2_core.preprocess import StagedFrame
from sam2_core.prompts import PointPrompts, point_prompts
from sam2_core.segmenter import Segmenter
from sam2_core.trust.calibration import Answers, Calibration, CalibrationImage
from sam2_core.trust.certify import UncertifiedEngineError, engine_answers, ensure_certified, judged
from sam2_core.types import (
    POINT_NEGATIVE,
    POINT_PADDING,
    POINT_POSITIVE,
    AutolabelError,
    Boxes,
    ImageArray,
    Masks,
)
from tasks.boxes.yolox import AnyDetector
from tasks.dataset.coco_truth import (
    TRUTHS,
    Truth,
    TruthImage,
    areas_px,
    outline,
    read_truth,
    to_rle,
)
from tasks.evaluate.metrics import FailedImage, Scores
from tasks.evaluate.run_truth import SCHEME as RUN
from tasks.evaluate.run_truth import read_run_truth
from tasks.frames.identity import spellings
from tasks.masks.model import ModelChoice, choose_model, load_segmenter
from tasks.masks.segment import segment_frames
from tasks.pipeline.open_boxes import SCHEME, is_of_frames
from tasks.types import FrameFailure, FrameRef

T = TypeVar("T")

logger = logging.getLogger(__name__)
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
LEAST_SCORE = 0.3
MOST_BOXES = 24


class NoJudgeError(AutolabelError):
    """Nothing here can say what the masks of more pictures should be."""


def more_pictures(frames: Path | None, limit: int, scenes: int) -> list[CalibrationImage]:
    """Return rendered frames with their true boxes, and frames with those of the bundled detector.

    Args:
        frames: a folder of pictures, or None.
        limit: at most so many of them, spread over the folder.
        scenes: how many of the examples' frames, spread over them all.

    """
    truths = [(images, image) for images, truth in example_truths() for image in truth.images]
    found = []
    for images, image in _spread(truths, scenes):
        path = images / image.file_name
        boxes = image.boxes_xyxy_px[-MOST_BOXES:]
        name = f"{images.parent.name}/{image.file_name}"
        found.append(CalibrationImage.of(name, path, boxes))
    files = (
        sorted(path for path in frames.rglob("*") if path.suffix.lower() in SUFFIXES)
        if frames
        else []
    )
    return found + [
        picture for path in _spread(files, limit) if (picture := _frame(path)) is not None
    ]


def _spread(every: Sequence[T], count: int) -> list[T]:
    """Return at most `count` of them, from the first to the last."""
    rows = np.linspace(0, len(every) - 1, min(count, len(every))).round().astype(int)
    return [every[row] for row in np.unique(rows)]


def _frame(path: Path) -> CalibrationImage | None:
    """Return a frame with detected boxes, None where there are none."""
    from tasks.boxes.detectors import load_detector

    try:
        pixels = open_image(path)
    except (AutolabelError, OSError, ValueError) as error:
        logger.warning("%s is not among the pictures: %s", path, error)
        return None
    detector = load_detector("compact")
    boxes = detector.detect([detector.letterbox(pixels)], (), LEAST_SCORE)[0]
    sides = boxes.xyxy_px[:, 2:] - boxes.xyxy_px[:, :2]
    chosen = boxes.xyxy_px[(sides > 2).all(1)][:MOST_BOXES]
    return CalibrationImage.of(path.name, path, chosen) if len(chosen) else None


def answers_to(
    choice: ModelChoice,
    segmenter: Segmenter,
    bundled: Calibration,
    recorded: Answers,
    more: Sequence[CalibrationImage],
) -> Answers:
    """Return the reference's answers to the bundled pictures and to more.

    PyTorch judges where it is. Else the float32 graphs on the CPU do, of the same checkpoint and
    certified by PyTorch's recorded answers; they are no judge of themselves.

    Raises:
        NoJudgeError: there is neither.

    """
    whole = Calibration((*bundled.images, *more))
    try:
        answers = judged(choice.source, segmenter, Calibration(tuple(more)))
    except UncertifiedEngineError:
        return _by_graphs(choice, recorded, more, whole)
    return replace(answers, calibration=whole.digest, images=(*recorded.images, *answers.images))


def _by_graphs(
    choice: ModelChoice, recorded: Answers, more: Sequence[CalibrationImage], whole: Calibration
) -> Answers:
    own = (choice.backend, choice.precision)
    if own == ("onnxruntime-cpu", "fp32") or importlib.util.find_spec("torch") is not None:
        raise NoJudgeError(
            "scenes and frames of your own need a judge, PyTorch with the checkpoint, which is not "
            f"here (for PyTorch: {PYTORCH}); --quick certifies by PyTorch's recorded answers to "
            "the bundled pictures"
        )
    judge = choose_model(choice.source, "onnxruntime-cpu", "fp32", close_ups=recorded.close_ups)
    with load_segmenter(judge) as segmenter:
        proof = ensure_certified(segmenter, judge.source)
        images, _ = engine_answers(segmenter, more)
    return replace(
        recorded, calibration=whole.digest, images=(*recorded.images, *images),
        made_by=f"{recorded.made_by}; scenes and frames: {proof.title}, certified by it",
    )  # fmt: skip


IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
# Marks pixels that count neither way; in a grey picture of nothing but 0 and 255 it is the object,
# as in DAVIS 2016.
VOID = 255
_CITYSCAPES = "_gtFine_instanceIds.png"
# Cityscapes' classes that have instances; ids are class * 1000 + number, smaller ones are groups.
CITYSCAPES_CLASSES = {
    24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 29: "caravan", 30: "trailer",
    31: "train", 32: "motorcycle", 33: "bicycle",
}  # fmt: skip
OBJECT = "object"
# A folder for each drive: `images/`, where the truth is known `truth.json`, and the licence of
# frames that others made. The lab writes them: `lab/examples.py`.
EXAMPLES = Path(__file__).parent / "examples"


def open_truth(
    given: str, images: Path | None, *, first_frames: bool = False, unseen: bool = False
) -> Truth:
    """Read ground truth.

    Args:
        given: a COCO instances json, a folder of indexed PNGs, `dataset:NAME[.FIELD]`, or
            `run:OUT[#RUN_KEY]`.
        images: where the pictures lie; not needed for a dataset or a run.
        unseen: the pictures are not read, so a COCO json does without `images`.
        first_frames: only the first frame of each sequence.

    Raises:
        AutolabelError: there is no such truth, or it cannot be read.

    """
    if given.startswith(SCHEME):
        whole = given.removeprefix(SCHEME)
        # At its last dot, as for boxes: names of datasets may have dots.
        name, _, field = whole.rpartition(".") if "." in whole else (whole, "", "")
        truth = _of_dataset(name, field)
        return first_of_each(truth) if first_frames else truth
    if given.startswith(RUN):
        truth = read_run_truth(given.removeprefix(RUN), pictures=not unseen)
        return first_of_each(truth) if first_frames else truth
    if "://" in given:
        raise AutolabelError(f"{given}: the truth is read from this machine; fetch it first")
    if images is None and (not unseen or Path(given).is_dir()):
        raise AutolabelError(
            f"{given}: give the folder of the truth's pictures with --images; the truth in a "
            f"FiftyOne dataset is {SCHEME}NAME.FIELD"
        )
    if images is not None and Path(given).is_dir():
        return load_png_truth(Path(given), images, first_frames=first_frames)
    if first_frames:
        raise AutolabelError("--first-frames: a COCO json says of no picture which sequence it is")
    return read_truth(given)


def first_of_each(truth: Truth) -> Truth:
    """Keep the first frame of each sequence; pictures of no sequence stay."""
    seen: set[str] = set()
    kept = []
    for image in sorted(truth.images, key=lambda other: other.file_name):
        if not image.sequence or image.sequence not in seen:
            kept.append(image)
        seen.add(image.sequence)
    return Truth(tuple(kept), truth.categories)


def _of_dataset(name: str, field: str) -> Truth:
    from tasks.dataset.layout import sample_collection
    from tasks.dataset.schema import TRUTH_FIELD, open_dataset

    dataset = open_dataset(name, ours=False)
    field = field or TRUTH_FIELD
    is_of_frames(dataset, field, f"{SCHEME}{name}")  # says which fields there are
    kept = (field, "filepath", "metadata", "sequence_id", "camera", "frame_uri")
    wanted = dict.fromkeys(kept, 1)
    samples = sample_collection(dataset)
    masks = [{f"{field}.detections.{stored}": {"$ne": None}} for stored in ("mask", "mask_path")]
    boxes_alone = samples.find_one({"$or": masks}) is None
    read = (
        _of_sample(number, sample, field, boxes_alone=boxes_alone)
        for number, sample in enumerate(samples.find({}, wanted))
    )
    images = [image for image in read if image is not None]
    if not any(len(image) for image in images):
        raise AutolabelError(f"no sample of {name} has labels in its field {field}")
    names = dict.fromkeys(label for image in images for label in image.labels)
    return Truth(tuple(images), tuple(names))


def _of_sample(
    number: int, sample: dict[str, Any], field: str, *, boxes_alone: bool
) -> TruthImage | None:
    from tasks.dataset.documents import to_values

    if sample.get(field) is None:
        return None  # not looked at; an empty field says that nothing is there
    detections = sample[field].get("detections") or []
    size_hw = _size_of(sample)
    rows = [to_values(detection, size_hw) for detection in detections]
    rles = [str(row["rle"]).encode("ascii") for row in rows]
    of_boxes: dict[str, Any] = {}
    if boxes_alone:
        relative = np.array([detection["bounding_box"] for detection in detections])
        xywh_px = relative.reshape(-1, 4) * (size_hw[::-1] * 2)
        try:
            rles = [to_rle(outline(box, size_hw), size_hw) for box in xywh_px.tolist()]
        except ValueError as error:
            return TruthImage.of_masks(number, sample["filepath"], size_hw, unreadable=str(error))
        x, y, width, height = xywh_px.astype(np.float32).T
        of_boxes = {
            "boxes_xyxy_px": np.stack([x, y, x + width, y + height], 1), "boxes_alone": True,
            "area_px": np.rint(width * height).astype(np.int64),
        }  # fmt: skip
    kept = np.flatnonzero(areas_px(rles, size_hw)).tolist()
    sequence = "/".join(filter(None, (sample.get("sequence_id"), sample.get("camera"))))
    for i in kept:
        if not str(rows[i]["label"]).strip():
            why = f"label {rows[i].get('id')} has no class"
            return TruthImage.of_masks(number, sample["filepath"], size_hw, unreadable=why)
    ids = [detections[i].get("index") for i in kept]
    known = bool(ids) and all(isinstance(number, int) for number in ids)
    return TruthImage.of_masks(
        number, sample["filepath"], size_hw, [str(rows[i]["label"]) for i in kept],
        [rles[i] for i in kept], sequence=sequence, uri=sample.get("frame_uri") or "",
        track_ids=np.array(ids, np.int64) if known else None, **of_boxes,
    )  # fmt: skip


def _size_of(sample: dict[str, Any]) -> tuple[int, int]:
    metadata = sample.get("metadata") or {}
    if metadata.get("height"):
        return int(metadata["height"]), int(metadata["width"])
    from PIL import Image

    with Image.open(sample["filepath"]) as image:
        return image.height, image.width


def example_truths() -> Iterator[tuple[Path, Truth]]:
    """Yield each drive of known truth: its folder of pictures and what is in them."""
    for path in sorted(EXAMPLES.glob("*/truth.json")):
        yield path.parent / "images", read_truth(path)


def load_png_truth(folder: Path, images: Path, *, first_frames: bool = False) -> Truth:
    """Read a folder of indexed PNGs.

    Args:
        folder: of the PNGs, or of a folder of them for each sequence or city.
        images: where the pictures lie, in the same layout.
        first_frames: only the first of each sequence.

    Raises:
        AutolabelError: there is none, or a file is no indexed PNG. What has no picture is
            `unreadable`.

    """
    files = sorted(folder.rglob(f"*{_CITYSCAPES}")) or sorted(folder.rglob("*.png"))
    files = [file for file in files if not file.name.startswith("._")]  # macOS' notes on files
    if first_frames:
        firsts = {file.parent: file for file in reversed(files)}
        files = [file for file in files if file == firsts[file.parent]]
    if not files:
        raise AutolabelError(f"{folder}: no PNG in it, and {TRUTHS}")
    found = tuple(_image(number, file, folder, images) for number, file in enumerate(files))
    names = dict.fromkeys(
        label for image in found for label in (*image.labels, *image.crowd_labels)
    )
    return Truth(found, tuple(names))


def _image(number: int, file: Path, folder: Path, images: Path) -> TruthImage:
    ids = _indices(file)
    city = file.name.endswith(_CITYSCAPES)
    place = file.relative_to(folder).parent
    stem = file.name.removesuffix(_CITYSCAPES) + "_leftImg8bit" if city else file.stem
    candidates = [images / place / f"{stem}{suffix}" for suffix in IMAGE_SUFFIXES]
    picture = next((candidate for candidate in candidates if candidate.is_file()), None)
    if picture is not None and picture.samefile(file):
        raise AutolabelError(
            f"{file}: its picture would be the truth itself; give --images the folder of the "
            "pictures, in the same layout"
        )
    sequence = "" if city or place == Path() else place.as_posix()
    size_hw = (ids.shape[0], ids.shape[1])
    if picture is None:
        return TruthImage.of_masks(
            number, candidates[0].relative_to(images).as_posix(), size_hw, sequence=sequence,
            unreadable=f"its picture {candidates[0]} is not there",
        )  # fmt: skip
    kinds = {value: _kind(value, cityscapes=city) for value in np.unique(ids).tolist()}
    things = {value: kind for value, (kind, crowd) in kinds.items() if kind and not crowd}
    crowds = {value: kind for value, (kind, crowd) in kinds.items() if crowd}
    return TruthImage.of_masks(
        number, picture.relative_to(images).as_posix(), size_hw,
        tuple(things.values()), [_rle(ids == value) for value in things],
        crowd_rle=tuple(_rle(ids == value) for value in crowds),
        crowd_labels=tuple(crowds.values()),
        track_ids=np.array([*things], np.int64), sequence=sequence,
    )  # fmt: skip


def _kind(value: int, *, cityscapes: bool) -> tuple[str, bool]:
    """Return what a number stands for, "" for nothing, and whether it counts neither way."""
    if not cityscapes:
        return ("", False) if value == 0 else (OBJECT, value == VOID)
    if value >= 1000:
        return CITYSCAPES_CLASSES.get(value // 1000, ""), False
    return (CITYSCAPES_CLASSES[value], True) if value in CITYSCAPES_CLASSES else ("", False)


def _indices(file: Path) -> npt.NDArray[np.int64]:
    """Read a PNG's numbers: a palette's indices, or grey values of 8 or 16 bits."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            array, mode = np.asarray(image), image.mode
    except (OSError, SyntaxError) as error:
        raise AutolabelError(f"{file}: cannot be read: {error}") from error
    if array.ndim != 2:
        raise AutolabelError(f"{file}: not an indexed PNG: it has {array.ndim} dimensions, not 2")
    ids = array.astype(np.int64)
    return ids // VOID if mode == "L" and not np.isin(ids, (0, VOID), invert=True).any() else ids


def _rle(mask: npt.NDArray[np.bool_]) -> bytes:
    return bytes(RLEMask.from_array(mask).to_dict()["counts"])


BoolArray = npt.NDArray[np.bool_]
# Segment Anything's noise on boxes: of a side, and at most so many pixels.
JITTER, MOST_JITTER_PX = 0.1, 20.0
_BLOCK = 8  # pictures that are read for the detector before the model has them, at least


def true_boxes(image: TruthImage) -> Boxes:
    """Make prompts of the annotated boxes."""
    scores = np.ones(len(image), np.float32)
    return Boxes(image.boxes_xyxy_px, scores, image.labels, source="truth")


def jittered_boxes(image: TruthImage, seed: int = 0) -> Boxes:
    """Make prompts of the annotated boxes, each corner off by up to 10% of the side (one sigma).

    The same picture and seed give the same boxes.
    """
    random = np.random.default_rng([seed, image.image_id])
    boxes = image.boxes_xyxy_px
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 1)
    sigma = np.tile(np.minimum(JITTER * sides, MOST_JITTER_PX), 2)
    moved = boxes + np.clip(random.normal(size=boxes.shape) * sigma, -2 * sigma, 2 * sigma)
    height, width = image.size_hw
    moved = np.clip(moved, 0, [width, height, width, height])
    kept = ((moved[:, 2:] - moved[:, :2]) > 1).all(1)
    moved = np.where(kept[:, None], moved, boxes).astype(np.float32)
    scores = np.ones(len(image), np.float32)
    return Boxes(moved, scores, image.labels, source="truth, jittered")


def next_click(truth: BoolArray, mask: BoolArray) -> tuple[float, float, int]:
    """Return the standard next click: x, y and label, in the middle of the largest error.

    Where most pixels in one piece are wrong, it is put where it is farthest from the piece's rim:
    positive on what is missing, negative on what is too much.
    """
    best = (0.0, 0.0, 0.0, POINT_POSITIVE)
    for error, label in ((truth & ~mask, POINT_POSITIVE), (mask & ~truth, POINT_NEGATIVE)):
        inside = np.pad(error.astype(np.uint8), 1)
        count, pieces, stats, _ = cv2.connectedComponentsWithStats(inside, connectivity=8)
        if count < 2:
            continue
        piece = 1 + int(np.argmax(stats[1:, cv2.CC_STAT_AREA]))
        area = float(stats[piece, cv2.CC_STAT_AREA])
        if area > best[0]:
            depth = cv2.distanceTransform((pieces == piece).astype(np.uint8), cv2.DIST_L2, 5)
            y, x = np.unravel_index(int(depth.argmax()), depth.shape)
            best = (area, float(x) - 0.5, float(y) - 0.5, label)
    return best[1], best[2], best[3]


def clicked_masks(
    segmenter: Segmenter, pixels: ImageArray, truth: TruthImage, clicks: int
) -> Masks:
    """Segment every object of a picture by clicks, each put where the mask before was most wrong.

    Args:
        segmenter: for whole frames.
        pixels: uint8 (H, W, 3) RGB.
        truth: what the clicks are put on.
        clicks: how many for each object.

    """
    count = len(truth)
    true = [_array(rle, truth.size_hw) for rle in truth.rle]
    masks = [np.zeros(truth.size_hw, bool)] * count
    points = np.zeros((count, clicks, 2), np.float32)
    labels = np.full((count, clicks), POINT_PADDING, np.int32)
    prepared = segmenter.prepare(pixels, true_boxes(truth))
    features = segmenter.backend.encode(prepared.images_model)
    found: Masks | None = None
    logits = None
    for click in range(clicks):
        for row in range(count):
            x, y, label = next_click(true[row], masks[row])
            points[row, click], labels[row, click] = (x, y), label
        given = PointPrompts(points[:, : click + 1], labels[:, : click + 1], None, logits)
        prompts, rows, reasons = point_prompts(given, truth.size_hw, segmenter.image_size)
        low_res = segmenter.decode(features, [prompts])()
        frame = type(prepared)((), truth.size_hw, prompts, rows, reasons)
        found = segmenter.finish(frame, low_res)
        if count:  # the next click refines them, as SAM 2 clips them
            logits = np.stack([np.asarray(logit, np.float32) for logit in low_res.logits]).clip(
                -32, 32
            )
        masks = [_array(rle, truth.size_hw) for rle in found.rle]
    assert found is not None  # noqa: S101 - there is at least one click
    return found


def _array(rle: bytes, size_hw: tuple[int, int]) -> BoolArray:
    return np.asarray(mask_of(rle, size_hw).to_array(order="C"), np.bool_)


def find_image(folder: Path, file_name: str) -> Path:
    """Where an image of the truth lies: by its path below the folder, or by the end of it.

    Folders that come first may be those of a split, or lie around the folder.
    """
    root = folder.absolute()
    for parts in (Path(name).parts for name in spellings(file_name)):
        for candidate in (root.joinpath(*parts[first:]) for first in range(len(parts))):
            below = Path(os.path.normpath(candidate)).is_relative_to(os.path.normpath(root))
            if below and candidate.is_file():
                return candidate
    raise FileNotFoundError(f"{file_name} is not in {folder}")


def read_rgb(path: Path, size_hw: tuple[int, int]) -> ImageArray:
    """Read a picture, which must have the size that the truth says once EXIF has turned it."""
    image = open_image(path)
    _refuse_other_size(image, size_hw)
    return image


def _refuse_other_size(image: ImageArray, size_hw: tuple[int, int]) -> None:
    if image.shape[:2] != size_hw:
        sizes = [f"{height}x{width}" for height, width in (image.shape[:2], size_hw)]
        raise AutolabelError(
            f"the image is {sizes[0]} as displayed, the truth says {sizes[1]} (h x w)"
        )


# A picture of the truth and its file, or None where it is not read; the boxes and masks that were
# found there, or why there are none; what finds them, in the order of the pictures.
Picture = tuple[TruthImage, Path | None]
Prediction = tuple[Boxes, Masks] | Exception
Predict = Callable[[Iterable[Picture]], Iterator[Prediction]]


def one_by_one(of: Callable[[ImageArray, TruthImage], tuple[Boxes, Masks]]) -> Predict:
    """Return what asks for the boxes and masks of one picture after another.

    Args:
        of: finds them, of pixels, uint8 (H, W, 3) RGB, and what is annotated there.

    """

    def predict(pictures: Iterable[Picture]) -> Iterator[Prediction]:
        for image, path in pictures:
            try:
                yield of(read_rgb(path or Path(image.file_name), image.size_hw), image)
            except (OSError, ValueError, AutolabelError) as error:
                yield error

    return predict


def by_boxes(segmenter: Segmenter, boxes: Callable[[TruthImage], Boxes] = true_boxes) -> Predict:
    """Return what prompts a model with what is annotated, made into boxes."""
    return lambda pictures: _segmented(
        segmenter, ((image, path, boxes(image), None) for image, path in pictures)
    )


def by_detector(
    segmenter: Segmenter, detector: AnyDetector, min_score: float, categories: Sequence[str]
) -> Predict:
    """Return what finds boxes and prompts a model with them, in batches as `label` does.

    Args:
        segmenter: for the masks.
        detector: finds the boxes.
        min_score: their least score.
        categories: of the truth: boxes of others count neither way and get no mask. All boxes are
            of a truth's one class, if that is `OBJECT`.

    """
    from tasks.boxes.detect import detect

    def frames(pictures: Iterable[Picture]) -> Iterator[_Prompted]:
        rest = iter(pictures)
        while block := list(itertools.islice(rest, max(_BLOCK, detector.batch))):
            read: dict[FrameRef, StagedFrame] = {}
            refs = [_frame_of(number, path) for number, (_, path) in enumerate(block)]
            found = detect(refs, detector, (), min_score, on_read=read.__setitem__)
            for number, (image, path) in enumerate(block):
                boxes = found[number]
                if isinstance(boxes, FrameFailure):
                    boxes = Boxes.empty()  # reading fails once more, which gives the reason
                if tuple(categories) == (OBJECT,):
                    boxes = replace(boxes, labels=(OBJECT,) * len(boxes))
                other = ~np.isin(boxes.labels, list(categories))
                prompts = np.where(other[:, None], np.nan, boxes.xyxy_px).astype(np.float32)
                yield image, path, replace(boxes, xyxy_px=prompts), read.pop(refs[number], None)

    return lambda pictures: _segmented(segmenter, frames(pictures))


_Prompted = tuple[TruthImage, Path | None, Boxes, StagedFrame | None]


def _segmented(segmenter: Segmenter, frames: Iterable[_Prompted]) -> Iterator[Prediction]:
    """Make masks of boxes, reading ahead of the device and encoding masks behind it."""
    given: dict[int, tuple[TruthImage, StagedFrame | None]] = {}

    def prompted() -> Iterator[tuple[FrameRef, Boxes]]:
        for number, (image, path, boxes, staged) in enumerate(frames):
            given[number] = image, staged
            yield _frame_of(number, path), boxes

    def read(frame: FrameRef) -> ImageArray | StagedFrame:
        image, staged = given.pop(frame.index)
        if staged is None:
            return read_rgb(Path(frame.local_path), image.size_hw)
        _refuse_other_size(staged.pixels, image.size_hw)
        return staged if staged.gpu else staged.pixels

    for labeled in segment_frames(segmenter, prompted(), read):
        why = labeled.failure.reason if labeled.failure else ""
        yield ValueError(why) if labeled.masks is None else (labeled.boxes, labeled.masks)


def _frame_of(number: int, path: Path | None) -> FrameRef:
    return FrameRef("", "", number, None, str(path), local_path=str(path))


def evaluate(
    truth: Truth, folder: str | Path | None, predict: Predict, *, by_row: bool = True
) -> Iterator[Scores]:
    """Score boxes and masks on every image of the truth.

    Args:
        truth: what there is.
        folder: where the images lie; None where they are not read.
        predict: finds boxes and masks.
        by_row: box and mask i are those of instance i; see `Scores.add`.

    Yields:
        The same growing `Scores` after each image, so that a caller can show progress.

    Raises:
        AutolabelError: when the folder does not exist or the truth holds no instance.

    """
    folder = None if folder is None else Path(folder)
    if folder is not None and not folder.is_dir():
        raise AutolabelError(f"{folder}: no such folder; give the folder of the truth's images")
    if not truth.images:
        raise AutolabelError("the ground truth holds no image")
    if not any(len(image) or image.unreadable for image in truth.images):
        raise AutolabelError(
            "the ground truth holds no instance, so there is nothing to measure: its pictures are "
            "empty, or all that is annotated counts neither way (COCO's crowds, 255 in PNGs)"
        )
    scores, pictures = Scores(truth.categories), []
    ids: dict[Path, list[int]] = {}  # images of one file: its objects are spread over them
    for image in truth.images:
        with contextlib.suppress(OSError, ValueError):
            path = find_image(folder or Path(), image.file_name).resolve()
            ids.setdefault(path, []).append(image.image_id)
    for image in truth.images:
        try:
            pictures.append((image, _file_of(image, folder, ids)))
        except (OSError, ValueError) as error:
            scores.failed.append(FailedImage(image.image_id, image.file_name, str(error)))
            yield scores
    for (image, _), prediction in zip(pictures, predict(iter(pictures)), strict=True):
        try:
            if isinstance(prediction, Exception):
                raise prediction
            scores.add(image, *prediction, by_row=by_row)
        except (OSError, ValueError, AutolabelError) as error:
            scores.failed.append(FailedImage(image.image_id, image.file_name, str(error)))
        yield scores


def _file_of(image: TruthImage, folder: Path | None, ids: Mapping[Path, list[int]]) -> Path | None:
    """Return a picture's file, None without a folder; raises OSError or ValueError otherwise."""
    if image.unreadable:
        raise ValueError(image.unreadable)
    if folder is None:
        return None
    path = find_image(folder, image.file_name)
    if len(of_file := ids[path.resolve()]) > 1:
        which = " and ".join(map(str, of_file))
        raise ValueError(f"images {which} of the truth are of this one file")
    return path
