"""`autolabel models list`: models, their checkpoints, exports and certificates on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.cli.common_options import cache_option, json_option
from tasks.wording import counted

if TYPE_CHECKING:
    from sam2_core.presets import Preset


@click.command("list")
@cache_option
@json_option
def command(cache: Path | None, as_json: bool) -> None:
    """List models, their checkpoints, exports and certificates on this machine.

    Certificates of other folders, or of files replaced since, are listed separately.
    """
    from sam2_core.presets import PRESETS

    certificates = _certificates(cache)
    models = [_model(preset, cache) for preset in PRESETS.values()]
    for model in models:
        own = [one for one in certificates if one["now"] and one["source"] in model["sources"]]
        model["certificates"] = own
        certificates = [one for one in certificates if one not in own]
        del model["sources"]
    if as_json:
        click.echo(json.dumps({"models": models, "other_certificates": certificates}))
    else:
        _print(models, certificates)


def _model(preset: Preset, cache: Path | None) -> dict[str, Any]:
    from sam2_core.cache import cache_folder
    from sam2_core.model_download import SOURCES, checkpoint_path
    from sam2_core.resolve import bundled_checkpoint

    files = [checkpoint_path(preset, s, cache) for s in SOURCES] if preset.checkpoint else []
    root = cache_folder(cache) / "models" / preset.name
    exports = sorted(root.glob("*/*/model.json")) if root.is_dir() else []
    bundled = bundled_checkpoint(preset)
    sources = [preset.name, *(str(path.parent) for path in (*exports, bundled) if path)]
    return {
        "name": preset.name, "image_size": preset.image_size, "url": preset.meta_url,
        "sha256": preset.checkpoint_sha256, "bytes": preset.checkpoint_bytes,
        "downloaded": [str(path) for path in files if path.is_file()],
        # Meta's file of another size than it should have.
        "damaged": [
            str(path) for path in files[:1]
            if path.is_file() and path.stat().st_size != preset.checkpoint_bytes
        ],
        "exported": [str(path.parent.relative_to(root)) for path in exports],
        "sources": sources,
    }  # fmt: skip


def _certificates(cache: Path | None) -> list[dict[str, Any]]:
    from sam2_core.trust.certificate import certificates
    from tasks.masks.certified import is_of_now

    return [
        {
            "engine": one.title, "id": one.path(cache).stem[:8], "verdict": one.verdict,
            "pictures": one.calibration["pictures"], "made": one.made, "source": one.source,
            "now": is_of_now(one), "file": str(one.path(cache)),
        }
        for one in certificates(cache)
    ]  # fmt: skip


def _print(models: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "input", "checkpoint", "exported", "certificates", box=None)
    for model in models:
        state = (
            "downloaded" if model["downloaded"] else f"to download, {model['bytes'] / 1e6:.0f} MB"
        )
        state = "[red]damaged: download again[/]" if model["damaged"] else state
        table.add_row(
            str(model["name"]),
            f"{model['image_size']} px",
            state if model["url"] else "of this project",
            "\n".join(model["exported"]) or "-",
            "\n".join(f"{one['engine']}: {_verdict(one)}" for one in model["certificates"]) or "-",
        )
    console = Console()
    console.print(table)
    if others:
        console.print("\ncertificates of other folders, or of what has been replaced since:")
    for one in others:
        where = one["source"] if one["now"] else f"{one['source']} (replaced since)"
        text = f"  {one['id']}  {one['engine']}: {_verdict(one)}  {where}"
        console.print(text, soft_wrap=True, markup=False)


def _verdict(one: dict[str, Any]) -> str:
    pictures = counted(one["pictures"], "picture")
    return f"{one['verdict']} on {pictures}, {one['made'][:10]}"
