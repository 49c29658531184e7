"""A picture of a benchmark run: speed-ups, where the time goes, and batch curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

OURS, OTHERS, LINES = "#2563eb", "#9ca3af", ("#2563eb", "#9ca3af", "#f59e0b", "#10b981")
STAGE_COLOURS = ("#94a3b8", "#cbd5e1", "#2563eb", "#7c3aed", "#10b981")


def plot_results(results: dict[str, Any], path: Path) -> None:
    """Write a PNG.

    Args:
        results: of `run_benchmark`.
        path: file to write.

    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8.5), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    model, frame = results["model"], results["frame"]
    size = "x".join(str(side) for side in reversed(frame["size_hw"]))
    machine = results["machine"]
    where = machine["gpus"][0] if model["device"] != "cpu" and machine["gpus"] else machine["cpu"]
    figure.suptitle(
        f"{model['preset']} {model['precision']} on {where} ({machine['cores']} cores), "
        f"{model['backend']}; {frame['boxes']} boxes, {size}",
        fontsize=13,
    )
    _bars(
        axes[0, 0], results.get("decoder", {}), f"Decoder, {frame['boxes']} boxes", model["graph"]
    )
    _bars(axes[0, 1], results.get("whole_frame", {}), "Whole frame: file to masks", "autolabel")
    _stages(axes[1, 0], results.get("stages", {}))
    _curves(axes[1, 1], results)
    figure.savefig(path, format="png")


def _label(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:.2f} s" if milliseconds >= 1000 else f"{milliseconds:.3g} ms"


def _bars(axes: Any, timings: dict[str, Any], title: str, ours: str) -> None:
    """Slowest first; every bar says its time and how many times faster than the first it is."""
    axes.set_title(title, loc="left", fontweight="bold")
    if not timings:
        axes.text(0.5, 0.5, "not measured", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    order = sorted(timings, key=lambda name: -timings[name]["median_ms"])
    values = [timings[name]["median_ms"] for name in order]
    colours = [OURS if name == ours or name.startswith("autolabel") else OTHERS for name in order]
    spread = [
        [value - timings[name]["low_ms"] for name, value in zip(order, values, strict=True)],
        [timings[name]["high_ms"] - value for name, value in zip(order, values, strict=True)],
    ]
    positions = range(len(order))
    axes.barh(positions, values, color=colours, xerr=spread, ecolor="#374151", capsize=3)
    for position, value in zip(positions, values, strict=True):
        text = _label(value) + (f"   {values[0] / value:.1f}x" if position else "")
        axes.annotate(
            text, (max(value, spread_end(spread, position, value)), position),
            xytext=(6, 0), textcoords="offset points", va="center",
        )  # fmt: skip
    axes.set_yticks(positions, [name.replace("_", "\n", 1).replace("_", " ") for name in order])
    axes.invert_yaxis()
    ends = [value + more for value, more in zip(values, spread[1], strict=True)]
    axes.set_xlim(0, max(ends) * 1.35)
    axes.set_xlabel("ms, median; whiskers: middle 80% of the runs")
    axes.spines[["top", "right"]].set_visible(False)


def spread_end(spread: list[list[float]], position: int, value: float) -> float:
    """Return where a bar's upper whisker ends."""
    return value + spread[1][position]


def _stages(axes: Any, stages: dict[str, Any]) -> None:
    total = sum(stage["median_ms"] for stage in stages.values())
    axes.set_title(f"One frame, stage by stage: {_label(total)}", loc="left", fontweight="bold")
    names = list(stages)
    values = [stages[name]["median_ms"] for name in names]
    axes.barh(names, values, color=STAGE_COLOURS[: len(names)])
    for position, value in enumerate(values):
        axes.annotate(
            f"{_label(value)}   {value / total:.0%}", (value, position), xytext=(6, 0),
            textcoords="offset points", va="center",
        )  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlim(0, max(values) * 1.35)
    axes.set_xlabel("ms, median")
    axes.spines[["top", "right"]].set_visible(False)


def _curves(axes: Any, results: dict[str, Any]) -> None:
    axes.set_title("Time per box or image against the batch", loc="left", fontweight="bold")
    curves = {f"decoder, {name}": sweep for name, sweep in results.get("decoder_sweep", {}).items()}
    curves["encoder"] = results.get("encoder_sweep", {})
    curves = {name: sweep for name, sweep in curves.items() if sweep}
    if not curves:
        axes.text(0.5, 0.5, "sweeps were not asked for", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    sizes: set[int] = set()
    for (name, sweep), colour in zip(curves.items(), _colours(curves), strict=True):
        batch = [int(size) for size in sweep]
        each = [sweep[str(size)]["median_ms"] / size for size in batch]
        axes.plot(batch, each, marker="o", color=colour, label=name)
        sizes.update(batch)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted(sizes), [str(size) for size in sorted(sizes)])
    axes.minorticks_off()
    axes.set_xlabel("boxes (or images) in one call")
    axes.set_ylabel("ms per box (or image)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _colours(curves: dict[str, Any]) -> list[str]:
    """Give the published graph grey and the encoder orange, wherever they stand."""
    fixed = {"decoder, published": OTHERS, "encoder": LINES[2]}
    free = iter((OURS, LINES[3], "#7c3aed", "#ef4444"))
    return [fixed.get(name) or next(free) for name in curves]
