"""`autolabel evaluate`: masks and boxes against ground truth."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Column

from flows.cli.common_options import (
    FILE,
    FOLDER,
    FloatRange,
    check_own,
    check_report,
    check_writable,
    json_option,
    precision_option,
    print_json,
)
from flows.cli.display import print_table, results_console, stderr_console, tracked
from sam2_core.machine import product_version
from sam2_core.trust.calibration import write_difference
from sam2_core.types import AutolabelError, Boxes, ImageArray
from tasks.dataset.coco_truth import Truth
from tasks.evaluate.evaluate import (
    OBJECT,
    Asked,
    Detect,
    clicked_masks,
    evaluate,
    find_image,
    jittered_boxes,
    open_truth,
    read_rgb,
    true_boxes,
)
from tasks.evaluate.metrics import (
    FILES,
    MARK,
    PAGE,
    Record,
    against_named,
    is_run,
    match_boxes,
    paired,
    read_run,
    write_report,
    write_run,
)
from tasks.wording import counted, one_line

NUMBERS = {
    "miou": "miou", "boundary_f": "boundary F", "miou_matched": "miou matched", "recall": "recall",
    "ap50": "box ap50", "mask_ap50": "mask ap50",
}  # fmt: skip


@click.command()
@click.argument("truth")
@click.option("--images", type=FOLDER, help="Images of the truth; not needed for a dataset.")
@click.option("--model", default="compact", help="As for `label`.")
@click.option("--backend", default="auto", help="As for `label`.")
@precision_option
@click.option(
    "--prompt",
    type=click.Choice(["boxes", "jittered", "detector", "points"]),
    default="boxes",
    help="Prompt with the true boxes, the true boxes jittered by a tenth of their sides, "
    "detected boxes, or clicks on the largest error.",
)
@click.option(
    "--clicks",
    type=click.IntRange(1, 20),
    default=1,
    help="Clicks per object, with --prompt points.",
)
@click.option("--detector", default="compact", help="As for `label`.")
@click.option(
    "--min-score",
    type=FloatRange(0, 1),
    default=0.05,
    help="Lowest score of a detected box; average precision needs low scores too.",
)
@click.option("--first-frames", is_flag=True, help="Only the first frame of each sequence.")
@click.option("--limit", type=click.IntRange(min=1), help="Measure at most this many pictures.")
@click.option(
    "--whole-frames",
    is_flag=True,
    help="Segment whole frames even if the model has close-ups.",
)
@click.option("--save", type=FILE, help="Save every instance to a file, for --against.")
@click.option(
    "--against",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Compare with a file of --save, instance by instance.",
)
@click.option("--report", type=FOLDER, help="Write a page with tables, plots and the worst masks.")
@json_option
def command(**options: Any) -> None:
    """Measure masks and boxes against TRUTH.

    TRUTH is a COCO instances json, a folder of indexed PNGs (DAVIS, MOSE, Cityscapes), or
    `dataset:NAME.FIELD`, a field of a FiftyOne dataset.

    `miou` and `boundary_f` are means over all true instances; one that was not found counts 0;
    boundary F allows 0.2% of the diagonal (3 px at 1280x720). With true boxes, the boxes judged by
    `ap50` are those of the masks. Sequences also get DAVIS's J and F. Exit code 1: some images
    could not be measured.
    """
    sys.exit(1 if run_evaluation(options) else 0)


def run_evaluation(options: dict[str, Any]) -> bool:
    """Do what `autolabel evaluate` was asked; returns whether images could not be measured."""
    _refuse_wrong_options(options)
    other = read_run(options["against"]) if options["against"] else None
    save, report = options["save"], options["report"]
    truth = open_truth(options["truth"], options["images"], first_frames=options["first_frames"])
    if options["limit"]:
        truth = Truth(truth.images[: options["limit"]], truth.categories)
    folder = options["images"] or Path("/")  # a dataset's paths are absolute
    asked, name, engine = _asked(options, classless=truth.categories == (OBJECT,))
    steps = evaluate(truth, folder, asked)
    for evaluation in tracked(stderr_console(), steps, "evaluating images", len(truth.images)):
        last = evaluation
    if len(last.failed) == len(truth.images):
        first = last.failed[0]
        raise AutolabelError(
            f"no picture could be measured ({counted(len(last.failed), 'picture')}). The first, "
            f"{first.file_name}: {first.reason}"
        )
    prompt = options["prompt"]
    if prompt == "points":
        prompt = counted(options["clicks"], "click")
    result = {"model": name, "prompt": prompt, "run": _run_facts(options, engine), **last.result()}
    if other:
        facts, records = other
        result["against"] = {name: facts.get(name) for name in ("model", "prompt", "run")}
        result["against"] |= paired(records, last.records)
    if save:
        write_run(save, result, last.records)
    if report:
        draw = partial(_draw, truth, folder, asked)
        page = write_report(report, result, last.records, draw, result.get("against"))
        click.echo(f"report: {page}", err=True)
    if not print_json(options["as_json"], result):
        _print(result)
    return bool(last.failed)


def _refuse_wrong_options(options: dict[str, Any]) -> None:
    """Refuse options that mean nothing beside the others, and files that cannot be written."""
    for option, changed, prompt in (
        ("--clicks", options["clicks"] != 1, "points"),
        ("--detector", options["detector"] != "compact", "detector"),
        ("--min-score", options["min_score"] != 0.05, "detector"),
    ):
        if changed and options["prompt"] != prompt:
            raise click.UsageError(f"{option} applies only with --prompt {prompt}")
    if options["save"]:
        if str(options["save"]) == "-":
            raise click.UsageError("--save takes a file; with --json results go to stdout")
        check_writable(files=[options["save"]])
        check_own(options["save"], is_run, "evaluation that --save wrote")
    if options["report"]:
        check_report(options["report"], PAGE, MARK, FILES)


def _run_facts(options: dict[str, Any], engine: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured and with what, to compare evaluations later."""
    kept = ("truth", "prompt", "first_frames", "limit", "whole_frames")
    more = {"points": ("clicks",), "detector": ("detector", "min_score")}.get(options["prompt"], ())
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": product_version(),
        **{name: options[name] for name in (*kept, *more) if options[name]},
        "engine": engine,
    }


def _asked(options: dict[str, Any], *, classless: bool) -> tuple[Asked, str, dict[str, Any]]:
    """Return the function that makes masks, the model's name, and its facts.

    Of a truth without classes, as in DAVIS and MOSE, every detection is of its one class.
    """
    from tasks.masks.model import choose_model, load_segmenter

    boxes = jittered_boxes if options["prompt"] == "jittered" else true_boxes
    by_detector, clicks = options["prompt"] == "detector", options["prompt"] == "points"
    found = _detector(options, classless=classless) if by_detector else None
    close_ups = False if options["whole_frames"] or clicks else None
    choice = choose_model(
        options["model"], options["backend"], options["precision"], close_ups=close_ups
    )
    segmenter = load_segmenter(choice)
    info = segmenter.backend.info
    clicked = partial(clicked_masks, segmenter, clicks=options["clicks"]) if clicks else None
    return (
        Asked(lambda image, some: segmenter.segment([image], [some])[0], boxes, found, clicked),
        choice.stamp.name,
        {**asdict(info.stamp), "device": info.device},
    )


def _detector(options: dict[str, Any], *, classless: bool) -> Detect:
    """Return what finds boxes."""
    from tasks.boxes.detectors import load_detector

    loaded = load_detector(options["detector"])

    def detect(image: ImageArray) -> Boxes:
        (found,) = loaded.detect([loaded.letterbox(image)], (), options["min_score"])
        return replace(found, labels=(OBJECT,) * len(found)) if classless else found

    return detect


def _draw(truth: Truth, folder: Path, asked: Asked, record: Record, path: Path) -> None:
    """Segment a record's picture once more, and draw its mask beside the true one."""
    image = next(one for one in truth.images if one.file_name == record.image)
    pixels = read_rgb(find_image(folder, image.file_name), image.size_hw)
    boxes, masks = asked.masks(pixels, image)
    pairs = match_boxes(image, boxes) if asked.detect else {record.row: record.row}
    row = pairs[record.row]
    write_difference(
        path, pixels, masks.rle[row], image.rle[record.row], np.array(record.box_xyxy_px)
    )


def _row(name: str, figures: dict[str, Any]) -> list[str]:
    values = ["-" if figures.get(key) is None else f"{figures[key]:.3f}" for key in NUMBERS]
    return [one_line(name), str(figures["instances"]), *values]


def _print(result: dict[str, Any]) -> None:
    console, images = results_console(), counted(result["images"], "image")
    console.print(f"{result['model']}, prompted by {result['prompt']}, {images}")
    groups = {"all": result, **result["by_size"], **result["by_class"], **result["by_occlusion"]}
    first = Column("instances", overflow="fold", min_width=12)
    print_table(
        console,
        [first, "count", *NUMBERS.values()],
        (_row(name, figures) for name, figures in groups.items()),
    )
    if result["miou_interval"]:
        low, high = result["miou_interval"]
        console.print(f"mean IoU between {low:.3f} and {high:.3f} (95%, bootstrap over pictures)")
    if davis := result.get("davis"):
        console.print(
            f"J&F {davis['j_and_f']:.3f}, J {davis['j']:.3f}, F {davis['f']:.3f} of "
            f"{counted(davis['objects'], 'object')}"
        )
    if other := result.get("against"):
        span = other["miou_gain_interval"]
        between = f" ({span[0]:+.4f} to {span[1]:+.4f})" if span else ""
        test = "" if other["p_value"] is None else f", p = {other['p_value']:g}"
        console.print(
            f"against {against_named(other)}: mean IoU {other['miou_gain']:+.4f}{between} over "
            f"{counted(other['instances'], 'instance')}, {other['better']} better, "
            f"{other['worse']} worse{test}", soft_wrap=True,
        )  # fmt: skip
        if other["only_in_one"]:
            console.print(
                f"{counted(other['only_in_one'], 'instance')} of only one of the two runs "
                "(another truth, or pictures that were not measured) not compared", style="yellow",
            )  # fmt: skip
    if others := result["detections_of_other_classes"]:
        text = f"{counted(others, 'detection')} of classes that the truth does not have"
        console.print(f"{text}: not counted", style="yellow")
    for failed in result["failed_images"]:
        text = one_line(f"not measured: {failed['file_name']}: {failed['reason']}")
        console.print(text, style="yellow", soft_wrap=True)
