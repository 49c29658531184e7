"""From a model's log-odds to a chance that means something, without changing the order of labels.

Two maps, both strictly increasing, so that no two labels become equal that were not:

- `Calibration` comes with the weights. It goes through the shares of bad labels that were found on
  drives that the weights have not seen (isotonic regression).
- `Recalibration` comes from a dataset's own decisions, of which there are few: two numbers (Platt).
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.risk.geometry import Numbers

# Beyond what the fit has seen the chance goes on towards 0 and 1, ever more slowly: half of the
# rest of the way in so many log-odds. Real footage is much stranger than rendered footage, and
# labels that are all "certainly bad" would have no order.
TAIL_ODDS = 10.0
_CERTAIN = 1e-6


@dataclass(frozen=True)
class Calibration:
    """A strictly increasing line through knots.

    Attributes:
        odds: log-odds that a model gives, strictly increasing, one at least.
        risk: share of bad labels there, strictly increasing, between 0 and 1.

    """

    odds: tuple[float, ...]
    risk: tuple[float, ...]

    def of(self, odds: Numbers) -> Numbers:
        """Chance that labels are bad, by their log-odds (N,): float64 (N,)."""
        first, last = self.odds[0], self.odds[-1]
        inside = np.interp(odds, self.odds, self.risk)
        below = TAIL_ODDS / (TAIL_ODDS + (first - odds).clip(0))
        above = TAIL_ODDS / (TAIL_ODDS + (odds - last).clip(0))
        result = np.where(odds < first, self.risk[0] * below, inside)
        return np.asarray(np.where(odds > last, 1 - (1 - self.risk[-1]) * above, result))


@dataclass(frozen=True)
class Recalibration:
    """What people's decisions on a dataset say about its risk: slope and offset in log-odds.

    Attributes:
        slope: above 0; under 1 the risk was too sure of itself.
        offset: above 0: more labels are wrong than the risk said.
        decisions: how many it was fitted to.

    """

    slope: float = 1.0
    offset: float = 0.0
    decisions: int = 0

    def of(self, risk: Numbers) -> Numbers:
        """Chance that a person finds a label wrong, by its risk (N,) from the model."""
        return sigmoid(self.slope * logit(risk) + self.offset)

    def before(self, risk: Numbers) -> Numbers:
        """Go back to the model's own risk."""
        return sigmoid((logit(risk) - self.offset) / self.slope)

    def after(self, other: Recalibration) -> tuple[float, float]:
        """Slope and offset that lead from what `other` has made of a risk to what this makes."""
        slope = self.slope / other.slope
        return slope, self.offset - slope * other.offset

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Recalibration:
        """Read what was stored."""
        return Recalibration(
            float(values["slope"]), float(values["offset"]), int(values["decisions"])
        )

    @staticmethod
    def fit(risk: Numbers, wrong: Numbers) -> Recalibration:
        """Fit to the model's risk (N,) and to decisions (N,), 1 where a label was wrong.

        Raises:
            ValueError: labels of a higher risk were not wrong more often, or all were the same.

        """
        if len(np.unique(wrong)) < 2:
            raise ValueError("all of them are the same")
        found = _logistic().fit(logit(risk)[:, None], wrong)
        slope, offset = float(found.coef_[0, 0]), float(found.intercept_[0])
        if slope <= 0:
            raise ValueError("labels of a higher risk were not wrong more often")
        return Recalibration(slope, offset, len(wrong))

    @staticmethod
    def unseen(risk: Numbers, wrong: Numbers) -> Numbers:
        """Chance of each label (N,) by a fit to the others, which it has not seen."""
        from sklearn.model_selection import StratifiedKFold, cross_val_predict

        split = StratifiedKFold(5, shuffle=True, random_state=0)
        x = logit(risk)[:, None]
        made = cross_val_predict(_logistic(), x, wrong, cv=split, method="predict_proba")
        return np.asarray(made[:, 1])


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=100.0)


def logit(risk: Numbers) -> Numbers:
    """Log-odds of chances (N,)."""
    sure = np.asarray(risk, np.float64).clip(_CERTAIN, 1 - _CERTAIN)
    return np.asarray(np.log(sure / (1 - sure)))


def sigmoid(odds: Numbers) -> Numbers:
    """Chances of log-odds (N,)."""
    return np.asarray(1 / (1 + np.exp(-odds)))


_BINS = 10
_ORANGE, _BLUE, _GREY = "#ff6d04", "#2b7bba", "#6b7280"


def reliability(risk: Numbers, bad: Numbers) -> list[tuple[float, float, int]]:
    """Reliability diagram: of each tenth of [0, 1], mean risk, share of bad ones, and how many."""
    tenth = (risk * _BINS).astype(int).clip(0, _BINS - 1)
    rows = [(risk[tenth == one], bad[tenth == one]) for one in range(_BINS)]
    return [(float(r.mean()), float(b.mean()), len(r)) for r, b in rows if len(r)]


def calibration_error(risk: Numbers, bad: Numbers) -> float:
    """How far risk and share of bad ones are apart on the mean (expected calibration error)."""
    rows = reliability(risk, bad)
    return sum(abs(mean - share) * count for mean, share, count in rows) / max(len(risk), 1)


def _interval(share: Numbers, count: Numbers) -> tuple[Numbers, Numbers]:
    """Wilson's 95% interval of shares: one label that was wrong does not make a share certain."""
    z = 1.96
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    return np.minimum(middle - half, share), np.maximum(middle + half, share)


def reliability_picture(title: str, risks: Mapping[str, Numbers], bad: Numbers) -> bytes:
    """Draw reliability diagrams over one another, and how many labels have which risk: a PNG.

    Args:
        title: above it.
        risks: name -> float (N,), two at most; the names go into the legend with their errors.
        bad: float (N,), 1 where a label was bad.

    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 6.4), dpi=110, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    above.plot([0, 1], [0, 1], color=_GREY, linewidth=1, linestyle=":", label="as it should be")
    edges = np.linspace(0, 1, _BINS + 1)
    for (name, risk), colour in zip(risks.items(), (_ORANGE, _BLUE), strict=False):
        rows = reliability(risk, bad)
        mean, share, count = (np.array(one, np.float64) for one in zip(*rows, strict=True))
        low, high = _interval(share, count)
        error = calibration_error(risk, bad)
        above.errorbar(
            mean, share, yerr=[share - low, high - share], color=colour, marker="o", capsize=3,
            label=f"{name}: off by {error:.3f} on the mean",
        )  # fmt: skip
        below.hist(risk, bins=edges, histtype="step", color=colour, linewidth=1.5)
    above.set(ylabel="share that was wrong", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    figure.suptitle(title)
    # Above the diagram: nobody knows which of its corners is free.
    above.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    below.set(xlabel="risk", ylabel="labels")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
