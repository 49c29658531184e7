"""`autolabel cache`: lists and clears what is on this machine besides labels."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import click

from flows.cli.common_options import json_option
from sam2_core.types import AutolabelError

# Names in the cache folder, as patterns, and what is lost with them.
KINDS = {
    "frames": "downloaded frames that datasets show; `autolabel label` fetches them again",
    "videos": "frames of videos and recordings that datasets show; `label` extracts them again",
    "checkpoints": "Meta's checkpoints; `autolabel models download`",
    "models": "exported models; `autolabel models export`",
    "detectors": "downloaded detectors; fetched again when asked for",
    "engines": "TensorRT engines; built again",
    "triton": "programs of a Triton server, as `autolabel serve` starts them; copied again",
    "torch": "mask models that PyTorch has compiled for this GPU; compiled again",
    "certificates": "verdicts on engines; each is checked again before it labels",
    "references": "PyTorch's answers to the calibration pictures; computed again",
    "hashes": "digests of model files; computed again",
    "risk": "drives rendered to fit the risk; rendered again",
    "matplotlib": "Matplotlib's list of fonts; made again",
    "demo-*": "the demo's sequences and labels; `autolabel demo`",
    "prefect*": "Prefect's database: the history of runs, and the nights of `autolabel nightly`",
    "plugins": "links to the review plugin; made again",
    "services": "passwords and logs of `autolabel up`",
    "mongodb": "FiftyOne's datasets; rebuilt from labels by `autolabel review rebuild`",
}


@dataclass(frozen=True)
class Part:
    """One kind of things in the cache.

    Attributes:
        name: as one names it to clear it.
        paths: folders and files.
        bytes: that they take.
        what: it is, and how to get it back.

    """

    name: str
    paths: tuple[Path, ...]
    bytes: int
    what: str


def parts() -> list[Part]:
    """Return what is there, the largest first."""
    from sam2_core.cache import cache_folder
    from tasks.dataset.database import database_folder

    found = []
    for pattern, what in KINDS.items():
        paths = sorted(cache_folder().glob(pattern))
        if pattern == "mongodb":
            paths = [one for one in (database_folder(),) if one.exists()]
        if paths:
            size = sum(map(_size, paths))
            found.append(Part(pattern.rstrip("-*"), tuple(paths), size, what))
    return sorted(found, key=lambda one: -one.bytes)


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder, links as what they are."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(_size(one) for one in path.iterdir())


def clear(chosen: list[Part]) -> None:
    """Remove parts of the cache.

    Raises:
        AutolabelError: what is in use; nothing has been removed then.

    """
    from flows.machine.services import running
    from tasks.dataset.database import running_server

    names = {one.name for one in chosen}
    if names & {"services", "mongodb", "prefect"} and running():
        raise AutolabelError("`autolabel up` is running: `autolabel down` first")
    if "mongodb" in names and running_server():
        raise AutolabelError(
            "the database is in use: end `autolabel review` or what else uses it; where nothing "
            "does any more, `autolabel review stop` ends it"
        )
    for path in (path for one in chosen for path in one.paths):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@click.group(short_help="Show and clear what is kept on this machine.")
def command() -> None:
    """List and clear what is kept on this machine besides labels."""


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the parts of the cache, their sizes, and how to get them back."""
    from sam2_core.cache import cache_folder

    found = parts()
    if as_json:
        sizes = {one.name: one.bytes for one in found}
        click.echo(json.dumps({"folder": str(cache_folder()), "bytes": sizes}, indent=2))
        return
    _show(found)
    click.echo(f"{_told(sum(one.bytes for one in found))}  in {cache_folder()}", err=True)


def _show(found: list[Part]) -> None:
    for one in found:
        click.echo(f"{_told(one.bytes)}  {one.name:<12} {one.what}", err=True)


def _told(size: int) -> str:
    if size < 1000:
        return f"{size:>10} B "
    return f"{size / 1e6:>10,.1f} MB" if size >= 100_000 else f"{size / 1e3:>10,.1f} kB"


@command.command("clear")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--all", "everything", is_flag=True, help="Remove everything, before uninstalling for instance."
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
def clear_(names: tuple[str, ...], everything: bool, dry_run: bool) -> None:
    """Remove parts of the cache by the names of `autolabel cache list`; labels stay."""
    from sam2_core.cache import cache_folder

    there = {one.name: one for one in parts()}
    known = {pattern.rstrip("-*") for pattern in KINDS}
    unknown = set(names) - known
    if unknown or bool(names) == everything:
        wrong = f"no {', '.join(sorted(unknown))}; " if unknown else ""
        raise click.UsageError(
            f"{wrong}name what to clear ({', '.join(sorted(known))}), or give --all"
        )
    chosen = [one for name, one in there.items() if everything or name in names]
    _show(chosen)
    freed = _told(sum(one.bytes for one in chosen)).strip()
    if dry_run:
        click.echo(f"would free {freed}; nothing was removed", err=True)
        return
    clear(chosen)
    if everything and not any(cache_folder().iterdir()):
        with contextlib.suppress(OSError):  # a mount point stays
            cache_folder().rmdir()
    click.echo(f"freed {freed}", err=True)
