"""Values and options that several commands have, and places that results are written to."""

import errno
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from sam2_core.redaction import redact
from sam2_core.types import AutolabelError


class FloatRange(click.FloatRange):
    """Numbers between bounds; refuses "nan", which passes every bound."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number; the usage error says what was wrong."""
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
PORT = click.IntRange(1, 65535)


notify_option = click.option(
    "--notify", metavar="URL", multiple=True,
    help="Who is told of a bad end: an address of apprise (Slack, Teams, e-mail, webhook) in a "
    "variable of the environment, '$SLACK_URL'. Can be repeated.",
)  # fmt: skip


def refuse(rules: Mapping[str, Any]) -> None:
    """Refuse the usage for the first rule, a message, that is broken."""
    for message, broken in rules.items():
        if broken:
            raise click.UsageError(message)


def split_names(text: str | None) -> tuple[str, ...]:
    """Read names with commas between them; none of None."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def print_json(wanted: bool, result: Any) -> bool:
    """Print a command's result as one JSON object on stdout, if `--json` was given.

    Returns whether it was, in which case nothing else goes to stdout.
    """
    if wanted:
        click.echo(json.dumps(result, indent=2))
    return wanted


# One word means one thing: commands that have the same option have it from here or, of labeling,
# from `flows.cli.options`.
json_option = click.option(
    "--json", "as_json", is_flag=True, is_eager=True, help="One JSON object on stdout."
)  # eager: known to options that end a command
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Say what would be done, and do nothing."
)
sources_option = click.option(
    "--source", "sources", metavar="URL", multiple=True,
    help="Read pictures below this folder, too, if another machine has labeled them; remembered. "
    "Can be repeated.",
)  # fmt: skip
images_option = click.option(
    "--images", type=FOLDER, metavar="FOLDER", help="Folder of the pictures."
)


def to_option(*, required: bool = False) -> Callable[[Any], Any]:
    """Return the option that says where to write."""
    return click.option(
        "--to", "target", metavar="FOLDER", required=required,
        help="Folder to write; an export also takes a URL.",
    )  # fmt: skip


port_option = click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Port to listen on; 0: any free one.",
)
workers_option = click.option(
    "--workers", "count", type=click.IntRange(1), metavar="N",
    help="Number of workers. Default: one for each GPU, else one.",
)  # fmt: skip


def check_writable(*, folders: Iterable[Path] = (), files: Iterable[Path] = ()) -> None:
    """Refuse places that cannot be written; folders, and those of files, are made.

    Raises:
        AutolabelError: naming the first such place.

    """
    files = list(files)
    for folder in (*folders, *(file.parent for file in files)):
        if url := re.match(r"(\w\w+):/+(.*)", str(folder)):
            named = redact(f"{url[1]}://{url[2]}")
            raise AutolabelError(f"{named}: reports are written to this machine, not to URLs")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise AutolabelError(f"cannot write to {folder}: {error.strerror}") from error
    for file in files:
        if file.exists() and not os.access(file, os.W_OK):
            raise AutolabelError(f"cannot write {file}: {os.strerror(errno.EACCES)}")


def check_report(folder: Path, page: str, mark: str) -> None:
    """Refuse a folder that holds something, unless that is an earlier report.

    Args:
        folder: for the report.
        page: name of its page.
        mark: what the page of such a report has, and other pages have not.

    Raises:
        AutolabelError: the folder cannot be written, or holds something else.

    """
    check_writable(folders=[folder])
    report = folder / page
    is_report = report.is_file() and mark in report.read_text(errors="replace")
    if not is_report and any(folder.iterdir()):
        raise AutolabelError(
            f"{folder} holds something that is no such report, and would be mixed with its files: "
            "name another folder"
        )
