"""`python -m lab.bench`: the model on one frame, side by side with other ways to run it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from lab.bench.session import BenchOptions

PEER_NAMES = ("torch eager", "transformers eager", "transformers compiled")
QUICK: dict[str, Any] = {"repeats": 3, "budget_s": 8.0, "peers": ("torch eager",)}


@click.command("python -m lab.bench")
@click.option("--model", default="compact", help="Preset, folder, checkpoint, or random:PRESET.")
@click.option("--backend", default="auto", help="auto, onnxruntime, tensorrt, torch, ...")
@click.option("--precision", type=click.Choice(["auto", "fp32", "fp16"]), default="auto")
@click.option("--num-boxes", type=click.IntRange(min=1), default=135)
@click.option("--repeats", type=click.IntRange(min=1), help="Rounds of every comparison.")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    type=click.Choice([*PEER_NAMES, "none"]),
    help="Others to run beside it [default: all that are installed].",
)
@click.option("--quick", is_flag=True, help="Under two minutes: few repeats, one peer.")
def command(**given: Any) -> None:
    """Measure decoder and whole frames, in turns with how others run the same model.

    Prints one JSON object. Everything is timed until its result is on the host; times are medians.
    """
    from flows.cli.display import stderr_console, telling
    from lab.bench.frame import rendered_frame
    from lab.bench.run import run_benchmark

    console = stderr_console()
    options = _options(given)
    with telling(console, "preparing the frame") as tell:
        frame = rendered_frame(given["num_boxes"])
        results = run_benchmark(frame, options, lambda text: tell(f"measuring: {text}"))
    click.echo(json.dumps(results))


def _options(given: dict[str, Any]) -> BenchOptions:
    from lab.bench.session import BenchOptions

    options = BenchOptions(given["model"], given["backend"], given["precision"])
    if given["quick"]:
        options = replace(options, **QUICK)
    if given["repeats"]:
        options = replace(options, repeats=given["repeats"])
    if given["peers"]:
        options = replace(options, peers=tuple({*given["peers"]} - {"none"}))
    return options


if __name__ == "__main__":
    command()
