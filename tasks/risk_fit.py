"""Fit the risk model: `python -m tasks.risk_fit` labels rendered drives and learns from the truth.

Drives are labeled by the compact model with boxes as a detector gives them (jittered truth). Whole
drives are held out, because frames of one drive look alike.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.risk import BAD_IOU, RiskModel, measure_frames, transformed
from tasks.risk_features import FEATURES, Numbers
from tasks.tables import LabeledFrame


def fit(features: Numbers, bad: Numbers, decay: float = 1e-3, steps: int = 60) -> RiskModel:
    """Fit a logistic model by Newton's method with weight decay.

    Args:
        features: float (N, F).
        bad: float (N,), 1 where the mask is bad.
        decay: weight of the squared weights.
        steps: Newton steps at most.

    """
    values = transformed(features)
    scale = values.std(axis=0) + 1e-6
    x = np.concatenate([values / scale, np.ones((len(values), 1))], axis=1)
    penalty = np.full(x.shape[1], decay * len(x))
    penalty[-1] = 0
    theta = np.zeros(x.shape[1])
    for _ in range(steps):
        p = 1 / (1 + np.exp(-(x @ theta).clip(-30, 30)))
        gradient = x.T @ (p - bad) + penalty * theta
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.diag(penalty + 1e-9)
        step = np.linalg.solve(hessian, gradient)
        theta -= step
        if np.abs(step).max() < 1e-8:
            break
    return RiskModel(tuple((theta[:-1] / scale).tolist()), float(theta[-1]))


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


def save(model: RiskModel, fitted_on: str, figures: dict[str, Any], path: Path) -> None:
    """Write the weights with where they come from."""
    values = {
        "features": list(FEATURES), "weights": [round(w, 6) for w in model.weights],
        "offset": round(model.offset, 6), "fitted_on": fitted_on, "held_out": figures,
    }  # fmt: skip
    path.write_text(json.dumps(values, indent=1) + "\n")
