"""`autolabel models`: what models there are, fetch checkpoints, export them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from flows.cli.common_options import FILE, FOLDER, GRAPH, cache_option, json_option
from flows.cli.main import LazyGroup
from sam2_core.checkpoints import PYTORCH
from sam2_core.types import AutolabelError

# Subcommands in modules of their own, imported when they are called.
LAZY: dict[str, tuple[str, str]] = {
    "list": ("models_list", "List models, exports and certificates."),
    "certify": ("models_certify", "Check a model on this machine against PyTorch in float32."),
    "build": ("models_build", "Build TensorRT engines for this machine's GPU."),
    "triton-repository": ("models_triton_repository", "Write a Triton model repository."),
}


@click.group(cls=LazyGroup, late=LAZY)
def command() -> None:
    """Download, export, build and certify models."""


_source_option = click.option(
    "--source",
    type=click.Choice(["meta", "hugging-face"]),
    default="meta",
    help="Where to download the weights.",
)


def _emit(result: dict[str, Any], lines: list[str], as_json: bool) -> None:
    for line in [json.dumps(result)] if as_json else lines:
        click.echo(line)


def _fetch(name: str, source: str, cache: Path | None) -> tuple[Path, str]:
    """Fetch a checkpoint with a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

    from sam2_core.model_download import fetch_checkpoint
    from sam2_core.presets import preset_named

    preset = preset_named(name)
    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None)

        return fetch_checkpoint(preset, source=source, cache=cache, progress=advance)


@command.command("download")
@click.argument("names", nargs=-1, required=True, metavar="MODEL...")
@_source_option
@cache_option
@json_option
def download_models(names: tuple[str, ...], source: str, cache: Path | None, as_json: bool) -> None:
    """Download checkpoints, resume partial downloads, and check their sha256."""
    done, lines = [], []
    for name in names:
        path, sha256 = _fetch(name, source, cache)
        done.append({"name": name, "path": str(path), "sha256": sha256})
        lines.append(f"{name}: {path} (sha256 {sha256})")
    _emit({"checkpoints": done}, lines, as_json)


def _weights(
    name: str, checkpoint: Path | None, seed: int | None, source: str, cache: Path | None
) -> tuple[Any, str, str]:
    """Return the model, its checkpoint's sha256 and what to call its weights."""
    from sam2_core.architecture import random_weights
    from sam2_core.checkpoints import load_checkpoint
    from sam2_core.model_download import record, verify
    from sam2_core.presets import preset_named

    preset = preset_named(name)
    if seed is not None:
        return random_weights(preset, seed), f"random-{seed}", f"random, seed {seed}"
    if checkpoint is None:
        path, sha256 = _fetch(name, source, cache)
    else:
        path = checkpoint
        if not path.is_file():
            raise AutolabelError(f"there is no checkpoint {path}")
        sha256 = verify(path, cache=cache)
    model = load_checkpoint(path, preset)
    record(path, sha256)
    return model, sha256, path.name


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
def export_models(
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
    from sam2_core.model_download import checkpoint_path
    from sam2_core.presets import preset_named

    if checkpoint is not None and seed is not None:
        raise click.UsageError("--checkpoint and --random-weights exclude each other")
    if checkpoint is None and seed is None:  # before PyTorch is asked for in vain
        checkpoint_path(preset_named(name), source, cache)
    try:
        model, sha256, weights = _weights(name, checkpoint, seed, source, cache)
    except ImportError as error:
        raise AutolabelError(f"exporting needs the package {error.name}: {PYTORCH}") from error
    both = precision is None and out is None
    wanted = ["fp32", "fp16"] if both else [precision or "fp32"]
    folders, lines = {}, []
    for one in wanted:  # fp16 last: the model is cast
        folder, made = _exported(model, name, sha256, weights, (graph, one), out, cache, force)
        folders[one] = str(folder)
        lines.append(f"{name} {one}: {folder}" + ("" if made else " (was there)"))
    result = {
        "name": name, "folder": folders[wanted[0]], "folders": folders,
        "checkpoint_sha256": sha256, "weights": weights,
    }  # fmt: skip
    _emit(result, lines, as_json)


def _exported(
    model: Any, name: str, sha256: str, weights: str, form: tuple[str, str], out: Path | None,
    cache: Path | None, force: bool,
) -> tuple[Path, bool]:  # fmt: skip
    """Export a model as (graph, precision); return its folder, and whether it was made now."""
    from rich.console import Console

    from sam2_core.export import export_model, exported_folder, is_current

    graph, precision = form
    folder = out or exported_folder(model.preset, sha256, graph, precision, cache)
    if is_current(folder) and not force:
        return folder, False
    with Console(stderr=True).status(f"exporting {name}") as status:

        def show(part: str) -> None:
            status.update(f"exporting {name} {precision}: {part}")

        export_model(
            model, folder, checkpoint_sha256=sha256, weights=weights, graph=graph,
            precision=precision,
            progress=show,
        )  # fmt: skip
    return folder, True
