"""`autolabel evaluate`: masks and boxes against ground truth, or against another run."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Column

from flows.cli.commands import Command
from flows.cli.common_options import (
    FILE,
    FOLDER,
    check_report,
    check_writable,
    images_option,
    json_option,
    print_json,
    refuse,
    sources_option,
)
from flows.cli.display import (
    print_table,
    results_console,
    say,
    shown_of,
    stderr_console,
    telling,
    tracked,
)
from flows.cli.options import options_of
from flows.params import LabelParams
from sam2_core.machine import product_version
from sam2_core.redaction import redact
from sam2_core.trust.calibration import write_difference
from sam2_core.types import AutolabelError
from tasks.dataset.coco_truth import Truth, TruthImage
from tasks.dataset.schema import TRUTH_FIELD
from tasks.evaluate.evaluate import (
    Predict,
    by_boxes,
    by_detector,
    clicked_masks,
    evaluate,
    find_image,
    jittered_boxes,
    one_by_one,
    open_truth,
    read_rgb,
    true_boxes,
)
from tasks.evaluate.metrics import (
    MARK,
    NUMBERS,
    PAGE,
    FailedImage,
    Record,
    changes,
    headline,
    matched,
    paired,
    read_run,
    remarks,
    rows_of,
    write_report,
    write_run,
)
from tasks.evaluate.run_truth import SCHEME as RUN
from tasks.frames.sources import remember_sources
from tasks.wording import counted

COLUMNS = (
    "miou", "miou_interval", "boundary_f", "miou_matched", "recall", "ap50", "mask_ap50",
)  # fmt: skip
TERMS = """\
miou: IoU of masks, on average over all true instances, 0 where none was found (matched: over those
found), with its 95% interval by bootstrap over pictures. boundary F: the same of their outlines,
within 0.2% of the diagonal. recall: share that was found, by a box of its class with an IoU of 0.5.
ap50: COCO's average precision at an IoU of 0.5, of the best 100 of each class in a picture."""
# In a report: sequences in which something has changed, for `backfill --sequences @FILE`.
CHANGED = "changed.txt"
# What an evaluation records of its options, to compare it with others later.
OF_A_RUN = ("truth", "first_frames", "limit")
# They say how masks are made, and mean nothing where the masks are there already.
OF_A_MODEL = ("model", "backend", "precision", "detector", "clicks", "jitter")
# Of detected boxes: average precision needs low scores too.
LEAST_SCORE = 0.05


@click.command(cls=Command, first="images out dataset model report as_json")
@click.argument("truth", required=False)
@images_option
@options_of(
    LabelParams, only=["out", "dataset", "model", "backend", "precision", "detector"], may_lack=True
)
@click.option(
    "--clicks", type=click.IntRange(1, 20), metavar="N",
    help="Prompt with N clicks per object, each on the largest error, in whole frames.",
)  # fmt: skip
@click.option(
    "--jitter", is_flag=True,
    help="Prompt with the true boxes, each corner moved by a tenth of the side.",
)  # fmt: skip
@click.option("--first-frames", is_flag=True, help="Only the first frame of each sequence.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Measure at most N pictures."
)
@click.option("--save", type=FILE, help="Save every instance to a file, for --against.")
@click.option(
    "--against", type=click.Path(path_type=Path, dir_okay=False, exists=True), metavar="FILE",
    help="Compare with a file of --save, instance by instance.",
)  # fmt: skip
@click.option(
    "--report",
    type=FOLDER,
    metavar="FOLDER",
    help="Write a page with tables, plots and the worst masks.",
)
@sources_option
@json_option
def command(**options: Any) -> None:
    """Measure masks and boxes against TRUTH: labels that exist, or those that a model makes.

    TRUTH is a COCO instances json or a folder of indexed PNGs (DAVIS, MOSE, Cityscapes), whose
    pictures are in --images; `dataset:NAME.FIELD`, a field of a FiftyOne dataset; or `run:OUT`, the
    labels of a run.

    --out scores the labels of a run, --dataset those of a dataset with what people decided (by
    default against its own field ground_truth). A storage with several runs is OUT#RUN_KEY. Frames
    are found by name: folders that the truth names must be in a frame's address.

    Without them a model makes masks of the true boxes; with --detector, --clicks or --jitter of
    other prompts. MODEL:whole takes whole frames of a model of close-ups.

    Against a run, the result also says what has changed: masks with an IoU below 0.9, or that are
    gone or new. changed.txt in the report lists the sequences with a change, for `autolabel
    backfill --sequences @changed.txt`.

    Exit code 1: some images could not be measured.
    """
    _refuse_wrong_options(options)
    options["truth"] = options["truth"] or f"dataset:{options['dataset']}.{TRUTH_FIELD}"
    other = read_run(options["against"]) if options["against"] else None
    existing = options["out"] or options["dataset"]
    remember_sources(options["sources"])
    truth = open_truth(
        options["truth"], options["images"], first_frames=options["first_frames"],
        unseen=bool(existing),
    )  # fmt: skip
    if truth.boxes_alone and options["clicks"]:
        raise AutolabelError(f"{options['truth']} has boxes alone, and clicks are put on masks")
    if options["limit"]:
        truth = Truth(truth.images[: options["limit"]], truth.categories)
    folder = options["images"] or Path("/")  # paths of a dataset or a run are absolute
    measured = _stored(options, truth) if existing else _made(options, truth, folder)
    by_row = not existing and not options["detector"]
    steps = evaluate(truth, None if existing else folder, measured.predict, by_row=by_row)
    for evaluation in tracked(stderr_console(), steps, "evaluating images", len(truth.images)):
        last = evaluation
    _refuse_nothing(last.failed, truth)
    run = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"), "version": product_version(),
        **{name: options[name] for name in OF_A_RUN if options[name]}, **measured.facts,
    }  # fmt: skip
    result = {
        "model": measured.model, "prompt": measured.prompt, "run": run, **last.result()
    }  # fmt: skip
    if options["truth"].startswith(RUN):
        result["changes"] = changes(truth.images, last)
    if other:
        facts, records = other
        if facts.get("boxes_alone", False) != result["boxes_alone"]:
            raise AutolabelError(
                f"{options['against']} and this evaluation measure IoU of boxes and of masks: "
                "compare with one whose truth has masks, or boxes, as well"
            )
        result["against"] = {name: facts.get(name) for name in ("model", "prompt", "run")}
        result["against"] |= paired(records, last.records)
    if options["save"]:
        write_run(options["save"], result, last.records)
    if options["report"]:
        draw = partial(_draw, truth, measured, by_row)
        _report(options["report"], result, last.records, draw)
    if not print_json(options["as_json"], result):
        _print(result)
    sys.exit(1 if last.failed else 0)


def _refuse_wrong_options(options: dict[str, Any]) -> None:
    """Refuse options that mean nothing beside the others, and files that cannot be written."""
    given = [f"--{name}" for name in OF_A_MODEL if options[name]]
    existing = [f"--{name}" for name in ("out", "dataset") if options[name]]
    prompts = [f"--{name}" for name in ("detector", "clicks", "jitter") if options[name]]
    made, scored = "".join(given[:1]), "".join(existing[:1])
    refuse(
        {
            "give --out or --dataset, not both": len(existing) == 2,
            "give TRUTH; only a --dataset may have its own": not (
                options["truth"] or options["dataset"]
            ),
            f"{made} says how masks are made; {scored} scores those that exist": made and scored,
            f"{' and '.join(prompts)} exclude each other": len(prompts) > 1,
            "--out is the truth itself: name another run of this storage as OUT#RUN_KEY": (
                options["truth"] == f"{RUN}{options['out']}"
            ),
            "--save takes a file; with --json results go to stdout": str(options["save"]) == "-",
        }
    )
    if options["save"]:
        check_writable(files=[options["save"]])
        if options["save"].is_file():
            read_run(options["save"])  # what is no evaluation is not overwritten
    if options["report"]:
        check_report(options["report"], PAGE, MARK)


def _refuse_nothing(failed: Sequence[FailedImage], truth: Truth) -> None:
    if len(failed) == len(truth.images):
        raise AutolabelError(
            f"no picture could be measured ({counted(len(failed), 'picture')}). The first, "
            f"{failed[0].file_name}: {failed[0].reason}"
        )


@dataclass(frozen=True)
class Measured:
    """Whose boxes and masks are measured.

    Attributes:
        predict: finds them.
        model: name of what made the masks.
        prompt: what it was prompted with.
        facts: more of it, for the result.
        picture: returns the file of a picture of the truth, None where it is gone.

    """

    predict: Predict
    model: str
    prompt: str
    facts: dict[str, Any]
    picture: Callable[[TruthImage], Path | None]


def _stored(options: dict[str, Any], truth: Truth) -> Measured:
    """Find labels that exist."""
    from tasks.evaluate.stored_labels import StoredLabels
    from tasks.export.run import dataset_source, run_named

    dataset = None
    if options["dataset"]:
        (out_uri, dataset), run_key = dataset_source(options["dataset"]), ""
    else:
        out_uri, run_key = run_named(options["out"])
    with telling(stderr_console(), "reading labels") as tell:
        found = StoredLabels(
            truth, out_uri, run_key, dataset, pictures=bool(options["report"]),
            on_frame=lambda count: tell(f"reading labels: {counted(count, 'frame')}"),
        )  # fmt: skip
    facts = {
        "labels": redact(options["dataset"] or out_uri), "run_keys": found.run_keys,
        "engine": {}, **({"uncertified": found.uncertified} if found.uncertified else {}),
    }  # fmt: skip
    return Measured(found, found.model, "the run's boxes", facts, found.picture)


def _made(options: dict[str, Any], truth: Truth, folder: Path) -> Measured:
    """Load the model that makes masks."""
    from tasks.boxes.detectors import load_detector
    from tasks.masks.model import choose_model, load_segmenter

    detector, clicks = options["detector"], options["clicks"]
    chosen = (options[name] or "auto" for name in ("model", "backend", "precision"))
    choice = choose_model(*chosen, close_ups=False if clicks else None)
    # First: a wrong name is told before a model is loaded.
    found = load_detector(detector, backend=choice.backend) if detector else None
    segmenter = load_segmenter(choice)
    facts: dict[str, Any] = {"whole_frames": True} if choice.close_ups is False else {}
    if found:
        prompt = "detector"
        predict = by_detector(segmenter, found, LEAST_SCORE, truth.categories)
        facts |= {"detector": detector, "min_score": LEAST_SCORE}
    elif clicks:
        prompt = counted(clicks, "click")
        predict = one_by_one(
            lambda pixels, image: (
                true_boxes(image), clicked_masks(segmenter, pixels, image, clicks)
            )
        )  # fmt: skip
        facts["clicks"] = clicks
    else:
        prompt = "jittered" if options["jitter"] else "boxes"
        predict = by_boxes(segmenter, jittered_boxes if options["jitter"] else true_boxes)
    info = segmenter.backend.info
    facts["engine"] = {**asdict(info.stamp), "device": info.device}
    return Measured(
        predict, choice.stamp.name, prompt, facts, lambda image: find_image(folder, image.file_name)
    )


def _report(
    folder: Path,
    result: dict[str, Any],
    records: list[Record],
    draw: Callable[[Record, Path], None],
) -> None:
    """Write the page and, against a run, the list of sequences in which something has changed."""
    page = write_report(folder, result, records, draw)
    say(f"report: {page}", err=True)
    if "changes" in result:
        listed = "".join(f"{name}\n" for name in result["changes"]["sequences"])
        (folder / CHANGED).write_text(listed, encoding="utf-8")


def _draw(truth: Truth, measured: Measured, by_row: bool, record: Record, path: Path) -> None:
    """Draw the mask of a record beside the true one; a model makes it once more."""
    image = next(image for image in truth.images if image.file_name == record.image)
    file = measured.picture(image)
    (prediction,) = measured.predict([(image, file)])
    if isinstance(prediction, Exception):
        raise prediction
    boxes, masks = prediction
    nothing = np.zeros((*image.size_hw, 3), np.uint8)  # its picture is gone
    pixels = nothing if file is None else read_rgb(file, image.size_hw)
    row = record.row if by_row else matched(image, boxes, masks)[record.row]
    write_difference(
        path, pixels, masks.rle[row], image.rle[record.row], np.array(record.box_xyxy_px)
    )


def _print(result: dict[str, Any]) -> None:
    console, images = results_console(), counted(result["images"], "image")
    console.print(f"{headline(result)}, {images}", soft_wrap=True)
    first = Column("instances", overflow="fold", min_width=12)
    columns: list[Column | str] = [first, "count", *(NUMBERS[name] for name in COLUMNS)]
    print_table(console, columns, rows_of(result, COLUMNS))
    for line in (*TERMS.splitlines(), *remarks(result)):
        console.print(line, soft_wrap=True)
    for image in shown_of(console, result["failed_images"]):
        text = f"not measured: {image['file_name']}: {image['reason']}"
        console.print(text, soft_wrap=True)
