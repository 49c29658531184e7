"""`autolabel models`: what models there are, fetch and export them, for a Triton server too."""

from pathlib import Path
from typing import Any

import click

from flows.cli.common_options import (
    FILE,
    FOLDER,
    GRAPH,
    cache_mb_option,
    cache_option,
    json_option,
    load_timeout_option,
    numbers,
    precision_option,
    print_json,
)
from flows.cli.display import print_table, results_console, say, stderr_console, telling
from flows.cli.models_engines import build, certify_model
from sam2_core.backend_choice import precision_for
from sam2_core.backends.model_folder import exported_folder, is_current
from sam2_core.cache import cache_folder
from sam2_core.checkpoints import EXPORTING, load_checkpoint, load_memory, need_torch
from sam2_core.find_weights import bundled_checkpoint
from sam2_core.model_download import SOURCES, checkpoint_path, fetch_checkpoint, record, verify
from sam2_core.presets import PRESETS, Preset, preset_named
from sam2_core.serving.repository import RepositoryOptions, write_repository
from sam2_core.serving.server_model import ModelSettings
from sam2_core.trust.certify import certificates
from sam2_core.types import AutolabelError
from tasks.boxes.detector_files import RELEASES, resolve_detector
from tasks.masks.model import is_of_now
from tasks.wording import counted, local_date


@click.group()
def command() -> None:
    """Download, export, build and certify models."""


for _one in (build, certify_model):
    command.add_command(_one)


_source_option = click.option(
    "--source",
    type=click.Choice(["meta", "hugging-face"]),
    default="meta",
    help="Where to download the weights.",
)


def _fetch(name: str, source: str, cache: Path | None) -> tuple[Path, str]:
    """Fetch a checkpoint and show on stderr how much is here; return it and its sha256."""
    preset = preset_named(name)
    with telling(stderr_console(), f"downloading {name}") as tell:

        def show(done: int, total: int) -> None:
            size = f" of {total / 1e6:,.0f}" if total else ""
            tell(f"downloading {name}: {done / 1e6:,.0f}{size} MB")

        return fetch_checkpoint(preset, source=source, cache=cache, progress=show)


@command.command("download")
@click.argument("names", nargs=-1, required=True, metavar="MODEL...")
@_source_option
@cache_option
@json_option
def download(names: tuple[str, ...], source: str, cache: Path | None, as_json: bool) -> None:
    """Download checkpoints and detectors, resume partial downloads, and check their sha256.

    MODEL is one of Meta's, such as tiny, or a detector, such as yolox_s.
    """
    detectors = [name for name in names if name in RELEASES]
    if detectors and cache:
        raise click.UsageError("--cache is for Meta's models; detectors go to $AUTOLABEL_CACHE")
    for name in set(names) - set(detectors):  # found before anything is downloaded
        try:
            preset_named(name)
        except AutolabelError as error:
            raise AutolabelError(f"{error}; or a detector: {', '.join(RELEASES)}") from None
    done = []
    for name in names:
        if name in detectors:
            found = resolve_detector(name)
            path, sha256, use = found.path, found.sha256, f"label with --detector {name}"
        else:
            path, sha256 = _fetch(name, source, cache)
            use = f"`autolabel models export {name}` makes it fit for labeling"
        done.append({"name": name, "path": str(path), "sha256": sha256})
        if not as_json:
            say(f"{name}: {path} (sha256 {sha256}); {use}")
    print_json(as_json, {"checkpoints": done})


def _weights(
    name: str, checkpoint: Path | None, seed: int | None, source: str, cache: Path | None
) -> tuple[Any, Any, str, str]:
    """Return the model, its memory, its checkpoint's sha256 and what to call its weights."""
    from sam2_core.architecture import random_memory, random_weights

    preset = preset_named(name)
    if seed is not None:
        model, memory = random_weights(preset, seed), random_memory(preset, seed)
        return model, memory, f"random-{seed}", f"random, seed {seed}"
    if checkpoint is None:
        path, sha256 = _fetch(name, source, cache)
    elif checkpoint.is_file():
        path, sha256 = checkpoint, verify(checkpoint, cache=cache)
    else:
        raise AutolabelError(f"there is no checkpoint {checkpoint}")
    model = load_checkpoint(path, preset)
    record(path, sha256)
    return model, load_memory(path, preset), sha256, path.name


@command.command("export")
@click.argument("name", metavar="MODEL")
@click.option("--checkpoint", type=FILE, help="A .pt or .safetensors file, not the published one.")
@click.option(
    "--random-weights", "seed", type=int, metavar="SEED", help="Seeded random weights: for tests."
)
@click.option(
    "--graph", type=GRAPH, default="restructured", help="Fast, or identical to SAM 2's own modules."
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "fp16"]),
    help="Default: both, fp32 for CPUs and fp16 for GPUs; fp32 with --out.",
)
@click.option("--out", type=FOLDER, help="Folder to write.")
@click.option("--force", is_flag=True, help="Export again.")
@_source_option
@cache_option
@json_option
def export(
    name: str,
    checkpoint: Path | None,
    seed: int | None,
    graph: str,
    precision: str | None,
    out: Path | None,
    force: bool,
    source: str,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Export a checkpoint to ONNX graphs (needs the extra `export`)."""
    if checkpoint is not None and seed is not None:
        raise click.UsageError("--checkpoint and --random-weights exclude each other")
    if checkpoint is None and seed is None:  # before PyTorch is asked for in vain
        checkpoint_path(preset_named(name), source, cache)
    need_torch("exporting", also=EXPORTING)
    model, memory, sha256, weights = _weights(name, checkpoint, seed, source, cache)
    from sam2_core.export import export_model

    wanted = [precision or "fp32"] if precision or out else ["fp32", "fp16"]
    folders: dict[str, str] = {}
    for one in wanted:  # fp16 last: the model is cast
        folder = out or exported_folder(model.preset, sha256, graph, one, cache)
        was_there = is_current(folder) and not force
        if not was_there:
            with stderr_console().status(f"exporting {name} {one}") as status:
                export_model(
                    model, folder, checkpoint_sha256=sha256, weights=weights, graph=graph,
                    precision=one, memory=memory, progress=status.update,
                )  # fmt: skip
        folders[one] = str(folder)
        if not as_json:
            say(f"{name} {one}: {folder}" + (" (was there)" if was_there else ""))
    result = {
        "name": name, "folder": folders[wanted[0]], "folders": folders,
        "checkpoint_sha256": sha256, "weights": weights,
    }  # fmt: skip
    print_json(as_json, result)


@command.command("list")
@cache_option
@json_option
def list_(cache: Path | None, as_json: bool) -> None:
    """List models, their checkpoints, exports and certificates on this machine.

    Certificates of other folders, or of files replaced since, are listed separately.
    """
    models, others = [], _certificates(cache)
    for preset in PRESETS.values():
        facts, sources = _facts(preset, cache)
        certificates = [one for one in others if one["now"] and one["source"] in sources]
        others = [one for one in others if one not in certificates]
        models.append(facts | {"certificates": certificates})
    if not print_json(as_json, {"models": models, "other_certificates": others}):
        _print_models(models, others)


def _facts(preset: Preset, cache: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Return what is here of a model, and what names it in a certificate."""
    places = [checkpoint_path(preset, s, cache) for s in SOURCES] if preset.checkpoint else []
    files = [path for path in places if path.is_file()]
    root = cache_folder(cache) / "models" / preset.name
    exports = [path.parent for path in sorted(root.glob("*/*/model.json"))]
    facts = {
        "name": preset.name, "image_size": preset.image_size, "url": preset.meta_url,
        "sha256": preset.checkpoint_sha256, "bytes": preset.checkpoint_bytes,
        "downloaded": [str(path) for path in files],
        # Meta's file of another size than it should have.
        "damaged": [
            str(path) for path in files
            if path == places[0] and path.stat().st_size != preset.checkpoint_bytes
        ],
        "exported": [str(path.relative_to(root)) for path in exports],
    }  # fmt: skip
    bundled = bundled_checkpoint(preset)
    return facts, [preset.name, *map(str, exports), *([str(bundled.parent)] if bundled else [])]


def _certificates(cache: Path | None) -> list[dict[str, Any]]:
    return [
        {
            "engine": one.title, "id": one.path(cache).stem[:8], "verdict": one.verdict,
            "pictures": one.calibration["pictures"], "made": one.made, "source": one.source,
            "now": is_of_now(one), "file": str(one.path(cache)),
        }
        for one in certificates(cache)
    ]  # fmt: skip


def _print_models(models: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    rows = []
    for model in models:
        state = f"to download, {model['bytes'] / 1e6:.0f} MB" if model["url"] else "of this project"
        if model["damaged"]:
            state = "damaged: download again"
        elif model["downloaded"]:
            state = "downloaded"
        rows.append(
            (
                str(model["name"]),
                f"{model['image_size']} px",
                state,
                ", ".join(model["exported"]) or "-",
                "; ".join(map(_certificate_line, model["certificates"])) or "-",
            )
        )
    console = results_console()
    print_table(console, ("model", "input", "checkpoint", "exported", "certificates"), rows)
    if others:
        console.print()
        console.print("certificates of other folders, or of what has been replaced since:")
    for one in others:
        where = one["source"] if one["now"] else f"{one['source']} (replaced since)"
        text = f"  {one['id']}  {_certificate_line(one)}  {where}"
        console.print(text, soft_wrap=True)


def _certificate_line(one: dict[str, Any]) -> str:
    pictures = counted(one["pictures"], "picture")
    made = local_date(one["made"]) if one["made"] else "date unknown"
    return f"{one['engine']}: {one['verdict']} on {pictures}, {made}"


@command.command("triton-repository", short_help="Write a Triton model repository.")
@click.option(
    "--model",
    "models",
    multiple=True,
    required=True,
    metavar="MODEL",
    help="As for `autolabel label`; append `:whole` for whole frames. Repeat for several models.",
)
@click.option("--out", type=FOLDER, required=True, help="Folder to write.")
@click.option(
    "--backend",
    type=click.Choice(["onnxruntime-cpu", "onnxruntime-cuda", "tensorrt", "torch"]),
    default="onnxruntime-cpu",
    help="What runs the model on the server.",
)
@precision_option
@click.option("--gpus", callback=numbers, metavar="0,1", help="CUDA devices. Default: the CPU.")
@click.option(
    "--instances",
    type=click.IntRange(1),
    default=2,
    help="Processes of a model per device; while one segments, another answers clicks.",
)
@cache_mb_option
@load_timeout_option
@click.option(
    "--version",
    type=click.IntRange(1),
    default=1,
    help="Number of this version; other versions stay.",
)
@json_option
def triton_repository(models: tuple[str, ...], out: Path, **options: Any) -> None:
    """Write a Triton model repository: the graphs, config.pbtxt and a line of Python for each.

    The server needs sam2-autolabel installed, as the image of deploy/docker has.
    """
    precision = precision_for(options["backend"], options["precision"])
    settings = ModelSettings(
        backend=options["backend"], precision=precision, image_bytes=options["cache_mb"] << 20,
        loading_s=options["load_timeout"],
    )  # fmt: skip
    names = write_repository(
        out, models, RepositoryOptions(settings, options["gpus"], options["instances"]),
        version=options["version"], with_graphs=True,
    )  # fmt: skip
    if not print_json(options["as_json"], {"folder": str(out), "models": names}):
        for name in names:
            say(f"{name}: {out / name}")
