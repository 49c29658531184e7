"""What `python -m lab.bench` shows on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sam2_core.devices import no_gpu

NAMES = {
    "prototype": "prototype: one box per call",
    "published": "published graph, batched",
    "restructured": "restructured, whole grid",
}


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """Names on the left, numbers on the right."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2))
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _comparison(title: str, timings: dict[str, Any]) -> Table:
    """Slowest first, with how many times faster than the slowest each is."""
    order = sorted(timings, key=lambda name: -timings[name]["median_ms"])
    slowest, rows = timings[order[0]]["median_ms"], []
    for name in order:
        timing = timings[name]
        spread = f"{_ms(timing['low_ms'])} - {_ms(timing['high_ms'])}"
        faster = f"{slowest / timing['median_ms']:.2f}x" if timing["median_ms"] else ""
        rows.append((NAMES.get(name, name), _ms(timing["median_ms"]), spread, faster))
    return _table(title, ("", "ms", "spread", "faster"), rows)


def _stages(stages: dict[str, Any]) -> Table:
    spent = {name: stage["median_ms"] for name, stage in stages.items()}
    total = sum(spent.values()) or 1.0
    rows = [(name, _ms(value), f"{value / total:.0%}") for name, value in spent.items()]
    title = "One frame, stage by stage"
    return _table(title, ("stage", "ms", "share"), [*rows, ("total", _ms(total), "")])


def _heading(results: dict[str, Any]) -> Text:
    machine, model, frame = results["machine"], results["model"], results["frame"]
    height, width = frame["size_hw"]
    lines = [
        f"{model['preset']} ({model['weights']}), {model['graph']}, {model['precision']}, "
        f"{model['backend']}",
        f"{frame['boxes']} boxes, {width}x{height}: {frame['source']}",
        f"{machine['cpu']}, {machine['cores']} cores; {', '.join(machine['gpus']) or 'no GPU'}",
    ]
    if wrong := no_gpu():
        lines.append(wrong)
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
    ):
        value = results.get(key)
        lines.append(f"{text}: {'not measured' if value is None else f'{value:.2f} times faster'}")
    memory = results["memory"]
    if "beyond_loaded_mb" in memory:
        lines.append(
            f"host memory: {memory['loaded_mb']:,.0f} MB loaded, "
            f"{memory['beyond_loaded_mb']:,.0f} MB more at the peak of a frame"
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
    yield _summary(results)
