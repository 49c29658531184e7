"""`python -m lab.bench`: the model on one frame, side by side with other ways to run it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.cli.common_options import FILE, FloatRange, cache_option, json_option, precision_option

if TYPE_CHECKING:
    from lab.bench.frame import BenchFrame
    from lab.bench.session import BenchOptions

COUNT = click.IntRange(min=0)
PEER_NAMES = ("torch eager", "transformers eager", "transformers compiled")
QUICK: dict[str, Any] = {"repeats": 3, "budget_s": 8.0, "peers": ("torch eager",)}


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    try:
        width, height = (int(part) for part in text.lower().split("x"))
    except ValueError:
        raise click.BadParameter(f"expected WIDTHxHEIGHT, got {text!r}") from None
    return height, width


@click.command("python -m lab.bench")
@click.option("--model", default="compact", help="Preset, folder, checkpoint, or random:PRESET.")
@click.option("--backend", default="auto", help="auto, onnxruntime, tensorrt, torch, ...")
@precision_option
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads [default: every core].")
@click.option("--image", type=FILE, help="Frame to measure [default: a rendered street].")
@click.option(
    "--boxes",
    type=click.Path(path_type=Path),
    help="Its boxes: text (lines of `label score x1 y1 x2 y2`) or COCO json.",
)
@click.option("--size", metavar="WxH", help="Resize the frame [default: 1920x1280 where rendered].")
@click.option("--num-boxes", type=COUNT, default=135, help="Copies are added. 0: those of --boxes.")
@click.option("--decoder-chunk", type=click.IntRange(min=1), help="Boxes in a decoder call.")
@click.option("--encoder-batch", type=click.IntRange(min=1), help="Frames in an encoder call.")
@click.option("--repeats", type=click.IntRange(min=1), help="Rounds of every comparison.")
@click.option(
    "--budget",
    "budget_s",
    type=FloatRange(min=1),
    help="Seconds after which a section stops repeating.",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    type=click.Choice([*PEER_NAMES, "none"]),
    help="Others to run beside it [default: all that are installed].",
)
@click.option("--quick", is_flag=True, help="Under two minutes: few repeats, one peer.")
@cache_option
@json_option
def command(**given: Any) -> None:
    """Measure encoder, decoder and whole frames, in turns with how others run the same model.

    Everything is timed until its result is on the host; times are medians.
    """
    from flows.cli.display import stderr_console, telling
    from lab.bench.run import run_benchmark

    console = stderr_console()
    options = _options(given)
    with telling(console, "preparing the frame") as tell:
        frame = _frame(given)
        results = run_benchmark(frame, options, lambda text: tell(f"measuring: {text}"))
    if given["as_json"]:
        click.echo(json.dumps(results))
    else:
        _print(results)


def _options(given: dict[str, Any]) -> BenchOptions:
    from lab.bench.session import BenchOptions

    options = BenchOptions(
        given["model"], given["backend"], given["precision"], given["threads"],
        cache=given["cache"],
        decoder_chunk=given["decoder_chunk"],
        encoder_batch=given["encoder_batch"],
    )  # fmt: skip
    if given["quick"]:
        options = replace(options, **QUICK)
    chosen = {name: given[name] for name in ("repeats", "budget_s") if given[name] is not None}
    if given["peers"]:
        chosen["peers"] = tuple(name for name in given["peers"] if name != "none")
    return replace(options, **chosen)


def _frame(given: dict[str, Any]) -> BenchFrame:
    from lab.bench.frame import DEFAULT_SIZE_HW, frame_from_files, rendered_frame

    size = _size(given["size"])
    if (given["image"] is None) != (given["boxes"] is None):
        raise click.UsageError("--image and --boxes go together")
    if given["boxes"] is not None and given["boxes"].is_dir():
        raise click.UsageError("--boxes is a folder: it is one frame's file here")
    if given["image"] is not None:
        return frame_from_files(given["image"], given["boxes"], given["num_boxes"], size)
    return rendered_frame(given["num_boxes"] or 135, size or DEFAULT_SIZE_HW)


def _print(results: dict[str, Any]) -> None:
    from rich.console import Console

    from lab.bench.tables import tables

    console = Console()
    for part in tables(results):
        console.print(part)


if __name__ == "__main__":
    command()
