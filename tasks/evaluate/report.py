"""An evaluation as a page: tables, plots and the worst cases, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.evaluate.records import Record, by_occlusion, by_size, grouped, summary
from tasks.wording import counted, one_line, plain

WORST = 12
# What a report is known by, and all that is written.
PAGE, MARK = "report.md", "![IoU](plots.png)"
FILES = ("plots.png", "worst-[0-9][0-9].png")
_FOUND, _OTHER = "#2a6f97", "#e07a5f"
# Draws a record's masks into a file: the picture, and the predicted mask beside the true one.
Draw = Callable[[Record, Path], None]


def write_report(
    folder: Path,
    result: Mapping[str, Any],
    records: Sequence[Record],
    draw: Draw | None = None,
    comparison: Mapping[str, Any] | None = None,
) -> Path:
    """Write `report.md` with its plots and pictures.

    Args:
        folder: where to; made if it is not there.
        result: what `autolabel evaluate --json` prints.
        records: every instance.
        draw: draws the worst cases; left out when None.
        comparison: with another run; see `tasks.evaluate.records.paired`.

    Returns:
        The page's path.

    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(FILES[1]):
        old.unlink()
    _plots(folder / FILES[0], records)
    lines = [
        f"# {plain(result['model'])}, prompted by {result['prompt']}", "",
        *(_measured(result["run"]) if "run" in result else []),
        f"{result['images']} pictures, {result['instances']} instances. Intervals are of 95%, by "
        "bootstrap over pictures.", "", MARK, "",
        *_numbers(result), "", *_table("size", by_size(records)), "",
        *_table("class", grouped(records, lambda one: one.label)), "",
    ]  # fmt: skip
    hidden = by_occlusion(records)
    lines += [*_table("visible", hidden), ""] if hidden else []
    lines += _compared(comparison) if comparison else []
    lines += _failed(result)
    if draw:
        lines += _worst(folder, records, draw)
    page = folder / PAGE
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return page


def _numbers(result: Mapping[str, Any]) -> list[str]:
    names = {
        "miou": "mean mask IoU", "boundary_f": "boundary F", "recall": "recall", "ap": "box AP",
        "ap50": "box AP50", "mask_ap": "mask AP", "mask_ap50": "mask AP50",
    }  # fmt: skip
    rows = [(title, result.get(key)) for key, title in names.items()]
    davis = result.get("davis") or {}
    rows += [(name, davis.get(key)) for key, name in (("j_and_f", "J&F"), ("j", "J"), ("f", "F"))]
    shown = [f"| {name} | {value:.4f} |" for name, value in rows if value is not None]
    return ["| | |", "|---|---|", *shown]


def _table(what: str, groups: Mapping[str, Sequence[Record]]) -> list[str]:
    lines = [
        f"| {what} | instances | mean IoU | | boundary F | found |",
        "|---|---|---|---|---|---|",
    ]
    for name, some in groups.items():
        row = summary(some)
        span = row["miou_interval"]
        between = f"{span[0]:.3f} to {span[1]:.3f}" if span else ""
        lines.append(
            f"| {plain(name)} | {len(some)} | {row['miou']:.4f} | {between} | "
            f"{row['boundary_f']:.4f} | {row['recall']:.3f} |"
        )
    return lines


def _compared(found: Mapping[str, Any]) -> list[str]:
    span, p_value = found["miou_gain_interval"], found["p_value"]
    between = f" ({span[0]:+.4f} to {span[1]:+.4f})" if span else ""
    test = f", Wilcoxon's p = {p_value:g}" if p_value is not None else ""
    alone = found["only_in_one"]
    more = f" {counted(alone, 'instance')} of only one run not compared." if alone else ""
    other = plain(against_named(found))
    return [
        f"Against {other}, on {found['instances']} instances of both: mean IoU "
        f"{found['miou_gain']:+.4f}{between}{test}; {found['better']} better and {found['worse']} "
        f"worse by more than 0.01.{more}", "",
    ]  # fmt: skip


def against_named(found: Mapping[str, Any]) -> str:
    """Name the other run of a comparison."""
    if not found.get("model"):
        return "the other run"
    run = found.get("run") or {}
    how = engine_named(run.get("engine") or {})
    when = f", {run['made'][:10]}" if run.get("made") else ""
    return f"{found['model']}{f' ({how})' if how else ''}, prompted by {found['prompt']}{when}"


def engine_named(engine: Mapping[str, Any]) -> str:
    """Name what ran a model: backend, precision, device and the weights."""
    if not engine:
        return ""
    weights = str(engine["checkpoint_sha256"])[:12]
    return f"{engine['backend']}, {engine['precision']}, {engine['device']}, weights {weights}"


def _measured(run: Mapping[str, Any]) -> list[str]:
    """Say what was measured, and with what."""
    how = engine_named(run.get("engine") or {})
    told = {name: value for name, value in run.items() if name not in {"engine", "made", "version"}}
    words = ", ".join(f"{name} {value}".replace("_", " ") for name, value in told.items())
    by = f"{how}; " if how else ""
    return [f"{plain(by + words)}; sam2-autolabel {run['version']}, {run['made'][:10]}.", ""]


def _failed(result: Mapping[str, Any]) -> list[str]:
    failed = result["failed_images"]
    lines = ["- " + plain(f"{one['file_name']}: {one['reason']}") for one in failed]
    return ["Not measured:", "", *lines, ""] if lines else []


def _worst(folder: Path, records: Sequence[Record], draw: Draw) -> list[str]:
    there = sorted((one for one in records if one.found), key=lambda one: one.iou)
    chosen, lost = there[:WORST], len(records) - len(there)
    lines = ["## The worst masks", "", "Green: both. Red: predicted only. Blue: true only.", ""]
    if lost:
        lines[2] += f" {counted(lost, 'instance')} without a mask not among them: not found."
    if chosen and chosen[0].iou == 1:
        return [*lines[:1], "", "None: all are the true ones to the last pixel.", ""]
    for number, one in enumerate(chosen, 1):
        name = f"worst-{number:02d}.png"
        draw(one, folder / name)
        label, image = plain(one.label), plain(one.image)
        lines += [f"![{label}]({name})", "", f"{image}, {label}, IoU {one.iou:.3f}", ""]
    return lines


def _plots(path: Path, records: Sequence[Record]) -> None:
    """Draw how IoU is distributed, by class, by size, and beside what the model predicted."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    iou = np.array([one.iou for one in records])
    axes[0, 0].hist(iou, bins=np.linspace(0, 1, 41), color=_FOUND)
    axes[0, 0].yaxis.get_major_locator().set_params(integer=True)
    axes[0, 0].set(xlabel="mask IoU", ylabel="instances", title="all instances")
    classes = sorted(grouped(records, lambda one: one.label).items(), key=lambda one: -len(one[1]))
    # A dollar would begin a formula.
    names = [one_line(name).replace("$", r"\$") for name, _ in classes[:15]]
    axes[0, 1].boxplot(
        [[one.iou for one in some] for _, some in classes[:15]], vert=False, showfliers=False,
        patch_artist=True, boxprops={"facecolor": _FOUND, "alpha": 0.4},
        medianprops={"color": _OTHER},
    )  # fmt: skip
    axes[0, 1].set_yticks(range(1, len(names) + 1), names)
    axes[0, 1].set(
        xlim=(-0.03, 1.03), xlabel="mask IoU", title="by class: quartiles, 1.5 times their distance"
    )
    dot = float(np.clip(20_000 / max(len(records), 1), 4, 36))
    side = np.sqrt([max(one.area_px, 1) for one in records])
    axes[1, 0].scatter(side, iou, s=dot, alpha=0.3, color=_FOUND, linewidths=0)
    if side.max() > 4 * side.min():  # an octave or two would have a tick at most
        axes[1, 0].set_xscale("log", base=2)
    axes[1, 0].xaxis.set_major_formatter("{x:.0f}")
    axes[1, 0].set(ylim=(-0.03, 1.03))
    axes[1, 0].set(xlabel="root of the true mask's area, px", ylabel="mask IoU", title="by size")
    found = np.array([one.found for one in records], bool)  # of the others nothing was predicted
    said = np.array([one.predicted_iou for one in records])[found]
    axes[1, 1].scatter(said, iou[found], s=dot, alpha=0.3, color=_FOUND, linewidths=0)
    axes[1, 1].plot([0, 1], [0, 1], color=_OTHER, linewidth=1)
    axes[1, 1].set(xlabel="IoU that the model predicts", ylabel="mask IoU", title="what it knows")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
