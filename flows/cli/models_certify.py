"""`autolabel models certify`: a model on this machine, held against PyTorch in float32."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from flows.cli.common_options import json_option, precision_option, print_json
from flows.cli.display import results_console, spinning, stderr_console
from flows.cli.writable import check_writable
from sam2_core.machine_errors import first_line
from sam2_core.trust.certificate import Certificate, certificate_path, engine_facts
from sam2_core.types import AutolabelError
from tasks.wording import counted, one_line


@click.command("certify")
@click.argument("model", default="auto")
@click.option(
    "--backend",
    type=click.Choice(["auto", "onnxruntime", "onnxruntime-cpu", "onnxruntime-cuda", "torch",
                       "tensorrt"]),
    default="auto", help="As for `label`.",
)  # fmt: skip
@precision_option
@click.option(
    "--whole-frames", is_flag=True, help="Use whole frames even if the model has close-ups."
)
@click.option(
    "--frames",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Also use your own frames, with detected boxes.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    help="Use at most this many of them, spread over the folder.",
)
@click.option(
    "--scenes",
    type=click.IntRange(0, 36),
    help="Frames of the demo's rendered drives, besides the bundled pictures. Default: 4, where "
    "there is a judge.",
)
@click.option("--quick", is_flag=True, help="Only what labeling does before its first frame.")
@json_option
def certify_model(**options: Any) -> None:
    """Run MODEL as `label` would and compare its masks with PyTorch's in float32.

    Writes a certificate into the cache; `label` and workers refuse an engine that failed. The
    last check counts. Exit code 1: failed. Pictures other than the bundled ones need PyTorch, or
    certified float32 graphs on the CPU, as judge.
    """
    if options["quick"] and options["frames"]:
        raise click.UsageError("--quick takes the bundled pictures only, no --frames")
    with spinning(stderr_console(), "certifying"):
        certificate = _certified(options)
        certificate.keep()
    path = certificate.path()
    if not print_json(options["as_json"], certificate.as_json() | {"file": str(path)}):
        _print(certificate, path)
    sys.exit(0 if certificate.passed else 1)


def _certified(options: dict[str, Any]) -> Certificate:
    from sam2_core.trust.calibration import bundled_calibration
    from sam2_core.trust.certify import certify, recorded_answers, with_pictures
    from tasks.evaluate.certifying import NoJudgeError, answers_to, more_pictures
    from tasks.masks.model import choose_model, load_segmenter

    close_ups = False if options["whole_frames"] else None
    choice = choose_model(
        options["model"], options["backend"], options["precision"], close_ups=close_ups
    )
    scenes = 4 if options["scenes"] is None else options["scenes"]
    more = [] if options["quick"] else more_pictures(options["frames"], options["limit"], scenes)
    if options["frames"] and not options["quick"] and len(more) == scenes:
        raise AutolabelError(f"no frame in {options['frames']} in which the detector finds a box")
    with load_segmenter(choice) as segmenter, _naming(choice.source):
        path = certificate_path(engine_facts(segmenter.backend.info))
        check_writable(folders=[path.parent, path.with_suffix("")])
        if path.is_dir():
            raise AutolabelError(f"{path} is a folder where the certificate belongs: remove it")
        answers = recorded_answers(choice.source, segmenter)
        calibration = bundled_calibration()
        if more:
            try:
                answers = answers_to(choice, segmenter, calibration, answers, more)
                calibration = calibration.with_more(more)
            except NoJudgeError as error:
                if options["frames"] or options["scenes"]:
                    raise
                more = []
                click.echo(f"on the bundled pictures only: {error}", err=True)
        kind = "full" if more else "quick"
        certificate, found = certify(
            segmenter, calibration, answers, kind=kind, source=choice.source
        )
        return with_pictures(certificate, calibration, answers, found)


@contextlib.contextmanager
def _naming(source: str) -> Iterator[None]:
    """Name the model whose graphs cannot be run."""
    try:
        yield
    except (AutolabelError, OSError, MemoryError):
        raise
    except Exception as error:
        raise AutolabelError(f"{source} cannot be run: {first_line(error)}") from error


def _print(certificate: Certificate, path: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    console, measured = results_console(), certificate.measured
    pictures = counted(certificate.calibration["pictures"], "picture")
    boxes = counted(certificate.calibration["boxes"], "box", "boxes")
    console.print(Text(certificate.title, "bold"), f": {pictures}, {boxes}", sep="")
    weights = str(certificate.engine["checkpoint_sha256"])[:12]
    console.print(f"{certificate.source}, weights {weights}", soft_wrap=True)
    console.print(f"against {certificate.reference}", soft_wrap=True)
    table = Table("masks", "count", "mean IoU", "p1", "p5", "worst", "boundary F", box=None)
    rows = {"all": measured, "over 32x32 px": measured["over_32x32"], **measured["by_size"]}
    for name, row in rows.items():
        if row["masks"]:
            values = [f"{row['iou'][key]:.4f}" for key in ("mean", "p1", "p5", "min")]
            table.add_row(name, str(row["masks"]), *values, f"{row['boundary_f']:.4f}")
    console.print(table)
    apart, logits = measured["predicted_iou_apart"], measured["logits_apart"]
    console.print(
        f"predicted IoU off by {apart['max']:.2g} at most, logits by {logits['median']:.2g} "
        f"deviations (median); {measured['latency_ms']:g} ms a picture"
    )
    if certificate.worst[0]["iou"] < 1:
        console.print("the worst; green: both, red: this engine only, blue: PyTorch only")
    for one in certificate.worst[:3] if certificate.worst[0]["iou"] < 1 else ():
        text = f"  {one_line(one['picture'])}: IoU {one['iou']:.4f}  {one['file']}"
        console.print(text, soft_wrap=True)
    for failure in certificate.failures:
        console.print(failure, style="red")
    colour = "green" if certificate.passed else "red"
    console.print(Text(certificate.verdict, colour), f"  {path}", sep="", soft_wrap=True)
