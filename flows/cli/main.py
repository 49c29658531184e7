"""The `autolabel` command: a lazy group, so that `--help` does not import heavy packages."""

import contextlib
import importlib
import os
import re
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from flows.cli.commands import Group
from sam2_core.cache import (
    absolute_places,
    cache_folder,
    cannot_write,
    make_folder,
    refuse_unusable_places,
    variable_of,
)
from sam2_core.machine import NUMBERS
from sam2_core.machine_errors import causes, first_line, is_host_full
from sam2_core.redaction import one_line, redact
from sam2_core.types import AutolabelError
from tasks.processes import SAFE_PATH, collect_seldom, handling
from tasks.types import NothingFoundError

MOST_FILES, LEAST_FILES = 65_536, 1024
LEAST_ADDRESSES = 8 * 2**30  # a run on a CPU was measured to have 3 on two cores, each core adds
# Commands for repairs: they work with any environment.
MENDING = {"doctor", "down"}
INTERRUPTED = 128 + 2  # SIGINT
STOPPED = "stopped by Ctrl-C; run the same command again to continue"
# The click command of each is `command` in a module of flows.cli that has its name.
FIRST_COMMANDS = {
    "demo": "Label a few sequences: a first look.",
    "label": "Label frames and videos, from a disk or a bucket.",
    "review": "Review a dataset in the FiftyOne App.",
    "export": "Write labels as COCO, YOLO, PNG and more.",
    "evaluate": "Measure labels or a model against a truth or a run.",
    "status": "Show the state of runs and shards, and what to do.",
    "doctor": "Check what this machine has and lacks.",
    "docs": "Open the pages of this version in a browser.",
}
ADVANCED_COMMANDS = {
    "up": "Start what a workstation needs: server, database, workers.",
    "down": "Stop what `up` started.",
    "backfill": "Label what is missing, on workers.",
    "nightly": "Label what is new, every night.",
    "worker": "Run workers, one per GPU.",
    "models": "Download, export, build and certify models.",
    "serve": "Serve models on a Triton server.",
    "cache": "List and clear the cache.",
}
COMMANDS = FIRST_COMMANDS | ADVANCED_COMMANDS


class LazyGroup(Group):
    """Imports a command's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order that a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one command, imported."""
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"flows.cli.{cmd_name}").command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a usage error may repeat a secret, or what a shell made of names.

        Ctrl-C ends it with exit code 130, not with click's "Aborted!" and 1: that is a run of which
        something failed.
        """
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            if was_interrupted(error):
                said = str(error) if isinstance(error, KeyboardInterrupt) else ""
                click.echo(f"\n{said or STOPPED}", err=True)
                ctx.exit(INTERRUPTED)
            if not isinstance(error, click.ClickException):
                raise
            words = error.format_message()
            said = one_line(redact(words))
            of_ours = click.MissingParameter, click.exceptions.NoArgsIsHelpError  # their lines
            if said == words or isinstance(error, of_ours):
                raise
            raise click.UsageError(said, getattr(error, "ctx", None)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(FIRST_COMMANDS.items()))
        with formatter.section("Advanced commands"):
            formatter.write_dl(list(ADVANCED_COMMANDS.items()))


def was_interrupted(error: BaseException) -> bool:
    """Whether an error is a Ctrl-C, or what a library made of it: pydantic keeps its name only."""
    return any(
        isinstance(cause, KeyboardInterrupt) or KeyboardInterrupt.__name__ in str(cause)
        for cause in causes(error, contexts=True)
    )


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(package_name="sam2-autolabel")
def cli() -> None:
    """Label driving sequences with SAM 2 and review the masks in FiftyOne."""
    for problem in _limits():
        click.echo(f"warning: {problem}", err=True)
    refuse_unusable_places()
    with contextlib.suppress(OSError):  # one that is there keeps its mode: it may be shared
        make_folder(cache_folder())
    _refuse_settings_of_this_folder()
    if click.get_current_context().invoked_subcommand not in MENDING:
        for variable in NUMBERS:
            variable.read()
        api_url = os.environ.get("PREFECT_API_URL", "").strip()
        if api_url and not re.match(r"https?://[^/\s]", api_url):
            raise AutolabelError(
                f"PREFECT_API_URL={redact(api_url)} is not the address of a Prefect API such as "
                "http://127.0.0.1:4200/api; correct or unset it"
            )


def _refuse_settings_of_this_folder() -> None:
    """Refuse to work where Prefect would take settings, and so code to run, from a stranger.

    Raises:
        AutolabelError: a file of the working folder has settings for Prefect.

    """
    for name, has_some in _SETTINGS_OF_PREFECT.items():
        file = Path(name).absolute()
        if file.is_file() and (
            file.stat().st_size > _MOST_SETTINGS or has_some(file.read_text(errors="replace"))
        ):
            raise AutolabelError(
                f"{file} has settings for Prefect, which would take them from the author of this "
                "folder: work in another one, and set what you need in the environment"
            )


def _is_of_prefect(project: str) -> bool:
    """Whether a pyproject.toml has settings for Prefect, or something that no TOML reader takes."""
    with contextlib.suppress(tomllib.TOMLDecodeError, RecursionError):
        tools = tomllib.loads(project).get("tool", {})
        return isinstance(tools, dict) and "prefect" in tools
    return True


_MOST_SETTINGS = 1 << 20  # bytes of such a file: a larger one is not read
# What says whether there are any, in a file's text.
_SETTINGS_OF_PREFECT: dict[str, Callable[[str], object]] = {
    ".env": lambda text: "prefect_" in text.casefold(),
    "prefect.toml": str.strip,
    "pyproject.toml": _is_of_prefect,
}


def _limits() -> Iterator[str]:
    """Let this process, and those that it starts, open many files; yield what limits them still."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < LEAST_FILES:
        yield (
            f"only {wanted} files may be open at once (ulimit -Hn): the database and the servers "
            f"need {LEAST_FILES}"
        )
    memory, _ = resource.getrlimit(resource.RLIMIT_AS)
    if memory != resource.RLIM_INFINITY and memory < LEAST_ADDRESSES:
        yield (
            f"a process may have {memory / 2**30:.1f} GiB of addresses (ulimit -v): labeling needs "
            f"{LEAST_ADDRESSES / 2**30:.0f} GiB, and on a GPU more than there is memory"
        )


def main() -> None:
    """Console entry point: 0 all done, 1 some failed, 2 bad usage or a known error, 130 Ctrl-C."""
    collect_seldom()
    absolute_places()
    os.environ[SAFE_PATH] = "1"
    # Else it writes its list of fonts beside our cache.
    os.environ.setdefault("MPLCONFIGDIR", str(cache_folder() / "matplotlib"))
    # What is asked to end, or loses its terminal, ends in order: it may be a database's last user.
    signals = (signal.SIGTERM, signal.SIGHUP)
    ends = [number for number in signals if signal.getsignal(number) is signal.SIG_DFL]
    try:
        with handling(lambda number, _: sys.exit(128 + number), *ends):
            cli(standalone_mode=True)
    except AutolabelError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1 if isinstance(error, NothingFoundError) else 2)
    except Exception as error:
        if not (said := _said_of(error)):
            raise
        click.echo(f"error: {said}", err=True)
        sys.exit(2)


def _said_of(error: Exception) -> AutolabelError | None:
    """Return what to say of a library's error that a user can act on; None for any other."""
    from tasks.dataset.database import gone, is_away

    if isinstance(error, OSError) and variable_of(os.fsdecode(error.filename or "")):
        return cannot_write(Path(os.fsdecode(error.filename)), error)
    if is_host_full(error):
        return AutolabelError(
            f"this machine has no room left ({first_line(error)}): make room on its disk or in its "
            "memory, and give the same command again"
        )
    return gone(error) if is_away(error) else None


if __name__ == "__main__":
    main()
