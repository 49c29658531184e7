"""How good a risk is where the truth is known: what a review of the riskiest finds, calibration."""

from __future__ import annotations

from typing import Any

import numpy as np

from sam2_core.types import IntArray
from tasks.risk.compute_risk import calibration_error, reliability
from tasks.risk.geometry import Numbers

SHARE = 0.1  # of all labels that a reviewer has time for
GOAL = 0.6  # of the bad ones, to be found in it
_DRAWS = 500


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


def figures(risk: Numbers, alone: Numbers, bad: Numbers, drives: IntArray) -> dict[str, Any]:
    """All of it, for labels that the fit has not seen.

    Args:
        risk: float (N,) in [0, 1].
        alone: float (N,), one minus the model's own predicted IoU, to compare with.
        bad: float (N,), 1 where the mask is bad.
        drives: int (N,), which drive a label is from.

    """
    low, high = _interval(risk, bad, drives)
    values = {
        **_found(risk, bad),
        "auroc_of_predicted_iou_alone": auroc(alone, bad),
        "its_95_percent_interval_low": low,
        "its_95_percent_interval_high": high,
        "share_of_riskiest_10_percent_that_is_bad": float(bad[riskiest(risk, SHARE)].mean()),
        "share_to_review_to_find_60_percent": share_to_find(risk, bad),
        "calibration_error": calibration_error(risk, bad),
    }
    rows = [
        [round(mean, 3), round(share, 3), count] for mean, share, count in reliability(risk, bad)
    ]
    return {"instances": len(bad), **_rounded(values), "risk_share_bad_count": rows}


def _found(risk: Numbers, bad: Numbers) -> dict[str, float]:
    """Count the bad ones in the riskiest tenth, and what the best order would put there."""
    found, most = found_within(risk, bad), found_within(bad, bad)
    return {
        "share_bad": float(bad.mean()),
        "auroc": auroc(risk, bad),
        "bad_found_in_riskiest_10_percent": found,
        "most_that_10_percent_can_find": most,
        "found_of_what_can_be_found": found / most if most else float("nan"),
    }


def _rounded(values: dict[str, float]) -> dict[str, float]:
    """Round, and leave out what is not defined, such as the AUROC where all are good."""
    return {name: round(value, 4) for name, value in values.items() if np.isfinite(value)}


def _interval(risk: Numbers, bad: Numbers, drives: IntArray) -> tuple[float, float]:
    """Bootstrap of `found_within` over whole drives: labels of one drive are alike."""
    rng = np.random.default_rng(0)
    rows = [np.flatnonzero(drives == one) for one in np.unique(drives)]
    found = []
    for _ in range(_DRAWS):
        drawn = np.concatenate([rows[i] for i in rng.integers(0, len(rows), len(rows))])
        found.append(found_within(risk[drawn], bad[drawn]))
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)
