"""Learning curves as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PANELS = (
    ("Mask model: loss", ("mask/loss",)),
    ("Mask model: IoU by prompt", ("mask/box_iou", "mask/point_iou", "mask/refined_iou")),
    ("Detector: losses", ("detector/class", "detector/box")),
)


def plot_curves(curves: list[dict[str, Any]], path: Path, smooth: int = 5) -> None:
    """Plot points of `Run.curves` over the minutes of training to a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, names) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        for name in names:
            points = [(p["seconds"] / 60, p[name]) for p in curves if name in p]
            if not points:
                continue
            minutes, values = zip(*points, strict=True)
            window = [values[max(0, i - smooth + 1) : i + 1] for i in range(len(values))]
            mean = [sum(w) / len(w) for w in window]
            (line,) = axes.plot(minutes, mean, label=name.split("/")[1].replace("_", " "))
            axes.plot(minutes, values, color=line.get_color(), alpha=0.25, linewidth=0.8)
        axes.set_title(title)
        axes.set_xlabel("minutes of training")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    figure.savefig(path, dpi=110)
