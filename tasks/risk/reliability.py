"""Whether a risk of 0.3 means that three labels in ten are bad: figures and a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np

from tasks.risk.geometry import Numbers

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
