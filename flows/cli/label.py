"""`autolabel label`: sequences in, masks out, loaded into FiftyOne."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pydantic import BaseModel

    from flows.params import LabelParams

Params = TypeVar("Params", bound="BaseModel")

# What `label` and `backfill` share: their common parameters, one schema for both.
_OPTIONS = (
    click.argument("sources", metavar="SOURCE...", nargs=-1, required=True),
    click.option("--out", required=True, metavar="URL", help="Where labels and reports go."),
    click.option(
        "--dataset", metavar="NAME", help="FiftyOne dataset; default: last part of --out."
    ),
    click.option("--no-dataset", is_flag=True, help="Write labels only; do not load them."),
    click.option(
        "--model",
        metavar="PRESET|PATH",
        help="compact, tiny, small, base_plus, large, an exported model's folder or a checkpoint; "
        "default: the largest on this machine, else the bundled compact one.",
    ),
    click.option(
        "--backend",
        type=click.Choice(
            ["auto", "onnxruntime", "onnxruntime-cpu", "onnxruntime-cuda", "torch", "tensorrt"]
        ),
        help="What runs the model.  [default: auto]",
    ),
    click.option(
        "--precision",
        type=click.Choice(["auto", "fp32", "fp16"]),
        help="Precision of the arithmetic.  [default: fp16 on a GPU, fp32 on a CPU]",
    ),
    click.option(
        "--detector",
        metavar="NAME|PATH",
        help="compact, yolox_nano, yolox_tiny, yolox_s, yolox_m, or an .onnx of the YOLOX form.  "
        "[default: compact]",
    ),
    click.option(
        "--boxes",
        metavar="PATH",
        help="Boxes instead of a detector: COCO json, or text files 'label score x1 y1 x2 y2'.",
    ),
    click.option(
        "--box-names",
        metavar="PATH",
        help="--boxes are YOLO's text files 'class x y width height'; names of the classes, one a "
        "line, or data.yaml.",
    ),
    click.option("--classes", metavar="A,B", help="Only these classes."),
    click.option(
        "--min-score",
        type=float,
        metavar="X",
        help="Only boxes with at least this score.  [default: 0.3; --boxes 0]",
    ),
    click.option("--frames", metavar="START:STOP:STEP", help="Which frames of each camera."),
    click.option(
        "--chunk-frames",
        type=int,
        metavar="N",
        help="Frames per chunk, 1 to 64.  [default: 64]",
    ),
)


def label_options(function: Any) -> Any:
    """Add the arguments and options that make up LabelParams."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def validated(model: type[Params], /, **values: Any) -> Params:
    """Validate parameters; what is wrong is a usage error that names the option."""
    from pydantic import ValidationError

    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-") if first["loc"] else "options"
        message = first["msg"].removeprefix("Value error, ")
        raise click.UsageError(f"{option}: {message}") from error


def _listed(sources: Iterable[str]) -> Iterator[str]:
    """Put the lines of lists in their place: of files (`@FILE`), of stdin (`-`)."""
    for source in sources:
        if source != "-" and not source.startswith("@"):
            yield source
            continue
        named = [line for line in map(str.strip, _text_of(source).splitlines()) if line]
        lines = [line for line in named if not line.startswith("#")]
        if not lines:
            where = "stdin" if source == "-" else source[1:]
            raise click.UsageError(f"SOURCE {source}: {where} holds no line with a source")
        yield from lines


def _text_of(source: str) -> str:
    from tasks.store import storage
    from tasks.store.addresses import checked

    if source == "-":
        return sys.stdin.read()
    return storage.read_bytes(checked(source[1:])).decode("utf-8-sig", "replace")


def label_params(values: dict[str, Any]) -> LabelParams:
    """Return the parameters that the options of `label_options` say."""
    from flows.params import LabelParams

    given = dict(values)
    given["sources"] = tuple(_listed(given["sources"]))
    classes = given.pop("classes")
    if classes:
        given["classes"] = tuple(name.strip() for name in classes.split(",") if name.strip())
    given["load_dataset"] = not given.pop("no_dataset")
    return validated(LabelParams, **given)


@click.command(short_help="Label sequences of frames.")
@label_options
@click.option("--sequence", metavar="NAME", help="What to call the one sequence of SOURCE.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(dry_run: bool, as_json: bool, **values: Any) -> None:
    """Label every sequence below SOURCE: a folder of images, a folder of camera folders, a video,
    or a folder of these, on this machine or under an s3:// or https:// URL; a picture, or a quoted
    pattern of any of these; @FILE for a list of them, one a line; - for a list on stdin.

    What is labeled already is not labeled again. Exit code 0: all labeled; 1: some frames or
    sequences failed, the rest is there, or there is nothing to label; 2: bad usage.
    """  # noqa: D205
    from flows.cli.label_run import run_label

    summary = run_label(label_params(values), dry_run=dry_run, as_json=as_json)
    sys.exit(1 if summary.get("failed") or summary.get("nothing") else 0)
