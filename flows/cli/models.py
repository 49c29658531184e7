"""`autolabel models`: what models there are; fetch and export them."""

from pathlib import Path
from typing import Any

import click

from flows.cli.commands import Group
from flows.cli.common_options import FILE, json_option, print_json, to_option
from flows.cli.display import print_table, results_console, say, stderr_console, telling
from flows.cli.models_engines import build, certify_model
from flows.cli.options import options_of
from flows.params import LabelParams
from sam2_core.backends.model_folder import exported_folder, is_current
from sam2_core.cache import cache_folder
from sam2_core.checkpoints import EXPORTING, load_checkpoint, load_memory, need_torch
from sam2_core.find_weights import bundled_checkpoint
from sam2_core.model_download import SOURCES, checkpoint_path, fetch_checkpoint, record, verify
from sam2_core.presets import PRESETS, Preset, preset_named
from sam2_core.trust.certify import Certificate, certificates
from sam2_core.types import AutolabelError
from tasks.boxes.detector_files import RELEASES, resolve_detector
from tasks.masks.model import is_of_now
from tasks.wording import counted, local_date


@click.group(cls=Group)
def command() -> None:
    """Download, export, build and certify models."""


for _command in (build, certify_model):
    command.add_command(_command)


def _fetch(name: str, source: str) -> tuple[Path, str]:
    """Fetch a checkpoint and show on stderr how much is here; return it and its sha256."""
    preset = preset_named(name)
    with telling(stderr_console(), f"downloading {name}") as tell:

        def show(done: int, total: int) -> None:
            size = f" of {total / 1e6:,.0f}" if total else ""
            tell(f"downloading {name}: {done / 1e6:,.0f}{size} MB")

        return fetch_checkpoint(preset, source=source, progress=show)


@command.command("download")
@click.argument("names", nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "--from", "source", type=click.Choice(SOURCES), default=SOURCES[0],
    help="Who publishes the weights.",
)  # fmt: skip
@json_option
def download(names: tuple[str, ...], source: str, as_json: bool) -> None:
    """Download checkpoints and detectors, resume partial downloads, and check their sha256.

    MODEL is one of Meta's, such as tiny, or a detector, such as yolox_s.
    """
    for name in set(names) - RELEASES.keys():  # found before anything is downloaded
        try:
            preset_named(name)
        except AutolabelError as error:
            raise AutolabelError(f"{error}; or a detector: {', '.join(RELEASES)}") from None
    done = []
    for name in names:
        if name in RELEASES:
            found = resolve_detector(name)
            path, sha256, use = found.path, found.sha256, f"label with --detector {name}"
        else:
            path, sha256 = _fetch(name, source)
            use = f"`autolabel models export {name}` makes it fit for labeling"
        done.append({"name": name, "path": str(path), "sha256": sha256})
        if not as_json:
            say(f"{name}: {path} (sha256 {sha256}); {use}")
    print_json(as_json, {"checkpoints": done})


@command.command("export")
@click.argument("name", metavar="MODEL")
@click.option("--checkpoint", type=FILE, help="A .pt or .safetensors file, not the published one.")
@options_of(LabelParams, only=["precision"])
@to_option()
@json_option
def export(
    name: str, checkpoint: Path | None, precision: str | None, target: str | None, as_json: bool
) -> None:
    """Export a checkpoint to ONNX graphs (needs the extra `export`).

    What is exported goes into the cache, in fp32 for CPUs and fp16 for GPUs; with --to, in one
    precision, into that folder. `autolabel cache clear models` has all exported anew.
    """
    preset = preset_named(name)
    if checkpoint is None:  # before PyTorch is asked for in vain
        checkpoint_path(preset)
    need_torch("exporting", also=EXPORTING)
    if checkpoint is None:
        there = [source for source in SOURCES if checkpoint_path(preset, source).is_file()]
        path, sha256 = _fetch(name, [*there, SOURCES[0]][0])
    elif checkpoint.is_file():
        path, sha256 = checkpoint, verify(checkpoint)
    else:
        raise AutolabelError(f"there is no checkpoint {checkpoint}")
    model, memory = load_checkpoint(path, preset), load_memory(path, preset)
    record(path, sha256)
    from sam2_core.export import export_model

    chosen = None if precision == "auto" else precision
    folders: dict[str, str] = {}
    # fp16 last: the model is cast.
    for kind in [chosen or "fp32"] if chosen or target else ["fp32", "fp16"]:
        folder = exported_folder(model.preset, sha256, "restructured", kind, None)
        folder = Path(target) if target else folder
        was_there = is_current(folder)
        if not was_there:
            with stderr_console().status(f"exporting {name} {kind}") as status:
                export_model(
                    model, folder, checkpoint_sha256=sha256, weights=path.name,
                    graph="restructured", precision=kind, memory=memory,
                    progress=status.update,
                )  # fmt: skip
        folders[kind] = str(folder)
        if not as_json:
            say(f"{name} {kind}: {folder}" + (" (was there)" if was_there else ""))
    result = {
        "name": name, "folder": next(iter(folders.values())), "folders": folders,
        "checkpoint_sha256": sha256, "weights": path.name,
    }  # fmt: skip
    print_json(as_json, result)


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List models, their checkpoints, exports and certificates on this machine.

    Certificates of other folders, or of files replaced since, are listed separately.
    """
    models, others = [], [_certificate_row(certificate) for certificate in certificates()]
    for preset in PRESETS.values():
        facts, sources = _facts(preset)
        own = [row for row in others if row["now"] and row["source"] in sources]
        others = [row for row in others if row not in own]
        models.append(facts | {"certificates": own})
    if not print_json(as_json, {"models": models, "other_certificates": others}):
        _print_models(models, others)


def _facts(preset: Preset) -> tuple[dict[str, Any], list[str]]:
    """Return what is here of a model, and what names it in a certificate."""
    places = [checkpoint_path(preset, s) for s in SOURCES] if preset.checkpoint else []
    files = [path for path in places if path.is_file()]
    root = cache_folder() / "models" / preset.name
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


def _certificate_row(certificate: Certificate) -> dict[str, Any]:
    return {
        "engine": certificate.title, "id": certificate.path().stem[:8],
        "verdict": certificate.verdict, "pictures": certificate.calibration["pictures"],
        "made": certificate.made, "source": certificate.source, "now": is_of_now(certificate),
        "file": str(certificate.path()),
    }  # fmt: skip


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
    for row in others:
        where = row["source"] if row["now"] else f"{row['source']} (replaced since)"
        text = f"  {row['id']}  {_certificate_line(row)}  {where}"
        console.print(text, soft_wrap=True)


def _certificate_line(row: dict[str, Any]) -> str:
    pictures = counted(row["pictures"], "picture")
    made = local_date(row["made"]) if row["made"] else "date unknown"
    return f"{row['engine']}: {row['verdict']} on {pictures}, {made}"
