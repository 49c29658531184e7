"""What `autolabel bench` shows on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

NAMES = {
    "prototype": "prototype: one box a call",
    "published": "published graph, batched",
    "restructured": "restructured, whole grid",
    "windowed": "restructured, in windows",
    "windowed_not_grown": "in windows, never grown",
}


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _comparison(title: str, timings: dict[str, Any]) -> Table:
    """Slowest first, with how many times faster than the slowest each is."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2))
    for name, side in (("", "left"), ("ms", "right"), ("spread", "right"), ("faster", "right")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    order = sorted(timings, key=lambda name: -timings[name]["median_ms"])
    slowest = timings[order[0]]["median_ms"]
    for name in order:
        timing = timings[name]
        spread = f"{_ms(timing['low_ms'])} - {_ms(timing['high_ms'])}"
        faster = f"{slowest / timing['median_ms']:.2f}x" if timing["median_ms"] else ""
        table.add_row(NAMES.get(name, name), _ms(timing["median_ms"]), spread, faster)
    return table


def _sweep(title: str, sweeps: dict[str, dict[str, Any]], unit: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2))
    table.add_column(unit, justify="right")
    for name in sweeps:
        table.add_column(f"{name}, ms", justify="right")
        table.add_column("each", justify="right")
    for size in sorted({int(size) for sweep in sweeps.values() for size in sweep}):
        cells = []
        for sweep in sweeps.values():
            timing = sweep.get(str(size))
            cells += (
                [_ms(timing["median_ms"]), _ms(timing["median_ms"] / size)] if timing else ["-"] * 2
            )
        table.add_row(str(size), *cells)
    return table


def _threads(sweep: dict[str, Any]) -> Table:
    table = Table("threads", title="CPU threads", title_justify="left", box=None, padding=(0, 2))
    for stage in ("encode", "decode"):
        table.add_column(f"{stage}, ms", justify="right")
    for count, stages in sweep.items():
        table.add_row(count, *(_ms(stages[stage]["median_ms"]) for stage in ("encode", "decode")))
    return table


def _stages(stages: dict[str, Any]) -> Table:
    table = Table(
        "stage", title="One frame, stage by stage", title_justify="left", box=None, padding=(0, 2)
    )
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    total = sum(stage["median_ms"] for stage in stages.values()) or 1.0
    for name, stage in stages.items():
        table.add_row(name, _ms(stage["median_ms"]), f"{stage['median_ms'] / total:.0%}")
    table.add_row("total", _ms(total), "")
    return table


def _heading(results: dict[str, Any]) -> Text:
    machine, model, frame = results["machine"], results["model"], results["frame"]
    height, width = frame["size_hw"]
    lines = [
        f"{model['preset']} ({model['weights']}), {model['graph']}, {model['precision']}, "
        f"{model['backend']}",
        f"{frame['boxes']} boxes, {width}x{height}: {frame['source']}",
        f"{machine['cpu']}, {machine['cores']} cores; {', '.join(machine['gpus']) or 'no GPU'}",
    ]
    load = machine["load_average_before"]
    if load is not None and machine["cores"] and load > machine["cores"] / 2:
        lines.append(
            f"the machine was busy when this began (load {load}): trust ratios more than times"
        )
    return Text("\n".join(lines))


def _summary(results: dict[str, Any]) -> Text:
    lines = []
    for key, text in (
        ("decoder_vs_published", "decoder against the published graph"),
        ("frame_vs_torch", "whole frame against PyTorch eager"),
        ("frame_windowed_vs_torch", "the same in windows"),
        ("frame_windowed_not_grown_vs_torch", "the same in windows that are not grown"),
    ):
        value = results.get(key)
        if value is None and "windowed" in key:
            continue
        lines.append(f"{text}: {'not measured' if value is None else f'{value:.2f} times faster'}")
    memory = results["memory"]
    if "beyond_loaded_mb" in memory:
        lines.append(
            f"host memory: {memory['loaded_mb']:,.0f} MB loaded, "
            f"{memory['beyond_loaded_mb']:,.0f} MB more at the peak of a frame"
        )
    if "sustained" in results:
        run = results["sustained"]
        lines.append(
            f"sustained over {run['frames']} frames: {run['ms_per_frame']:.2f} ms per frame"
        )
    for key, how in (
        ("mask_iou_same_input", "same resized image"),
        ("mask_iou_with_peers", "its own resizing"),
    ):
        for name, agreement in results[key].items():
            if agreement:
                lines.append(
                    f"masks against {name}, {how}: mean IoU {agreement['mean']:.4f}, 1st "
                    f"percentile {agreement['p1']:.4f}"
                )
    lines += [f"left out: {name}: {reason}" for name, reason in results["skipped"].items()]
    return Text("\n".join(lines))


def tables(results: dict[str, Any]) -> Iterator[RenderableType]:
    """Yield what to print for a run's results."""
    yield _heading(results)
    if results["decoder"]:
        yield _comparison(f"\nDecoder, {results['frame']['boxes']} boxes", results["decoder"])
    yield _comparison("\nWhole frame: file to COCO masks", results["whole_frame"])
    yield _stages(results["stages"])
    if results.get("decoder_sweep"):
        yield _sweep("\nDecoder, one call", results["decoder_sweep"], "boxes")
    if results.get("encoder_sweep"):
        yield _sweep("\nEncoder, one call", {"encoder": results["encoder_sweep"]}, "images")
    if results.get("thread_sweep"):
        yield _threads(results["thread_sweep"])
    yield _summary(results)
