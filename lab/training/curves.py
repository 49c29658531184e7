"""Learning curves as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Title, which of the curves it shows.
PANELS = (
    ("Mask model: loss", "mask", ("loss",)),
    (
        "Mask model: IoU by prompt",
        "mask",
        ("box_iou", "point_iou", "refined_iou", "between_box_iou"),
    ),
    ("Detector: losses", "detector", ("class", "box")),
)

LABELS = {"between_box_iou": "box iou, whole frames between"}


def plot_curves(curves: dict[str, list[dict[str, Any]]], path: Path, smooth: int = 5) -> None:
    """Plot the points of each job's `Run.curves` over the minutes of training to a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [panel for panel in PANELS if panel[1] in curves]
    figure = Figure(figsize=(4 * len(panels), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, job, names) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        for name in names:
            points = [(p["seconds"] / 60, p[name]) for p in curves[job] if name in p]
            if not points:
                continue
            minutes, values = zip(*points, strict=True)
            window = [values[max(0, i - smooth + 1) : i + 1] for i in range(len(values))]
            mean = [sum(w) / len(w) for w in window]
            (line,) = axes.plot(minutes, mean, label=LABELS.get(name, name.replace("_", " ")))
            axes.plot(minutes, values, color=line.get_color(), alpha=0.25, linewidth=0.8)
        axes.set_title(title)
        if "loss" in title:
            axes.set_yscale("log")
        axes.set_xlabel("minutes of training")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    figure.savefig(path, dpi=110)
