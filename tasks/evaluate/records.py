"""What an evaluation found, instance by instance: kept in a file, summed up, compared in pairs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field

from sam2_core.mask_geometry import SIZES, size_class
from sam2_core.types import AutolabelError
from tasks.wording import one_line

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
        iou, boundary_f: of the predicted mask, 0 where it was not found.
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
    boundary_f: Share
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


def occlusion_of(visible: float | None) -> str:
    """Name how hidden an object is; "" where nobody knows."""
    if visible is None or np.isnan(visible):
        return ""
    return "whole" if visible >= 0.95 else "partly hidden" if visible >= 0.7 else "mostly hidden"


OCCLUSIONS = ("whole", "partly hidden", "mostly hidden")


def grouped(
    records: Iterable[Record], key: Callable[[Record], str], order: Sequence[str] = ()
) -> dict[str, list[Record]]:
    """Group records by a name, in an order, those without a name left out."""
    groups: dict[str, list[Record]] = {name: [] for name in order}
    for one in records:
        name = key(one)
        if name:
            groups.setdefault(name, []).append(one)
    return {name: some for name, some in groups.items() if some}


def by_size(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Group by COCO's classes of size."""
    return grouped(records, lambda one: size_class(one.area_px), SIZES)


def by_occlusion(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Group by how hidden the objects are."""
    return grouped(records, lambda one: occlusion_of(one.visible), OCCLUSIONS)


def interval(
    records: Sequence[Record], value: Callable[[Record], float], seed: int = 0
) -> tuple[float, float] | None:
    """Return the 95% interval of a mean, by bootstrap over pictures; None for less than two.

    Whole pictures are drawn, because objects of one picture are alike.
    """
    return _resampled([(one.image, value(one)) for one in records], seed)


def _resampled(values: Sequence[tuple[str, float]], seed: int) -> tuple[float, float] | None:
    """Return the interval of the mean of values, each of a picture."""
    pictures: dict[str, list[float]] = {}
    for picture, value in values:
        pictures.setdefault(picture, []).append(value)
    if len(pictures) < 2:
        return None
    sums = np.array([sum(some) for some in pictures.values()])
    counts = np.array([len(some) for some in pictures.values()])
    drawn = np.random.default_rng(seed).integers(0, len(sums), (RESAMPLES, len(sums)))
    low, high = np.percentile(sums[drawn].sum(1) / counts[drawn].sum(1), [2.5, 97.5])
    return round(float(low), 4), round(float(high), 4)


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Return means over instances with the interval of the IoU's, None where there is no instance.

    One that was not found counts 0, and nothing in `_matched`.
    """
    found = [one for one in records if one.found]
    means: dict[str, list[Any]] = {
        "miou": [one.iou for one in records],
        "boundary_f": [one.boundary_f for one in records],
        "miou_matched": [one.iou for one in found],
        "boundary_f_matched": [one.boundary_f for one in found],
        "recall": [one.found for one in records],
    }
    return {
        **{name: round(float(np.mean(some)), 4) if some else None for name, some in means.items()},
        "instances": len(records), "miou_interval": interval(records, lambda one: one.iou),
    }  # fmt: skip


def more_results(records: Sequence[Record]) -> dict[str, Any]:
    """Return more numbers: means by occlusion and, for sequences, J and F: JSON-able."""
    kept = ("instances", "miou", "boundary_f", "miou_interval")
    hidden = {name: summary(some) for name, some in by_occlusion(records).items()}
    found: dict[str, Any] = {
        "boundary_f_interval": interval(records, lambda one: one.boundary_f),
        "by_occlusion": {name: {key: row[key] for key in kept} for name, row in hidden.items()},
    }
    davis = _j_and_f(records)
    return found | ({"davis": davis} if davis else {})


def _j_and_f(records: Sequence[Record]) -> dict[str, Any]:
    """Average DAVIS's J and F over an object's frames, and then over objects; {} without any.

    Returns:
        `j`, `f`, `j_and_f`, and how many `objects` and `sequences` there are.

    """
    objects: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for one in records:
        if one.davis_f is not None:
            objects.setdefault((one.sequence, one.track_id), []).append((one.iou, one.davis_f))
    if not objects:
        return {}
    j, f = np.mean([np.mean(frames, axis=0) for frames in objects.values()], axis=0).tolist()
    return {
        "j": round(j, 4), "f": round(f, 4), "j_and_f": round((j + f) / 2, 4),
        "objects": len(objects), "sequences": len({sequence for sequence, _ in objects}),
    }  # fmt: skip


def write_run(path: Path, result: Mapping[str, Any], records: Sequence[Record]) -> None:
    """Keep an evaluation, for reports and comparisons."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {"format": 1, "result": dict(result), "records": [asdict(one) for one in records]}
    path.write_text(json.dumps(values) + "\n", encoding="utf-8")


def is_run(path: Path) -> bool:
    """Whether a file is what `write_run` keeps."""
    try:
        read_run(path)
    except AutolabelError:
        return False
    return True


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
        why = one_line(f"{type(error).__name__}: {error}")[:120]
        raise AutolabelError(f"{path} is no evaluation that --save wrote: {why}") from error
    return run.result, run.records


def paired(first: Sequence[Record], second: Sequence[Record], seed: int = 0) -> dict[str, Any]:
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
    for one in first:
        before.setdefault(one.instance, []).append(one)
    pairs = [(before[one.instance].pop(0), one) for one in second if before.get(one.instance)]
    if not pairs:
        raise AutolabelError("the two runs have no instance in common: evaluate the same truth")
    gain = np.array([after.iou - old.iou for old, after in pairs])
    values = [(old.image, one) for (old, _), one in zip(pairs, gain.tolist(), strict=True)]
    return {
        "instances": len(pairs), "only_in_one": len(first) + len(second) - 2 * len(pairs),
        "miou_gain": round(float(gain.mean()), 4), "miou_gain_interval": _resampled(values, seed),
        "better": int((gain > 0.01).sum()), "worse": int((gain < -0.01).sum()),
        # Two-sided; without any difference there is nothing to test.
        "p_value": float(f"{wilcoxon(gain).pvalue:.3g}") if np.any(gain != 0) else None,
    }  # fmt: skip
