"""Fit the risk model: `python -m lab.risk_fit` labels rendered drives, learns from the truth.

Half of the labels come from the true boxes, half from the bundled detector's, which is what users
have. Figures are of drives that the fit has not seen (cross-validation over whole drives, because
frames of one drive look alike); the weights that are written are fitted on all of them. What they
say is calibrated on further drives and on photographs, which they have not seen.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lab.risk_drives import PHOTOGRAPHS
from lab.risk_figures import auroc, figures
from sam2_core.types import IntArray
from tasks.risk.compute_risk import (
    BAD_IOU,
    COLUMN,
    FEATURES,
    WEIGHTS_PATH,
    Calibration,
    RiskModel,
    calibration_error,
    measure_frames,
)
from tasks.risk.geometry import Numbers

if TYPE_CHECKING:
    from lab.risk_drives import Drive

FOLDS = 6
# A model whose masks are all stable gives instability any weight; with one that is less sure every
# label would then have the highest risk, and no order.
MOST_WEIGHT = 12.0
MOST_KNOTS, FEWEST_OF_A_KNOT = 20, 40


def fit(features: Numbers, bad: Numbers, decay: float = 0.003) -> RiskModel:
    """Fit a logistic model; weights from 0 (more doubt is never less risk) to `MOST_WEIGHT`.

    Args:
        features: float (N, len(FEATURES)).
        bad: float (N,), 1 where the mask is bad.
        decay: weight of the squared weights, for features of unit spread.

    """
    from scipy.optimize import minimize

    values = features.astype(np.float64)
    scale = values.std(axis=0) + 1e-3
    x = values / scale

    def loss(theta: Numbers) -> tuple[float, Numbers]:
        odds = x @ theta[:-1] + theta[-1]
        error = 1 / (1 + np.exp(-odds.clip(-30, 30))) - bad
        total = np.logaddexp(0, odds).sum() - bad @ odds
        total += 0.5 * decay * len(x) * theta[:-1] @ theta[:-1]
        gradient = np.append(x.T @ error + decay * len(x) * theta[:-1], error.sum())
        return float(total), gradient

    count = x.shape[1]
    bounds = [*((0, MOST_WEIGHT * one) for one in scale), (None, None)]
    found = minimize(loss, np.zeros(count + 1), jac=True, method="L-BFGS-B", bounds=bounds)
    return RiskModel(tuple((found.x[:-1] / scale).tolist()), float(found.x[-1]))


def unseen_risk(features: Numbers, bad: Numbers, drives: IntArray) -> Numbers:
    """Risk of each instance by a model that was fitted on other drives: float (N,)."""
    fold = np.unique(drives, return_inverse=True)[1] % FOLDS
    risk = np.zeros(len(bad))
    for one in range(FOLDS):
        rest = fold != one
        risk[~rest] = fit(features[rest], bad[rest]).risk(features[~rest])
    return risk


def collect(drives: Sequence[Drive]) -> tuple[Numbers, Numbers, IntArray]:
    """Features, badness and drive number of all instances of labeled drives."""
    features = [np.concatenate(measure_frames(one.frames)) for one in drives]
    ious = [np.concatenate(one.true_ious) for one in drives]
    of = np.concatenate(
        [np.full(len(rows), one.seed) for one, rows in zip(drives, ious, strict=True)]
    )
    return np.concatenate(features), (np.concatenate(ious) < BAD_IOU).astype(np.float64), of


def report(
    drives: Sequence[Drive], features: Numbers, bad: Numbers, of: IntArray
) -> dict[str, Any]:
    """Figures on unseen drives, by what prompted the model."""
    risk = unseen_risk(features, bad, of)
    prompt = np.concatenate([[one.prompt] * sum(map(len, one.true_ious)) for one in drives])
    alone = features[:, COLUMN["low_predicted_iou"]]
    by_prompt = {name: prompt == name for name in dict.fromkeys(one.prompt for one in drives)}
    return {name: figures(risk[rows], alone[rows], bad[rows]) for name, rows in by_prompt.items()}


def fit_calibration(odds: Numbers, bad: Numbers) -> Calibration:
    """Fit to log-odds (N,) and badness (N,), 1 or 0, of labels that the model has not seen.

    Labels are taken together by their order first, so that no knot stands on a few of them; the
    shares count half a bad and half a good label more than there are (Jeffreys), so that
    nothing is certain.
    """
    from sklearn.isotonic import IsotonicRegression

    order = np.argsort(odds, kind="stable")
    parts = np.array_split(order, min(MOST_KNOTS, max(1, len(odds) // FEWEST_OF_A_KNOT)))
    middle = np.array([odds[part].mean() for part in parts])
    share = np.array([(bad[part].sum() + 0.5) / (len(part) + 1) for part in parts])
    weight = np.array([len(part) for part in parts], np.float64)
    level = IsotonicRegression().fit(middle, share, sample_weight=weight).predict(middle)
    _, of = np.unique(level.round(3), return_inverse=True)
    total = np.bincount(of, weight)
    return Calibration(
        tuple((np.bincount(of, weight * middle) / total).tolist()),
        tuple((np.bincount(of, weight * share) / total).tolist()),
    )


def calibrate(model: RiskModel, drives: Sequence[Drive]) -> tuple[Calibration, dict[str, Any]]:
    """Calibrate a model on drives that it has not seen.

    Returns:
        The calibration; figures of it, each drive judged by a calibration on all others.

    """
    features, bad, of = collect(drives)
    odds = model.odds(features)
    risk = np.zeros(len(bad))
    for one in np.unique(of):
        risk[of == one] = fit_calibration(odds[of != one], bad[of != one]).of(odds[of == one])
    told: dict[str, Any] = {
        "drives": len(np.unique(of)), "instances": len(bad), "share_bad": round(bad.mean(), 4)
    }  # fmt: skip
    real = of >= PHOTOGRAPHS
    for kind, rows in (("rendered", ~real), ("photographs", real)):
        if rows.any():
            told[kind] = {
                "labels": int(rows.sum()), "share_bad": round(bad[rows].mean(), 4),
                "auroc": round(auroc(odds[rows], bad[rows]), 4),
                "calibration_error": round(calibration_error(risk[rows], bad[rows]), 4),
            }  # fmt: skip
    return fit_calibration(odds, bad), told


def save(model: RiskModel, told: dict[str, Any], path: Path) -> None:
    """Write the weights with where they come from."""
    knots = model.calibration or Calibration((0.0,), (0.5,))
    values = {
        "features": list(FEATURES), "weights": [round(w, 6) for w in model.weights],
        "offset": round(model.offset, 6),
        "calibration": {name: [round(v, 4) for v in row] for name, row in asdict(knots).items()},
        "fitted_on": model.fitted_on, **told,
    }  # fmt: skip
    path.write_text(json.dumps(values, indent=1) + "\n")


def main() -> None:
    """Label, fit, report, write the weights."""
    from rich.progress import Progress

    from lab.risk_drives import (
        FIRST_SEED,
        SIZE_HW,
        Models,
        labeled_drives,
        labeled_photographs,
    )
    from sam2_core.cache import cache_folder
    from tasks.boxes.detector_files import resolve_detector
    from tasks.boxes.detectors import load_detector
    from tasks.masks.model import choose_model, load_segmenter

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--drives", type=int, default=36, help="how many (%(default)s)")
    parser.add_argument("--frames", type=int, default=3, help="of each drive (%(default)s)")
    parser.add_argument("--model", default="compact", help="makes the masks (%(default)s)")
    parser.add_argument("--detector", default="compact", help="finds boxes (%(default)s)")
    parser.add_argument("--out", type=Path, default=WEIGHTS_PATH, help="file of the weights")
    parser.add_argument(
        "--held-out", type=int, default=16, help="drives for calibration (%(default)s)"
    )
    parser.add_argument(
        "--photographs", type=Path, help="folder of instances.json and images, for calibration"
    )
    chosen = parser.parse_args()
    choice = choose_model(chosen.model, "onnxruntime")
    checksums = (choice.stamp.checkpoint_sha256, resolve_detector(chosen.detector).sha256)
    key = "-".join(one[:12] for one in checksums)
    models = Models(load_segmenter(choice), load_detector(chosen.detector), key)

    def labeled(first: int, count: int) -> list[Drive]:
        with Progress() as progress:
            seeds = range(FIRST_SEED + first, FIRST_SEED + first + count)
            found = labeled_drives(models, cache_folder() / "risk", seeds, chosen.frames)
            pairs = progress.track(found, count, description="labeling drives")
            return [one for pair in pairs for one in pair]

    drives = labeled(0, chosen.drives)
    features, bad, of = collect(drives)
    origin = (
        f"{choice.stamp.name} {checksums[0][:12]}, {chosen.drives} rendered drives of "
        f"{chosen.frames} frames {SIZE_HW[1]}x{SIZE_HW[0]}, true boxes and detector's"
    )
    model = replace(fit(features, bad), fitted_on=origin)
    told: dict[str, Any] = {"held_out": report(drives, features, bad, of)}
    unseen = labeled(chosen.drives, chosen.held_out)
    if chosen.photographs:
        found = chosen.photographs / "instances.json", chosen.photographs / "images"
        unseen += labeled_photographs(models, *found)
    calibration, told["calibrated_on"] = calibrate(model, unseen)
    save(replace(model, calibration=calibration), told, chosen.out)
    print(json.dumps(told, indent=1))  # noqa: T201 - this is a script's result


if __name__ == "__main__":
    main()
