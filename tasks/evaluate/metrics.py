"""How good masks and boxes are: mask IoU, boundary F, average precision, by object size.

Every instance is a record: kept in a file, summed up, compared in pairs, shown on a page.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import cv2
import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco_mask
from pydantic import BaseModel, Field

from sam2_core.mask_geometry import SIZES, boundary_f, boundary_tolerance_px, mask_iou, size_class
from sam2_core.redaction import one_line
from sam2_core.types import AutolabelError, Boxes, Masks
from tasks.dataset.coco_truth import TruthImage, areas_px, rle_box_xyxy_px
from tasks.risk.geometry import box_ious
from tasks.wording import counted, local_date, markdown_table, plain

RESAMPLES = 1000
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Record:
    """How well one true instance was segmented.

    Attributes:
        image: file name of its picture.
        row: of the truth's instances there.
        label: class.
        area_px: of the true mask.
        box_xyxy_px: the true box.
        iou, boundary_f: of the predicted mask, 0 where it was not found. Of a truth of boxes alone,
            IoU of the boxes, and no boundary F.
        found: whether it was.
        predicted_iou: what the model said.
        visible: share of the object that is not hidden, None where unknown.
        sequence, track_id: of frames of sequences; "" and -1 elsewhere.
        davis_f: boundary F as DAVIS defines it, of frames of sequences, else None.

    """

    image: str
    row: int
    label: str
    area_px: int
    box_xyxy_px: tuple[Finite, Finite, Finite, Finite]
    iou: Share
    boundary_f: Share | None
    found: bool = True
    predicted_iou: Finite = 0.0
    visible: Share | None = None
    sequence: str = ""
    track_id: int = -1
    davis_f: Share | None = None

    @property
    def instance(self) -> tuple[str, str, int, tuple[float, ...]]:
        """What the annotation is: picture, class, area and box."""
        box = tuple(round(side, 2) for side in self.box_xyxy_px)
        return self.image, self.label, self.area_px, box


def grouped(
    records: Iterable[Record], key: Callable[[Record], str], order: Sequence[str] = ()
) -> dict[str, list[Record]]:
    """Group records by a name, in an order, those without a name left out."""
    groups: dict[str, list[Record]] = {name: [] for name in order}
    for record in records:
        name = key(record)
        if name:
            groups.setdefault(name, []).append(record)
    return {name: some for name, some in groups.items() if some}


def by_size(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Group by COCO's classes of size."""
    return grouped(records, lambda record: size_class(record.area_px), SIZES)


def by_occlusion(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Group by how hidden the objects are; those without that value are left out."""
    known = [record for record in records if record.visible is not None]
    names = ("whole", "partly hidden", "mostly hidden")
    shares = [0.95, 0.7]  # at least so much of them is visible
    return grouped(
        known, lambda record: names[sum((record.visible or 0) < s for s in shares)], names
    )


def interval(values: Sequence[tuple[str, float]]) -> tuple[float, float] | None:
    """Return the 95% interval of the mean of values, each of a picture; None for less than two.

    It is found by bootstrap over pictures, because objects of one picture are alike.
    """
    pictures: dict[str, list[float]] = {}
    for picture, value in values:
        pictures.setdefault(picture, []).append(value)
    if len(pictures) < 2:
        return None
    sums = np.array([sum(some) for some in pictures.values()])
    counts = np.array([len(some) for some in pictures.values()])
    drawn = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
    low, high = np.percentile(sums[drawn].sum(1) / counts[drawn].sum(1), [2.5, 97.5])
    return round(float(low), 4), round(float(high), 4)


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Return means over instances with the interval of the IoU's, None where there is no instance.

    One that was not found counts 0, and nothing in `_matched`.
    """
    found = [record for record in records if record.found]
    means: dict[str, list[Any]] = {
        "miou": [record.iou for record in records],
        "boundary_f": [value for _, value in _boundary_fs(records)],
        "miou_matched": [one.iou for one in found],
        "boundary_f_matched": [value for _, value in _boundary_fs(found)],
        "recall": [record.found for record in records],
    }
    return {
        **{name: round(float(np.mean(some)), 4) if some else None for name, some in means.items()},
        "instances": len(records),
        "miou_interval": interval([(record.image, record.iou) for record in records]),
    }  # fmt: skip


def _boundary_fs(records: Iterable[Record]) -> list[tuple[str, float]]:
    """Return picture and boundary F of each instance that has one."""
    return [
        (record.image, record.boundary_f) for record in records if record.boundary_f is not None
    ]


def j_and_f(records: Sequence[Record]) -> dict[str, Any]:
    """Average DAVIS's J and F over an object's frames, and then over objects; {} without any.

    Returns:
        `davis`: `j`, `f`, `j_and_f`, and how many `objects` and `sequences` there are.

    """
    objects: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for record in records:
        if record.davis_f is not None:
            objects.setdefault((record.sequence, record.track_id), []).append(
                (record.iou, record.davis_f)
            )
    if not objects:
        return {}
    j, f = np.mean([np.mean(frames, axis=0) for frames in objects.values()], axis=0).tolist()
    return {"davis": {
        "j": round(j, 4), "f": round(f, 4), "j_and_f": round((j + f) / 2, 4),
        "objects": len(objects), "sequences": len({sequence for sequence, _ in objects}),
    }}  # fmt: skip


def write_run(path: Path, result: Mapping[str, Any], records: Sequence[Record]) -> None:
    """Keep an evaluation, for reports and comparisons."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {
        "format": 1,
        "result": dict(result),
        "records": [asdict(record) for record in records],
    }
    path.write_text(json.dumps(values) + "\n", encoding="utf-8")


class _Run(BaseModel):
    """What `write_run` keeps."""

    format: Literal[1]
    result: dict[str, Any]
    records: list[Record] = Field(min_length=1)


def read_run(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """Read what `write_run` kept; `AutolabelError` when it is something else."""
    try:
        run = _Run.model_validate_json(path.read_text(encoding="utf-8"), strict=True)
    except (OSError, ValueError) as error:
        raise AutolabelError(f"{path} is no evaluation that --save wrote") from error
    return run.result, run.records


def paired(first: Sequence[Record], second: Sequence[Record]) -> dict[str, Any]:
    """Compare two runs over the same truth, instance by instance.

    Instances are the same where picture, class, true area and true box are; what only one of the
    runs has is counted.

    Returns:
        The mean difference of IoU (second less first) with its 95% interval by bootstrap over
        pictures, the p value of Wilcoxon's signed-rank test, and how many got better and worse by
        more than 0.01.

    Raises:
        AutolabelError: they have no instance in common.

    """
    from scipy.stats import wilcoxon

    before: dict[object, list[Record]] = {}
    for record in first:
        before.setdefault(record.instance, []).append(record)
    pairs = [
        (before[record.instance].pop(0), record) for record in second if before.get(record.instance)
    ]
    if not pairs:
        raise AutolabelError("the two runs have no instance in common: evaluate the same truth")
    gain = np.array([after.iou - old.iou for old, after in pairs])
    values = [(old.image, change) for (old, _), change in zip(pairs, gain.tolist(), strict=True)]
    return {
        "instances": len(pairs), "only_in_one": len(first) + len(second) - 2 * len(pairs),
        "miou_gain": round(float(gain.mean()), 4), "miou_gain_interval": interval(values),
        "better": int((gain > 0.01).sum()), "worse": int((gain < -0.01).sum()),
        # Two-sided; without any difference there is nothing to test.
        "p_value": float(f"{wilcoxon(gain).pvalue:.3g}") if np.any(gain != 0) else None,
    }  # fmt: skip


BoolArray = npt.NDArray[np.bool_]
MATCH_IOU = 0.5
SAME_BOX_PX = 0.05  # files round
DAVIS_TOLERANCE = 0.008  # of the diagonal
# Average precision at IoU 0.5, and over 0.5:0.95.
_Precision = tuple[float | None, float | None]


def box_iou(
    first: npt.NDArray[np.floating[Any]], second: npt.NDArray[np.floating[Any]]
) -> npt.NDArray[np.float64]:
    """IoU (N, M) of boxes (N, 4) and (M, 4), x1 y1 x2 y2; NaN boxes overlap nothing."""
    iou = box_ious(np.asarray(first, np.float64), np.asarray(second, np.float64))
    return np.asarray(np.nan_to_num(iou))


def matched(truth: TruthImage, boxes: Boxes, masks: Masks) -> dict[int, int]:
    """Pair instances with predictions of the same class: COCO's greedy matching at IoU 0.5.

    IoU is that of the boxes or that of the masks, whichever is more: a true box may be around its
    mask only, where a detector's is around what is hidden, too. Of a truth of boxes alone it is
    that of the boxes.

    Returns:
        {row of the truth: row of the boxes}; each row at most once, better scores choose first.

    """
    overlap = box_iou(truth.boxes_xyxy_px, boxes.xyxy_px)
    if overlap.size and not truth.boxes_alone:
        true, found = ([{"size": truth.size_hw, "counts": counts} for counts in rle]
                       for rle in (truth.rle, masks.rle))  # fmt: skip
        overlap = np.maximum(overlap, coco_mask.iou(true, found, [0] * len(found)))
    same = np.array(truth.labels, object)[:, None] == np.array(boxes.labels, object)[None]
    overlap = np.where(same, overlap, 0.0)
    pairs: dict[int, int] = {}
    for row in np.argsort(-boxes.scores, kind="stable"):
        free = [i for i in range(len(truth)) if i not in pairs]
        best = max(free, key=lambda i: overlap[i, row], default=None)
        if best is not None and overlap[best, row] >= MATCH_IOU:
            pairs[best] = int(row)
    return pairs


@dataclass(frozen=True)
class FailedImage:
    """An image that could not be measured, and why; its instances are not in the means."""

    image_id: int
    file_name: str
    reason: str


@dataclass
class Scores:
    """Adds up how well predictions fit the truth; `result()` gives one JSON-able object.

    `miou` and `boundary_f` are means over all true instances; one that was not found counts 0.
    `miou_matched` and `boundary_f_matched` leave those out. `boxes_of_truth` says that every box
    was the truth's own: then recall and box AP say nothing. `unmatched` counts the predictions that
    match no true instance, by picture. `boxes_alone` says that the truth has no masks: then IoU is
    that of boxes, and nothing else is said of masks.
    """

    categories: Sequence[str]
    _images: list[dict[str, Any]] = field(default_factory=list)
    _true: list[dict[str, Any]] = field(default_factory=list)
    _found: list[dict[str, Any]] = field(default_factory=list)
    other_classes: int = 0
    other_boxes: int = 0
    unmatched: Counter[str] = field(default_factory=Counter)
    boxes_alone: bool = False
    records: list[Record] = field(default_factory=list)
    failed: list[FailedImage] = field(default_factory=list)

    def add(self, truth: TruthImage, boxes: Boxes, masks: Masks, *, by_row: bool) -> None:
        """Score one image.

        Args:
            truth: what there is.
            boxes: N predicted boxes.
            masks: their N masks.
            by_row: row i of the prediction is row i of the truth (prompted with the true boxes);
                boxes for average precision are then those of the masks, scored by predicted IoU.
                Otherwise pairs are found as `matched` does, and the boxes are taken as given.

        Raises:
            ValueError: when the sizes do not fit.

        """
        if masks.size_hw != truth.size_hw:
            raise ValueError(f"masks are {masks.size_hw}, the truth {truth.size_hw} (h, w)")
        if by_row and len(masks) != len(truth):
            raise ValueError(f"{len(masks)} masks for {len(truth)} true instances")
        pairs = {i: i for i in range(len(truth))} if by_row else matched(truth, boxes, masks)
        if by_row:
            found_px = [rle_box_xyxy_px(rle, truth.size_hw) for rle in masks.rle]
            boxes = Boxes(np.reshape(found_px, (-1, 4)), masks.predicted_iou, truth.labels)
        ious = box_iou(truth.boxes_xyxy_px, boxes.xyxy_px)
        self.boxes_alone |= truth.boxes_alone
        self.records += [_record(truth, i, masks, pairs.get(i), ious[i]) for i in range(len(truth))]
        if not by_row:
            self.unmatched[truth.file_name] += len(boxes) - len(pairs)
            crowds = [rle_box_xyxy_px(rle, truth.size_hw) for rle in truth.crowd_rle]
            true = np.array([*truth.boxes_xyxy_px, *crowds], np.float32).reshape(-1, 4)
            apart = np.abs(boxes.xyxy_px[:, None] - true[None]).max(-1)
            self.other_boxes += int((apart.min(1, initial=np.inf) > SAME_BOX_PX).sum())
        self._collect(truth, boxes, masks)

    def _collect(self, truth: TruthImage, boxes: Boxes, masks: Masks) -> None:
        ids = {name: i + 1 for i, name in enumerate(self.categories)}
        size = list(truth.size_hw)
        image_id = len(self._images) + 1
        self._images.append({"id": image_id, "height": size[0], "width": size[1]})
        rows = [
            (*row, 0)
            for row in zip(truth.labels, truth.rle, truth.boxes_xyxy_px, truth.area_px, strict=True)
        ]
        crowd_areas = areas_px(truth.crowd_rle, truth.size_hw)
        rows += [
            (label, rle, rle_box_xyxy_px(rle, truth.size_hw), area, 1)
            for label, rle, area in zip(
                truth.crowd_labels, truth.crowd_rle, crowd_areas, strict=True
            )
        ]
        for label, rle, box, area, crowd in rows:
            self._true.append({
                "id": len(self._true) + 1, "image_id": image_id, "category_id": ids[label],
                "bbox": _xywh(box), "iscrowd": crowd, "area": float(area),
                "segmentation": {"counts": rle.decode("ascii"), "size": size},
            })  # fmt: skip
        for row, (label, box) in enumerate(zip(boxes.labels, boxes.xyxy_px, strict=True)):
            if label not in ids or not np.isfinite(box).all():
                self.other_classes += label not in ids
                continue
            self._found.append({
                "image_id": image_id, "category_id": ids[label], "bbox": _xywh(box),
                "score": float(boxes.scores[row]),
                "segmentation": {"counts": masks.rle[row].decode("ascii"), "size": size},
            })  # fmt: skip

    def result(self) -> dict[str, Any]:
        """Every number so far."""
        boxes = self._average_precision("bbox")
        masks = (
            dict.fromkeys(boxes, (None, None))
            if self.boxes_alone
            else self._average_precision("segm")
        )

        def row(group: str, records: Sequence[Record]) -> dict[str, Any]:
            (ap50, ap), (mask_ap50, mask_ap) = boxes[group], masks[group]
            return {
                **summary(records),
                "ap50": ap50, "ap": ap, "mask_ap50": mask_ap50, "mask_ap": mask_ap,
            }  # fmt: skip

        sizes, classes = by_size(self.records), grouped(self.records, lambda record: record.label)
        hidden = {name: summary(some) for name, some in by_occlusion(self.records).items()}
        kept = ("instances", "miou", "boundary_f", "miou_interval")
        return {
            **row("all", self.records),
            "images": len(self._images),
            "boxes_of_truth": bool(self._found) and not self.other_boxes,
            "boxes_alone": self.boxes_alone,
            "by_size": {size: row(size, sizes.get(size, [])) for size in SIZES},
            "by_class": {
                name: row(f"class {name}", some) for name, some in sorted(classes.items())
            },
            "detections_of_other_classes": self.other_classes,
            "boundary_f_interval": interval(_boundary_fs(self.records)),
            "by_occlusion": {name: {key: one[key] for key in kept} for name, one in hidden.items()},
            **j_and_f(self.records),
            "failed_images": [vars(one) for one in self.failed],
        }

    def _average_precision(self, kind: str) -> dict[str, _Precision]:
        """COCO's average precision of all, of each size and of each class.

        Returns:
            For "all", every size and "class NAME": at IoU 0.5, and over 0.5:0.95; None where there
            is no truth.

        """
        from faster_coco_eval import COCO, COCOeval_faster

        categories = [{"id": i + 1, "name": name} for i, name in enumerate(self.categories)]
        truth = COCO({"images": self._images, "annotations": self._true, "categories": categories})
        run = COCOeval_faster(truth, truth.loadRes(self._found), kind)
        run.evaluate()
        run.accumulate()
        # Threshold, recall, class; of all sizes and of each.
        precision = np.asarray(run.eval["precision"])[..., -1]
        parts = {size: precision[..., i] for i, size in enumerate(("all", *SIZES))}
        parts |= {
            f"class {name}": parts["all"][:, :, [i]] for i, name in enumerate(self.categories)
        }
        return {name: (_mean_precision(part[:1]), _mean_precision(part))
                for name, part in parts.items()}  # fmt: skip


# A mask of a lower IoU has changed.
SAME_IOU = 0.9


def changes(images: Iterable[TruthImage], scores: Scores) -> dict[str, Any]:
    """Count what differs from a run that is the truth.

    Args:
        images: of the truth, each with its sequence.
        scores: of all of them.

    Returns:
        `changed` instances, whose mask has an IoU below `SAME_IOU` or is not there; `new` ones,
        which the truth does not have; `frames` that only the truth has labels of; and the names of
        the `sequences` in which any of these are.

    """
    changed = [record.image for record in scores.records if record.iou < SAME_IOU]
    failed = [image.file_name for image in scores.failed]
    names = {*changed, *failed, *+scores.unmatched}
    return {
        "changed": len(changed), "new": scores.unmatched.total(), "frames": len(failed),
        "sequences": sorted({image.sequence for image in images if image.file_name in names}),
    }  # fmt: skip


def _mean_precision(values: npt.NDArray[np.float64]) -> float | None:
    """Mean of what COCO computed; it marks by -1 where there is no truth."""
    valid = values[values > -1]
    return round(float(valid.mean()), 4) if valid.size else None


def _record(
    truth: TruthImage, i: int, masks: Masks, row: int | None, box_ious: FloatArray
) -> Record:
    """Measure an instance by the mask or box in this row, None where it was not found."""
    visible = None if truth.visible_fraction is None else float(truth.visible_fraction[i])
    left, top, right, bottom = (float(value) for value in truth.boxes_xyxy_px[i])
    of_masks = not truth.boxes_alone
    of_sequence = bool(truth.sequence) and truth.track_ids is not None and of_masks
    iou = boundary = predicted_iou = contour = 0.0
    if row is not None:
        predicted_iou, iou = float(masks.predicted_iou[row]), float(box_ious[row])
    if row is not None and of_masks:
        found, true, size_hw = masks.rle[row], truth.rle[i], truth.size_hw
        iou = mask_iou(true, found, size_hw)
        boundary = boundary_f(found, true, size_hw, boundary_tolerance_px(size_hw))
        if of_sequence:
            both = ({"counts": counts, "size": size_hw} for counts in (found, true))
            contour = davis_boundary_f(*(coco_mask.decode(rle) > 0 for rle in both))
    return Record(
        truth.file_name, i, truth.labels[i], int(truth.area_px[i]), (left, top, right, bottom),
        round(iou, 6), round(boundary, 6) if of_masks else None, row is not None,
        round(predicted_iou, 5),
        None if visible is None or np.isnan(visible) else round(visible, 4), truth.sequence,
        -1 if truth.track_ids is None else int(truth.track_ids[i]),
        round(contour, 6) if of_sequence else None,
    )  # fmt: skip


def boundary_map(mask: BoolArray) -> BoolArray:
    """Return where a mask differs from its right, lower or lower right neighbour: bool (H, W)."""
    padded = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
    here = padded[:-1, :-1]
    right, below, across = padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]
    return np.asarray((here != right) | (here != below) | (here != across))


def davis_boundary_f(
    first: BoolArray, second: BoolArray, tolerance: float = DAVIS_TOLERANCE
) -> float:
    """Contour accuracy as DAVIS defines it (Perazzi et al., CVPR 2016), of masks bool (H, W).

    A pixel belongs to the boundary where its right, lower or lower right neighbour has another
    value; boundaries match within the tolerance, rounded up, by dilation with a disk.

    Args:
        first: the predicted mask.
        second: the true one.
        tolerance: at least 1 is in pixels, else of the diagonal.

    """
    radius = math.ceil(tolerance * math.hypot(*first.shape)) if tolerance < 1 else int(tolerance)
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    disk = (x**2 + y**2 <= radius**2).astype(np.uint8)
    maps = [boundary_map(mask).astype(np.uint8) for mask in (first, second)]
    if not (maps[0].any() and maps[1].any()):
        return float(not maps[0].any() and not maps[1].any())
    near = [cv2.dilate(edge, disk, borderType=cv2.BORDER_CONSTANT, borderValue=0) for edge in maps]
    precision = int((maps[0] & near[1]).sum()) / int(maps[0].sum())
    recall = int((maps[1] & near[0]).sum()) / int(maps[1].sum())
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _xywh(box: npt.NDArray[np.float32]) -> list[float]:
    x1, y1, x2, y2 = (float(value) for value in box)
    return [x1, y1, x2 - x1, y2 - y1]


WORST = 12
# What a report is known by.
PAGE, MARK = "report.md", "![IoU](plots.png)"
_FOUND, _OTHER = "#2a6f97", "#e07a5f"
# Draws a record's masks into a file: the picture, and the predicted mask beside the true one.
Draw = Callable[[Record, Path], None]


def write_report(
    folder: Path,
    result: Mapping[str, Any],
    records: Sequence[Record],
    draw: Draw,
) -> Path:
    """Write `report.md` with its plots and pictures.

    Args:
        folder: where to; made if it is not there.
        result: what `autolabel evaluate --json` prints.
        records: every instance.
        draw: draws the worst cases.

    Returns:
        The page's path.

    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("worst-[0-9][0-9].png"):
        old.unlink()
    _plots(folder / "plots.png", records)
    lines = [
        f"# {plain(headline(result))}", "",
        *(_measured(result["run"]) if "run" in result else []),
        f"{result['images']} pictures, {result['instances']} instances. Intervals are of 95%, by "
        "bootstrap over pictures.", "", MARK, "",
        *markdown_table(("instances", "count", *NUMBERS.values()), rows_of(result, NUMBERS)),
        *(f"{plain(line)}\n" for line in remarks(result)),
    ]  # fmt: skip
    if failed := result["failed_images"]:
        reasons = ["- " + plain(f"{image['file_name']}: {image['reason']}") for image in failed]
        lines += ["Not measured:", "", *reasons, ""]
    lines += _worst(folder, records, draw)
    page = folder / PAGE
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return page


def headline(result: Mapping[str, Any]) -> str:
    """Say whose masks were measured, and what they were made of."""
    run = result.get("run") or {}
    text = f"{result['model']}, prompted by {result['prompt']}"
    if "labels" in run:
        text = f"labels of {run['labels']} by {result['model']}"
    if "min_score" in run:
        text += f" (scores from {run['min_score']:g})"
    if result["boxes_of_truth"]:
        clicked, jittered = "clicks" in run, result["prompt"] == "jittered"
        own = "objects" if clicked else "boxes"
        text += f"; {own} are the truth's own{', jittered' if jittered else ''}"
    if result["boxes_alone"]:
        text += "; measured by boxes: the truth has no masks, so IoU is that of boxes"
    return text


# What says nothing where the boxes are the truth's own.
_OF_BOXES = frozenset({"recall", "ap", "ap50"})
NUMBERS = {
    "miou": "miou", "miou_interval": "95%", "boundary_f": "boundary F",
    "miou_matched": "miou matched", "recall": "recall", "ap50": "box ap50",
    "mask_ap50": "mask ap50", "ap": "box ap", "mask_ap": "mask ap",
}  # fmt: skip


def rows_of(result: Mapping[str, Any], numbers: Iterable[str]) -> list[list[str]]:
    """Return a row of texts of all instances, each size, class and degree of occlusion.

    A row is the group's name, how many instances it has, and these of `NUMBERS`.
    """
    groups = {"all": result, **result["by_size"], **result["by_class"], **result["by_occlusion"]}
    left_out = _OF_BOXES if result["boxes_of_truth"] else frozenset()
    return [
        [
            one_line(name), str(group["instances"]),
            *(_shown(None if key in left_out else group.get(key)) for key in numbers),
        ]
        for name, group in groups.items()
    ]  # fmt: skip


def _shown(value: float | tuple[float, float] | None) -> str:
    if isinstance(value, tuple):
        return f"{value[0]:.3f} to {value[1]:.3f}"
    return "-" if value is None else f"{value:.3f}"


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Say in lines what is not in the table: of sequences, beside another run, not counted."""
    lines = []
    if davis := result.get("davis"):
        lines.append(
            f"J&F {davis['j_and_f']:.3f}, J {davis['j']:.3f}, F {davis['f']:.3f} of "
            f"{counted(davis['objects'], 'object')}"
        )
    if other := result.get("against"):
        span, p_value = other["miou_gain_interval"], other["p_value"]
        between = f" ({span[0]:+.4f} to {span[1]:+.4f})" if span else ""
        test = "" if p_value is None else f", Wilcoxon's p = {p_value:g}"
        lines.append(
            f"against {against_named(other)}: mean IoU {other['miou_gain']:+.4f}{between}{test} "
            f"over {counted(other['instances'], 'instance')}, {other['better']} better and "
            f"{other['worse']} worse by more than 0.01"
        )
        if other["only_in_one"]:
            lines.append(
                f"{counted(other['only_in_one'], 'instance')} of only one of the two runs (another "
                "truth, or pictures that were not measured) not compared"
            )
    for run_key, verdict in ((result.get("run") or {}).get("uncertified") or {}).items():
        lines.append(f"run {run_key} is of --allow-uncertified; its certificate said: {verdict}")
    if found := result.get("changes"):
        lines.append(
            f"changed: {counted(found['changed'], 'mask')} with an IoU below {SAME_IOU:g} or none, "
            f"{found['new']:,} new, {counted(found['frames'], 'frame')} without labels, in "
            f"{counted(len(found['sequences']), 'sequence')}"
        )
    if others := result["detections_of_other_classes"]:
        told = counted(others, "detection")
        lines.append(f"{told} of classes that the truth does not have: not counted")
    return lines


def against_named(found: Mapping[str, Any]) -> str:
    """Name the other run of a comparison."""
    if not found.get("model"):
        return "the other run"
    run = found.get("run") or {}
    how = engine_named(run.get("engine") or {})
    when = f", {local_date(run['made'])}" if run.get("made") else ""
    return f"{found['model']}{f' ({how})' if how else ''}, prompted by {found['prompt']}{when}"


def engine_named(engine: Mapping[str, Any]) -> str:
    """Name what ran a model: backend, precision, device and the weights."""
    if not engine:
        return ""
    weights = str(engine["checkpoint_sha256"])[:12]
    return f"{engine['backend']}, {engine['precision']}, {engine['device']}, weights {weights}"


def _measured(run: Mapping[str, Any]) -> list[str]:
    """Say what was measured, and with what."""
    how = engine_named(run.get("engine") or {})
    told = {name: value for name, value in run.items() if name not in {"engine", "made", "version"}}
    told |= {"run_keys": " ".join(told["run_keys"])} if "run_keys" in told else {}
    words = ", ".join(f"{name} {value}".replace("_", " ") for name, value in told.items())
    by = f"{how}; " if how else ""
    return [f"{plain(by + words)}; sam2-autolabel {run['version']}, {local_date(run['made'])}.", ""]


def _worst(folder: Path, records: Sequence[Record], draw: Draw) -> list[str]:
    there = sorted((record for record in records if record.found), key=lambda record: record.iou)
    chosen, lost = there[:WORST], len(records) - len(there)
    lines = ["## The worst masks", "", "Green: both. Red: predicted only. Blue: true only.", ""]
    if lost:
        lines[2] += f" {counted(lost, 'instance')} without a mask not among them: not found."
    if chosen and chosen[0].iou == 1:
        return [*lines[:1], "", "None: all are the true ones to the last pixel.", ""]
    for number, record in enumerate(chosen, 1):
        name = f"worst-{number:02d}.png"
        draw(record, folder / name)
        label, image = plain(record.label), plain(record.image)
        lines += [f"![{label}]({name})", "", f"{image}, {label}, IoU {record.iou:.3f}", ""]
    return lines


def _plots(path: Path, records: Sequence[Record]) -> None:
    """Draw how IoU is distributed, by class, by size, and beside what the model predicted."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    axes = figure.subplots(2, 2)
    iou = np.array([record.iou for record in records])
    axes[0, 0].hist(iou, bins=np.linspace(0, 1, 41), color=_FOUND)
    axes[0, 0].yaxis.get_major_locator().set_params(integer=True)
    axes[0, 0].set(xlabel="IoU", ylabel="instances", title="all instances")
    classes = sorted(
        grouped(records, lambda record: record.label).items(), key=lambda item: -len(item[1])
    )
    # A dollar would begin a formula.
    names = [one_line(name).replace("$", r"\$") for name, _ in classes[:15]]
    axes[0, 1].boxplot(
        [[record.iou for record in some] for _, some in classes[:15]], vert=False, showfliers=False,
        patch_artist=True, boxprops={"facecolor": _FOUND, "alpha": 0.4},
        medianprops={"color": _OTHER},
    )  # fmt: skip
    axes[0, 1].set_yticks(range(1, len(names) + 1), names)
    axes[0, 1].set(
        xlim=(-0.03, 1.03), xlabel="IoU", title="by class: quartiles, 1.5 times their distance"
    )
    dot = float(np.clip(20_000 / max(len(records), 1), 4, 36))
    side = np.sqrt([max(record.area_px, 1) for record in records])
    axes[1, 0].scatter(side, iou, s=dot, alpha=0.3, color=_FOUND, linewidths=0)
    if side.max() > 4 * side.min():  # an octave or two would have a tick at most
        axes[1, 0].set_xscale("log", base=2)
    axes[1, 0].xaxis.set_major_formatter("{x:.0f}")
    axes[1, 0].set(ylim=(-0.03, 1.03))
    axes[1, 0].set(xlabel="root of the object's area, px", ylabel="IoU", title="by size")
    found = np.array([record.found for record in records], bool)  # others have no prediction
    said = np.array([record.predicted_iou for record in records])[found]
    axes[1, 1].scatter(said, iou[found], s=dot, alpha=0.3, color=_FOUND, linewidths=0)
    axes[1, 1].plot([0, 1], [0, 1], color=_OTHER, linewidth=1)
    axes[1, 1].set(xlabel="IoU that the model predicts", ylabel="IoU", title="what it knows")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
