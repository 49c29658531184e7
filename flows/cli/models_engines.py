"""`autolabel models build` and `certify`: the engines that run a model on a machine."""

import json
import sys
from collections.abc import Callable
from typing import Any

import click
from rich.text import Text

from flows.cli.commands import Command
from flows.cli.common_options import check_writable, images_option, json_option, print_json
from flows.cli.display import print_table, results_console, say, spinning, stderr_console
from flows.cli.options import options_of
from flows.params import LabelParams
from sam2_core.backend_choice import require_tensorrt
from sam2_core.backends.cuda_device import CudaDevice
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.checkpoints import NoMemoryError
from sam2_core.devices import cuda_devices
from sam2_core.find_weights import Wanted
from sam2_core.load import load_follow_backend, resolve_model
from sam2_core.machine_errors import first_line
from sam2_core.trust.calibration import Calibration, CalibrationImage, bundled_calibration
from sam2_core.trust.certify import (
    Certificate,
    certificate_path,
    certify,
    engine_facts,
    recorded_answers,
    with_pictures,
)
from sam2_core.trust.following import certify_memory, clip
from sam2_core.types import AutolabelError
from tasks.boxes.detector_files import resolve_detector
from tasks.masks.model import ModelChoice, choose_model, load_segmenter
from tasks.wording import counted

MOST_PICTURES, SCENES = 20, 4  # of a user, and of rendered drives


@click.command("build", cls=Command)
@click.argument("model", default="compact")
@options_of(LabelParams, only=["precision"])
@click.option(
    "--for", "capabilities", metavar="sm86,sm89",
    help="Build for GPUs of these compute capabilities instead, here or on a machine without one.",
)  # fmt: skip
@json_option
def build(model: str, precision: str | None, capabilities: str | None, as_json: bool) -> None:
    """Build TensorRT engines of a model and the bundled detector, for the GPU of this machine.

    Engines are in fp16 unless --precision says fp32, stored by GPU, TensorRT version and graph, and
    built once. Labeling builds what it
    lacks by itself: this only does it ahead of time, with --for also in CI or an image build.
    """
    require_tensorrt()
    targets = _targets(capabilities)
    fp32 = precision == "fp32"
    with stderr_console().status(f"resolving {model}") as status:
        wanted = Wanted("fp32" if fp32 else "fp16", progress=lambda text: status.update(str(text)))
        # As labeling uses it: for close-ups where it has them.
        folder = resolve_model(model, wanted).for_close_ups(None)
        engines = [engine for target in targets for engine in _build(folder, target, status.update)]
    if not print_json(as_json, {"model": str(folder.path), "engines": engines}):
        for engine in engines:
            size = f"{engine['engine_bytes'] / 1e6:.1f} MB, built in {engine['build_s']} s"
            say(f"{engine['target']} {engine['graph']}: {engine['path']} ({size})")


def _targets(capabilities: str | None) -> list[str]:
    """Return the GPUs to build for."""
    from sam2_core.backends.tensorrt_engines import (
        NAME_AND_VERSION,
        ON_ANY_MACHINE,
        target_of,
        why_not_for,
    )

    capabilities = (capabilities or "").strip(" ,")
    if not capabilities and cuda_devices():
        return [target_of(CudaDevice(0))]
    if not capabilities:
        raise click.UsageError("no NVIDIA GPU here: say what to build for, such as --for sm89")
    if not ON_ANY_MACHINE:
        raise click.UsageError(
            f"--for needs TensorRT-RTX: {NAME_AND_VERSION}, which is here, builds only on the GPU "
            "that it builds for"
        )
    targets = [target.strip().lower() for target in capabilities.split(",")]
    if problem := next(filter(None, map(why_not_for, targets)), ""):
        raise click.UsageError(f"--for: {problem}")
    return targets


def _build(folder: ModelFolder, target: str, note: Callable[[str], None]) -> list[dict[str, Any]]:
    from sam2_core.backends.onnx_batches import in_batches
    from sam2_core.backends.tensorrt_backend import build_all, engines_folder, network_engine
    from sam2_core.backends.tensorrt_engines import check_engine

    paths = build_all(folder, target, note)
    detector = resolve_detector("compact").read()
    note(f"building the detector for {target}")
    paths["detector"] = network_engine(in_batches(detector), target, engines_folder(folder.cache))
    for path in paths.values():  # those of an earlier build may have been damaged since
        check_engine(path, target)
    return [
        json.loads(path.with_suffix(".json").read_text()) | {"graph": graph, "path": str(path)}
        for graph, path in paths.items()
    ]


@click.command("certify", cls=Command)
@click.argument("model", default="auto")
@options_of(LabelParams, only=["backend", "precision"])
@images_option
@click.option("--quick", is_flag=True, help="Only what labeling does before its first frame.")
@json_option
def certify_model(**options: Any) -> None:
    """Run MODEL as `label` would and compare its masks with PyTorch's in float32.

    Writes a certificate into the cache, and one of its memory if it can follow objects; `label`
    and workers refuse an engine that failed. The last check counts. Exit code 1: failed.

    MODEL:whole takes whole frames of a model of close-ups. Pictures are the bundled ones, four
    frames of the demo's rendered drives, and up to 20 of --images with detected boxes. All but the
    bundled ones need PyTorch, or certified float32 graphs on the CPU, as judge.
    """
    if options["quick"] and options["images"]:
        raise click.UsageError("--quick takes the bundled pictures only, no --images")
    with spinning(stderr_console(), "certifying"):
        proofs = _certified(options)
        for proof in proofs:
            proof.keep()
    told, *memory = (proof.as_json() | {"file": str(proof.path())} for proof in proofs)
    if not print_json(options["as_json"], told | ({"memory": memory[0]} if memory else {})):
        for proof in proofs:
            _print_certificate(proof)
    sys.exit(0 if all(proof.passed for proof in proofs) else 1)


def _certified(options: dict[str, Any]) -> list[Certificate]:
    """Return the certificate of the model and, where it has one, that of its memory."""
    from tasks.evaluate.evaluate import more_pictures

    choice = choose_model(*(options[name] or "auto" for name in ("model", "backend", "precision")))
    images = options["images"]
    more = [] if options["quick"] else more_pictures(images, MOST_PICTURES, SCENES)
    if images and len(more) == SCENES:
        raise AutolabelError(f"no picture in {images} in which the detector finds a box")
    try:
        masks = _certify_masks(choice, more, needs_judge=bool(images))
        return [masks, *_certify_memory(choice)]
    except (AutolabelError, OSError, MemoryError):
        raise
    except Exception as error:
        raise AutolabelError(f"{choice.source} cannot be run: {first_line(error)}") from error


def _certify_masks(
    choice: ModelChoice, more: list[CalibrationImage], *, needs_judge: bool
) -> Certificate:
    """Hold masks of the bundled pictures, and of more where something can judge them."""
    from tasks.evaluate.evaluate import NoJudgeError, answers_to

    with load_segmenter(choice) as segmenter:
        path = certificate_path(engine_facts(segmenter.backend.info))
        check_writable(folders=[path.parent, path.with_suffix("")])
        if path.is_dir():
            raise AutolabelError(f"{path} is a folder where the certificate belongs: remove it")
        kind, calibration = "quick", bundled_calibration()
        answers = recorded_answers(choice.source, segmenter)
        if more:
            try:
                answers = answers_to(choice, segmenter, calibration, answers, more)
                kind, calibration = "full", Calibration((*calibration.images, *more))
            except NoJudgeError as error:
                if needs_judge:
                    raise
                say(f"on the bundled pictures only: {error}", err=True)
        certificate, found = certify(
            segmenter, calibration, answers, kind=kind, source=choice.source
        )
        return with_pictures(certificate, calibration, answers, found)


def _certify_memory(choice: ModelChoice) -> list[Certificate]:
    try:
        backend = load_follow_backend(choice.source, choice.backend, choice.precision)
    except NoMemoryError:
        return []
    certificate, answers, found = certify_memory(backend, choice.stamp, choice.source)
    return [with_pictures(certificate, clip(), answers, found)]


def _print_certificate(certificate: Certificate) -> None:
    console, measured = results_console(), certificate.measured
    pictures = counted(certificate.calibration["pictures"], "picture")
    boxes = counted(certificate.calibration["boxes"], "box", "boxes")
    console.print(Text(certificate.title, "bold"), f": {pictures}, {boxes}", sep="")
    weights = str(certificate.engine["checkpoint_sha256"])[:12]
    console.print(f"{certificate.source}, weights {weights}", soft_wrap=True)
    console.print(f"against {certificate.reference}", soft_wrap=True)
    groups = {"all": measured, "over 32x32 px": measured["over_32x32"], **measured["by_size"]}
    rows = []
    for name, row in groups.items():
        if row["masks"]:
            values = [f"{row['iou'][key]:.4f}" for key in ("mean", "p1", "p5", "min")]
            rows.append((name, str(row["masks"]), *values, f"{row['boundary_f']:.4f}"))
    columns = ("masks", "count", "mean IoU", "p1", "p5", "worst", "boundary F")
    print_table(console, columns, rows)
    apart, logits = measured["predicted_iou_apart"], measured["logits_apart"]
    console.print(
        f"predicted IoU off by {apart['max']:.2g} at most, logits by {logits['median']:.2g} "
        f"deviations (median); {measured['latency_ms']:g} ms a picture"
    )
    if certificate.worst[0]["iou"] < 1:
        console.print("the worst; green: both, red: this engine only, blue: PyTorch only")
        for worst in certificate.worst[:3]:
            text = f"  {worst['picture']}: IoU {worst['iou']:.4f}  {worst['file']}"
            console.print(text, soft_wrap=True)
    for failure in certificate.failures:
        console.print(failure, style="red")
    colour = "green" if certificate.passed else "red"
    verdict = Text(certificate.verdict, colour)
    console.print(verdict, f"  {certificate.path()}", sep="", soft_wrap=True)
