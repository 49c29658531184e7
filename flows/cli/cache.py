"""`autolabel cache`: lists and clears what is on this machine besides labels."""

import contextlib
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

import click
from rich.filesize import decimal

from flows.cli.commands import Group
from flows.cli.common_options import json_option, print_json
from flows.cli.display import say
from flows.machine.services import running
from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks.dataset.database import database_folder, running_server

# What is lost with each part; it is the file or folder of that name, or what PATTERNS says.
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
    "sources": "folders whose pictures may be read again; name them with --source",
    "rates": "how long a frame took in the last run; measured again",
    "hints": "which hints were given; given again",
    "matplotlib": "Matplotlib's list of fonts; made again",
    "demo": "the demo's sequences and labels; `autolabel demo`",
    "prefect": "Prefect's database: the history of runs, and the nights of `autolabel nightly`",
    "plugins": "links to the review plugin; made again",
    "services": "passwords and logs of `autolabel up`",
    "mongodb": "FiftyOne's datasets; rebuilt from labels by `autolabel review rebuild`",
}
ALL = "all"
PATTERNS = {"demo": "demo-*", "prefect": "prefect*"}


def parts() -> dict[str, list[Path]]:
    """Return the files and folders of every part of the cache that is there."""
    found = {name: sorted(cache_folder().glob(PATTERNS.get(name, name))) for name in KINDS}
    found["mongodb"] = [folder for folder in (database_folder(),) if folder.exists()]
    return {name: paths for name, paths in found.items() if paths}


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder, links as what they are."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(map(_size, path.iterdir()))


def _sizes(chosen: Mapping[str, list[Path]]) -> dict[str, int]:
    """Return bytes by part, the largest first."""
    sizes = {name: sum(map(_size, paths)) for name, paths in chosen.items()}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _show(sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        say(f"{decimal(size):>12}  {name:<12} {KINDS[name]}", err=True)


def refuse_in_use(names: Collection[str]) -> None:
    """Refuse to clear what a running process needs.

    Raises:
        AutolabelError: what is in use, and how to end that.

    """
    if {"services", "mongodb", "prefect"}.intersection(names) and running():
        raise AutolabelError("`autolabel up` is running: `autolabel down` first")
    if "mongodb" in names and running_server():
        raise AutolabelError(
            "the database is in use: end `autolabel review` or what else uses it; where nothing "
            "does any more, `autolabel review stop` ends it"
        )


@click.group(cls=Group)
def command() -> None:
    """List and clear what is kept on this machine besides labels."""


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the parts of the cache, their sizes, and how to get them back."""
    sizes = _sizes(parts())
    if not print_json(as_json, {"folder": str(cache_folder()), "bytes": sizes}):
        _show(sizes)
        say(f"{decimal(sum(sizes.values())):>12}  in {cache_folder()}", err=True)


@command.command("clear")
@click.argument("names", metavar="NAME...", nargs=-1)
@json_option
def clear_(names: tuple[str, ...], as_json: bool) -> None:
    """Remove parts of the cache by the names of `autolabel cache list`; labels stay.

    `all` removes everything, before uninstalling for instance.
    """
    everything = names == (ALL,)
    unknown = ", ".join(sorted(set(names) - KINDS.keys()))
    if not everything and (unknown or not names):
        raise click.UsageError(
            f"{f'no {unknown}; ' if unknown else ''}name what to clear "
            f"({', '.join(sorted(KINDS))}), or {ALL} alone"
        )
    chosen = {name: paths for name, paths in parts().items() if everything or name in names}
    sizes = _sizes(chosen)
    _show(sizes)
    freed = decimal(sum(sizes.values()))
    refuse_in_use(chosen)
    print_json(as_json, {"bytes": sizes})
    for path in (path for paths in chosen.values() for path in paths):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if everything and not any(cache_folder().iterdir()):
        with contextlib.suppress(OSError):  # a mount point stays
            cache_folder().rmdir()
    say(f"freed {freed}", err=True)
