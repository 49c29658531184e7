"""`autolabel export`: labels in the formats of trainers and other tools."""

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from flows.cli.commands import Command
from flows.cli.common_options import (
    FloatRange,
    json_option,
    print_json,
    refuse,
    sources_option,
    split_names,
    to_option,
)
from flows.cli.display import as_typed, stderr_console
from flows.cli.options import options_of
from flows.params import LabelParams
from tasks.wording import counted

FORMATS = (
    "coco", "coco-polygons", "yolo", "png", "cityscapes", "mots", "davis", "t4", "cvat",
    "label-studio", "fiftyone", "overlay",
)  # fmt: skip
# What a trainer or tool is given, if it is a file; where "{}" is, one for each split.
OPENED = {
    "coco": "annotations/instances{}.json", "coco-polygons": "annotations/instances{}.json",
    "yolo": "data.yaml", "cvat": "annotations{}.xml", "label-studio": "tasks{}.json",
}  # fmt: skip

POLYGON_READERS = {"coco-polygons": "pycocotools", "yolo": "Ultralytics"}


def _pairs(text: str | None, what: str) -> dict[str, str]:
    """Read `a=b,c=d`."""
    pairs = [pair.partition("=") for pair in (text or "").split(",") if pair.strip()]
    if not all(name.strip() and value.strip() for name, _, value in pairs):
        raise click.UsageError(f"{what}: expected NAME=VALUE,NAME=VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _shares(text: str | None) -> dict[str, float]:
    try:
        shares = {name: float(value) for name, value in _pairs(text, "--splits").items()}
    except ValueError as error:
        raise click.UsageError("--splits: expected shares such as train=0.8,val=0.2") from error
    whole = sum(shares.values())
    refuse(
        {
            "--splits: shares must be positive": (
                not all(0 <= share < math.inf for share in shares.values())
                or (shares and not whole)
            ),
            f"--splits: the shares add up to {whole:g}, not to 1": (
                any(share % 1 for share in shares.values()) and abs(whole - 1) > 1e-3
            ),
            "--splits: names must differ by more than case": len(shares)
            > len({name.casefold() for name in shares}),
            "--splits: names may have letters, digits, - and _": not all(
                name.replace("-", "").replace("_", "").isalnum() for name in shares
            ),
        }
    )
    return shares


@click.command(cls=Command, first="format_ target classes reviewed splits as_json")
@click.argument("source", metavar="RUN_OR_DATASET")
@click.option(
    "--format",
    "format_",
    metavar="FORMAT",
    type=click.Choice(FORMATS),
    required=True,
    help=f"One of {', '.join(FORMATS)}.",
)
@to_option(required=True)
@click.option(
    "--pictures", type=click.Choice(["copy", "link", "none"]), default="copy",
    help="Copy the pictures, link to them, or leave them out; frames of videos are extracted.",
)  # fmt: skip
@options_of(LabelParams, only=["classes", "min_score"])
@click.option(
    "--class-map", metavar="OLD=NEW,...", help="Rename classes, before --classes applies."
)
@click.option("--risk-below", type=FloatRange(0, 1), metavar="RISK", help="Only labels of less.")
@click.option(
    "--reviewed", is_flag=True,
    help="Only what people hold to be right, on frames they decided on: finish "
    "those first, label by label or by 'sequence done'.",
)  # fmt: skip
@click.option(
    "--decisions", metavar="A,B",
    help="Only labels so decided: accepted, corrected, merged, edited, passed (untouched on a "
    "frame that is done), rejected, deleted; empty: frames where a person saw nothing.",
)  # fmt: skip
@click.option("--reviewers", metavar="A,B", help="Only what these people decided.")
@click.option("--track-classes", is_flag=True, help="Use the class of the track, not of the frame.")
@click.option(
    "--splits", metavar="NAME=SHARE,...", help="Split by sequence, such as train=0.8,val=0.2."
)
@sources_option
@json_option
def command(
    source: str, format_: str, target: str, pictures: Any, as_json: bool, **chosen: Any
) -> None:
    """Write the labels of RUN_OR_DATASET in a format that other tools read.

    RUN_OR_DATASET is the --out of a run (OUT#RUN_KEY where several share it), or a FiftyOne
    dataset: of a dataset, what people decided takes the place of the labels that they decided on.
    Where both have one name, NAME is the dataset that was loaded from this folder, and ./NAME the
    folder. --to names an empty folder or URL; --classes numbers the classes in its order.

    Exit code 1: nothing was exported, or sequences were left out whose labels cannot be read.
    """
    from tasks.export.run import STATES, Choice, export, run_named

    console = stderr_console()
    source, run_key = run_named(source)
    choice = Choice(
        run_key=run_key,
        classes=split_names(chosen["classes"]),
        decisions=split_names(chosen["decisions"]), reviewers=split_names(chosen["reviewers"]),
        class_map=_pairs(chosen["class_map"], "--class-map"),
        min_score=chosen["min_score"] or 0, risk_below=chosen["risk_below"],
        reviewed=chosen["reviewed"], splits=_shares(chosen["splits"]),
        track_classes=chosen["track_classes"],
    )  # fmt: skip
    if unknown := ", ".join(set(choice.decisions) - {*STATES}):
        raise click.UsageError(f"--decisions: {unknown} is none of {', '.join(STATES)}")
    with console.status("exporting") as status:
        report = export(
            source, format_, target, choice, images=pictures, sources=chosen["sources"],
            on_frame=lambda count: status.update(f"exporting: {counted(count, 'frame')}"),
        )  # fmt: skip
    _say(console, report, target)
    print_json(as_json, report)
    nothing = report["classes_not_there"] and not report["instances"]
    if nothing:
        console.print("[red]no label is exported: none has these classes[/]")
    sys.exit(1 if nothing or report["sequences_unreadable"] else 0)


def _say(console: Any, report: dict[str, Any], target: str) -> None:
    """Say what was written, and what was left out."""
    console.print(
        f"[bold]{counted(report['frames'], 'frame')}[/] and "
        f"[bold]{counted(report['instances'], 'label')}[/] of "
        f"{counted(report['sequences'], 'sequence')} as {report['format']}: {target}"
    )
    for line in _origin(report, target):
        console.print(f"  {line}", markup=False)
    left_out = [f"{count} ({reason})" for reason, count in report["left_out"].items()]
    left_out += [f"sequence {name}: {why}" for name, why in report["sequences_unreadable"].items()]
    for what in left_out:
        console.print(f"  left out: {what}", markup=False)
    if "named_as_track" in report:
        named = counted(report["named_as_track"], "label")
        console.print(f"  named by their track, not as detected: {named}")
    if report["frames_without_picture"]:
        console.print(
            f"  whose picture is gone: {counted(report['frames_without_picture'], 'frame')}"
        )
    for name, count in report["splits"].items():
        none = "" if count else " - no sequence: a hash of its name decides where each goes"
        console.print(f"  {name}: {counted(count, 'frame')}{none}", soft_wrap=True)
    if report.get("validates_on_training"):
        why = "no sequence fell into another split" if report["splits"] else "no --splits are given"
        console.print(f"  data.yaml validates on the training pictures: {why}")
    if "polygon_iou_mean" in report:
        mean, worst = report["polygon_iou_mean"], report["polygon_iou_worst"]
        reader = POLYGON_READERS[report["format"]]
        console.print(
            f"  polygons, as {reader} draws them, have a mean IoU of {mean:.4f} with the masks; "
            f"worst {worst:.4f}"
        )
    if report["classes_not_there"]:
        console.print(f"[yellow]no label has the class {', '.join(report['classes_not_there'])}[/]")


def _origin(report: Mapping[str, Any], target: str) -> Iterator[str]:
    """Say which file to open, what made the labels, and where people's decisions are."""
    if opened := OPENED.get(report["format"]):
        endings = [f"_{name}" for name, count in report["splits"].items() if count]
        yield f"to open: {', '.join(dict.fromkeys(map(opened.format, endings or [''])))}"
    if len(runs := report["runs"]) > 1:
        yield f"made by {len(runs)} models or parameters; one as OUT#RUN_KEY: {', '.join(runs)}"
    yield from _of_dataset(report) if report["dataset"] else _of_folder(report, target)


def _of_folder(report: Mapping[str, Any], target: str) -> Iterator[str]:
    """Say that people have decided on labels, which a folder's own are without."""
    from tasks.review.events import reviewed_datasets

    for name in reviewed_datasets(report["source"]):
        command = as_typed("export", name, "--format", report["format"], "--to", target)
        yield (
            f"without what people decided in the dataset {name}: to have that, empty {target} and "
            f"run `{command}`"
        )


def _of_dataset(report: Mapping[str, Any]) -> Iterator[str]:
    """Say what people have to do with an export."""
    from tasks.dataset.schema import open_dataset
    from tasks.export.run import AS_BACKGROUND, UNDECIDED_LABEL
    from tasks.review.opinions import second_opinions_given, unsettled

    yield (
        f"of dataset {report['dataset']}, with its decisions if there are any; labels in "
        f"{report['source']}"
    )
    words = {"corrected": "corrected or drawn", "passed": "untouched on frames that are done"}
    if said := [f"{n:,} {words.get(what, what)}" for what, n in report["decisions"].items()]:
        yield f"decided by people: {', '.join(said)}"
    if report["set_aside"]:
        yield f"not among them: {report['set_aside']}"
    if report["left_out"].get(UNDECIDED_LABEL):
        yield AS_BACKGROUND
    if count := unsettled(second_opinions_given(open_dataset(report["dataset"]))):
        yield f"{counted(count, 'disagreement')} of reviewers open: what stands is used"
    if count := report["frames_without_labels"]:
        confirmed = len(report["confirmed_empty"])
        yield f"without labels: {counted(count, 'frame')}, {confirmed} confirmed as empty by people"
