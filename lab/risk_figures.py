"""How good a risk is where the truth is known: what a review of the riskiest finds."""

from __future__ import annotations

from typing import Any

import numpy as np

from sam2_core.types import IntArray
from tasks.risk.geometry import Numbers

SHARE = 0.1  # of all labels that a reviewer has time for
GOAL = 0.6  # of the bad ones, to be found in it


def auroc(scores: Numbers, bad: Numbers) -> float:
    """Area under the ROC curve: the chance that a bad one scores higher than a good one."""
    from scipy.stats import rankdata

    positives = float(bad.sum())
    negatives = len(bad) - positives
    if not positives or not negatives:
        return float("nan")
    ranks = rankdata(scores)
    return float((ranks[bad > 0].sum() - positives * (positives + 1) / 2) / positives / negatives)


def riskiest(scores: Numbers, share: float) -> IntArray:
    """Rows of the riskiest `share` of all, riskiest first."""
    return np.argsort(-scores, kind="stable")[: max(1, round(share * len(scores)))]


def found_within(scores: Numbers, bad: Numbers, share: float = SHARE) -> float:
    """Share of the bad ones among the riskiest `share` of all."""
    return float(bad[riskiest(scores, share)].sum() / max(bad.sum(), 1))


def share_to_find(scores: Numbers, bad: Numbers, found: float = GOAL) -> float:
    """Share of all that must be looked at, riskiest first, to find `found` of the bad ones."""
    seen = np.cumsum(bad[riskiest(scores, 1.0)])
    return float((np.searchsorted(seen, found * seen[-1] - 1e-9) + 1) / len(bad))


def figures(risk: Numbers, alone: Numbers, bad: Numbers) -> dict[str, Any]:
    """All of it, for labels that the fit has not seen.

    Args:
        risk: float (N,) in [0, 1].
        alone: float (N,), one minus the model's own predicted IoU, to compare with.
        bad: float (N,), 1 where the mask is bad.

    """
    values = {
        "share_bad": float(bad.mean()),
        "auroc": auroc(risk, bad),
        "auroc_of_predicted_iou_alone": auroc(alone, bad),
        "bad_found_in_riskiest_10_percent": found_within(risk, bad),
        "most_that_10_percent_can_find": found_within(bad, bad),
        "share_to_review_to_find_60_percent": share_to_find(risk, bad),
    }
    # What is not defined, such as the AUROC where all are good, is left out.
    told = {name: round(value, 4) for name, value in values.items() if np.isfinite(value)}
    return {"instances": len(bad), **told}
