"""Fit the risk model: `python -m tasks.risk_fit` labels rendered drives and learns from the truth.

Drives are labeled by the compact model with boxes as a detector gives them (jittered truth). Whole
drives are held out, because frames of one drive look alike.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sam2_core.types import Boxes
from tasks.risk import BAD_IOU, WEIGHTS_PATH, RiskModel, measure_frames
from tasks.risk_features import COLUMN, FEATURES, Numbers
from tasks.tables import LabeledFrame
from tasks.types import FrameRef

if TYPE_CHECKING:
    from sam2_core.segmenter import Segmenter
    from tasks.scenes.types import Frame


# What takes part in the score: what is wrong with the mask itself. The other features are reasons
# to look, but on other drives they mislead a fit from few of them.
FITTED = (
    "low_predicted_iou", "unstable", "low_object_score", "empty", "spill", "underfill",
    "fragmented", "box_mismatch", "overlap", "tiny", "flicker",
)  # fmt: skip


def fit(features: Numbers, bad: Numbers, decay: float = 0.03) -> RiskModel:
    """Fit a logistic model whose weights are not negative: more doubt is never less risk.

    Args:
        features: float (N, len(FEATURES)).
        bad: float (N,), 1 where the mask is bad.
        decay: weight of the squared weights, for features of unit spread.

    """
    from scipy.optimize import minimize

    chosen = [COLUMN[name] for name in FITTED]
    values = features[:, chosen].astype(np.float64)
    scale = values.std(axis=0) + 1e-3
    x = values / scale

    def loss(theta: Numbers) -> tuple[float, Numbers]:
        odds = x @ theta[:-1] + theta[-1]
        error = 1 / (1 + np.exp(-odds.clip(-30, 30))) - bad
        total = np.logaddexp(0, odds).sum() - bad @ odds
        total += 0.5 * decay * len(x) * theta[:-1] @ theta[:-1]
        gradient = np.append(x.T @ error + decay * len(x) * theta[:-1], error.sum())
        return float(total), gradient

    bounds = [(0, None)] * len(chosen) + [(None, None)]
    found = minimize(loss, np.zeros(len(chosen) + 1), jac=True, method="L-BFGS-B", bounds=bounds)
    weights = np.zeros(len(FEATURES))
    weights[chosen] = found.x[:-1] / scale
    return RiskModel(tuple(weights.tolist()), float(found.x[-1]))


def auroc(scores: Numbers, bad: Numbers) -> float:
    """Area under the ROC curve: the chance that a bad one scores higher than a good one."""
    from scipy.stats import rankdata

    positives = float(bad.sum())
    negatives = len(bad) - positives
    if not positives or not negatives:
        return float("nan")
    ranks = rankdata(scores)
    return float((ranks[bad > 0].sum() - positives * (positives + 1) / 2) / positives / negatives)


def found_within(scores: Numbers, bad: Numbers, share: float = 0.1) -> float:
    """Share of the bad ones among the riskiest `share` of all."""
    chosen = np.argsort(-scores, kind="stable")[: max(1, round(share * len(scores)))]
    return float(bad[chosen].sum() / max(bad.sum(), 1))


def collect(
    drives: Sequence[tuple[Sequence[LabeledFrame], Sequence[Numbers]]],
) -> tuple[Numbers, Numbers]:
    """Features and badness of all instances of labeled drives with their true IoUs."""
    features = [values for frames, _ in drives for values in measure_frames(frames)]
    ious = [one for _, truth in drives for one in truth]
    return np.concatenate(features), (np.concatenate(ious) < BAD_IOU).astype(np.float64)


def label_drive(
    segmenter: Segmenter, seed: int, frames: int, size_hw: tuple[int, int]
) -> tuple[list[LabeledFrame], list[Numbers]]:
    """Label a rendered drive with boxes like a detector's; return labels and their true IoUs.

    Args:
        segmenter: the model.
        seed: of the drive and of the boxes' errors.
        frames: how many.
        size_hw: of the pictures.

    """
    from tasks.scenes import render_sequence
    from tasks.segment import segment_frames

    rng = np.random.default_rng([seed, 77])
    rendered = list(render_sequence(seed, frames, size_hw))
    pictures = {one.index: one.scene.image for one in rendered}
    jobs = [
        (FrameRef(f"drive{seed}", "", one.index, None, "", size_hw), detected(one, rng))
        for one in rendered
    ]
    labeled = list(segment_frames(segmenter, jobs, lambda frame: pictures[frame.index]))
    return labeled, [_true_ious(one, frame) for one, frame in zip(labeled, rendered, strict=True)]


def detected(frame: Frame, rng: np.random.Generator) -> Boxes:
    """Boxes as a detector gives them: sides off by 4% of the box, scores that know a little."""
    boxes = np.array([one.box_xyxy_px for one in frame.scene.instances], np.float32).reshape(-1, 4)
    extent = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
    jitter = rng.normal(0, 0.04, boxes.shape)
    scores = (1 - np.abs(jitter).mean(axis=1) * 5 - rng.uniform(0, 0.3, len(boxes))).clip(0.3, 1)
    tracks = np.array([one.track_id for one in frame.scene.instances], np.int64)
    labels = tuple(one.label for one in frame.scene.instances)
    moved = (boxes + extent * jitter).astype(np.float32)
    return Boxes(moved, scores.astype(np.float32), labels, tracks, "jittered")


def _true_ious(labeled: LabeledFrame, frame: Frame) -> Numbers:
    from pycocotools import mask as coco_mask

    if labeled.masks is None:
        return np.zeros(0)
    size_hw = frame.scene.size_hw
    result = []
    for rle, instance in zip(labeled.masks.rle, frame.scene.instances, strict=True):
        made = {"counts": rle, "size": list(size_hw)}
        true = {**instance.rle(size_hw)}
        true["counts"] = true["counts"].encode()
        result.append(float(coco_mask.iou([made], [true], [0])[0, 0]))
    return np.array(result)


def main(drives: int = 15, frames: int = 3, size_hw: tuple[int, int] = (720, 1280)) -> None:
    """Fit on two thirds of the drives, report on the rest, write the weights."""
    from rich.progress import track

    from tasks.model import choose_model, warm_segmenter

    choice = choose_model("compact", "onnxruntime")
    segmenter = warm_segmenter(choice)
    labeled = [
        label_drive(segmenter, 5000 + one, frames, size_hw)
        for one in track(range(drives), "labeling drives")
    ]
    split = 2 * drives // 3
    features, bad = collect(labeled[:split])
    held_out, truth = collect(labeled[split:])
    model = fit(features, bad)
    risk = model.risk(held_out)
    figures = {
        "instances": len(truth),
        "share_bad": round(float(truth.mean()), 4),
        "auroc": round(auroc(risk, truth), 4),
        "auroc_of_predicted_iou_alone": round(auroc(held_out[:, 0], truth), 4),
        "bad_found_in_riskiest_10_percent": round(found_within(risk, truth), 4),
        "most_that_10_percent_can_find": round(min(1.0, 0.1 / max(float(truth.mean()), 1e-9)), 4),
    }
    stamp = choice.stamp
    origin = f"{stamp.name} {stamp.checkpoint_sha256[:12]}, {split} rendered drives"
    save(model, origin, figures, WEIGHTS_PATH)
    print(json.dumps(figures, indent=1))  # noqa: T201 - this is a script's result


def save(model: RiskModel, fitted_on: str, figures: dict[str, Any], path: Path) -> None:
    """Write the weights with where they come from."""
    values = {
        "features": list(FEATURES), "weights": [round(w, 6) for w in model.weights],
        "offset": round(model.offset, 6), "fitted_on": fitted_on, "held_out": figures,
    }  # fmt: skip
    path.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    main()
