"""`autolabel evaluate`: masks and boxes against ground truth."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tasks.wording import counted

if TYPE_CHECKING:
    from tasks.lab.evaluate import Detect, Segment

NUMBERS = ("miou", "boundary_f", "miou_matched", "recall", "ap50")


@click.command()
@click.argument("truth", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--images",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the truth's images.",
)
@click.option(
    "--model",
    default="compact",
    show_default=True,
    help="compact, tiny, small, base_plus, large, an exported model's folder or a checkpoint.",
)
@click.option(
    "--prompt",
    type=click.Choice(["boxes", "detector"]),
    default="boxes",
    show_default=True,
    help="Prompt with the true boxes, or with the detector's.",
)
@click.option("--detector", default="compact", show_default=True, help="As for `label`.")
@click.option(
    "--min-score", type=click.FloatRange(0, 1), default=0.05, show_default=True,
    help="Least score of a detected box; average precision needs the low ones too.",
)  # fmt: skip
@click.option(
    "--baseline",
    type=click.Choice(["box", "grabcut"]),
    help="No model: fill the box, or GrabCut started from it.",
)
@click.option(
    "--whole-frames", is_flag=True,
    help="Segment whole frames with a model that has close-ups, which `label` prefers.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    truth: Path,
    images: Path,
    model: str,
    prompt: str,
    detector: str,
    min_score: float,
    baseline: str | None,
    whole_frames: bool,
    as_json: bool,
) -> None:
    """Measure masks and boxes against TRUTH, a COCO instances json.

    `miou` and `boundary_f` are means over all true instances, one that was not found counting 0;
    boundary F allows 0.2% of the diagonal (3 px at 1280x720). With true boxes, the boxes judged by
    `ap50` are those of the masks. Exits with 1 when some images could not be measured.
    """
    from tasks.dataset.coco_truth import load_truth
    from tasks.lab.evaluate import evaluate

    loaded = load_truth(truth)
    detect = _detector(detector, min_score) if prompt == "detector" else None
    segment, name = _segmenter(model, baseline, False if whole_frames else None)
    result: dict[str, Any] = {}
    from flows.cli.display import stderr_console, tracked

    steps = evaluate(loaded, images, segment, detect)
    for evaluation in tracked(stderr_console(), steps, "evaluating images", len(loaded.images)):
        last = evaluation
    result = {"model": name, "prompt": prompt, **last.result()}
    if as_json:
        click.echo(json.dumps(result))
    else:
        _print(result)
    sys.exit(1 if last.failed else 0)


def _segmenter(model: str, baseline: str | None, close_ups: bool | None) -> tuple[Segment, str]:
    if baseline:
        from tasks.lab.baselines import baseline_masks

        return lambda image, boxes: baseline_masks(image, boxes, baseline), baseline
    from tasks.masks.model import choose_model, load_segmenter

    choice = choose_model(model, close_ups=close_ups)
    segmenter = load_segmenter(choice)
    return lambda image, boxes: segmenter.segment([image], [boxes])[0], choice.stamp.name


def _detector(name: str, min_score: float) -> Detect:
    from tasks.boxes.detectors import load_detector

    found = load_detector(name)
    return lambda image: found.detect([found.letterbox(image)], (), min_score)[0]


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("instances", "count", *NUMBERS, box=None)
    rows = {"all": result, **result["by_size"], **result["by_class"]}
    for name, row in rows.items():
        values = ["-" if row.get(key) is None else f"{row[key]:.3f}" for key in NUMBERS]
        table.add_row(name, str(row["instances"]), *values)
    console = Console()
    images = counted(result["images"], "image")
    console.print(f"{result['model']}, prompted by {result['prompt']}, {images}")
    console.print(table)
    for failed in result["failed_images"]:
        console.print(f"not measured: {failed['file_name']}: {failed['reason']}", style="yellow")
