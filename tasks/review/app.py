"""The FiftyOne App with our plugin, on this machine only, started and stopped cleanly."""

from __future__ import annotations

import contextlib
import html
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.dataset.database import ensure_database
from tasks.review.door import TOKEN, bind, bind_next, page
from tasks.review.server import TOKEN_VARIABLE
from tasks.store.private_files import close_file, private_folder, write_private

PLUGIN_NAME = "sam2-autolabel"
DEFAULT_PORT = 5151  # where FiftyOne's own App is, too
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class App:
    """A running App server.

    Attributes:
        url: where it listens.
        process: which serves it.
        token: what lets a browser in; links have it.

    """

    url: str
    process: subprocess.Popen[bytes]
    token: str

    @property
    def port(self) -> int:
        """Where it listens on this machine."""
        return int(self.url.rpartition(":")[2])

    def link(self, dataset: str = "", **query: str) -> str:
        """Return the address of a dataset in the App; `view`, `id` and `groupId` lead deeper.

        Whoever has it may do everything in the App.
        """
        path = f"/datasets/{urllib.parse.quote(dataset)}" if dataset else "/"
        return f"{self.url}{path}?{urllib.parse.urlencode({**query, TOKEN: self.token})}"


def install_plugin() -> Path:
    """Make the review plugin known to FiftyOne and return where it looks for plugins.

    A user's own plugin folder gets a link to ours; without one, ours is the only folder.
    """
    source = Path(__file__).parent / "fiftyone_plugin"
    chosen = os.environ.get("FIFTYONE_PLUGINS_DIR")
    usual = Path.home() / "fiftyone" / "__plugins__"
    if chosen:
        folder = Path(chosen).expanduser()
    else:
        folder = usual if usual.is_dir() else cache_folder() / "plugins"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / PLUGIN_NAME
    if not (link.is_symlink() and link.resolve() == source.resolve()):
        temporary = folder / f".{PLUGIN_NAME}.{os.getpid()}"
        temporary.symlink_to(source, target_is_directory=True)
        if link.is_dir() and not link.is_symlink():
            temporary.unlink()
            raise AutolabelError(f"{link} is in the way of our review plugin: move it elsewhere")
        temporary.replace(link)
    os.environ["FIFTYONE_PLUGINS_DIR"] = str(folder)
    return folder


@contextlib.contextmanager
def run_app(port: int | None = 0, log: Path | None = None) -> Iterator[App]:
    """Start the App on 127.0.0.1, wait until it answers, and stop it when the block ends.

    Args:
        port: 0 takes any free one, None `DEFAULT_PORT` or the next one that is free.
        log: where the server's own output goes; below the cache folder by default.

    Raises:
        AutolabelError: it does not start; says where its log is.

    """
    ensure_database()
    install_plugin()
    log = close_file(log or private_folder(cache_folder() / "services") / "review-app.log")
    token = secrets.token_urlsafe(32)
    with (
        bind_next(DEFAULT_PORT) if port is None else bind(port) as listener,
        log.open("wb") as output,
    ):
        process = subprocess.Popen(
            [*app_command(listener), "tied"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, TOKEN_VARIABLE: token},
            pass_fds=(listener.fileno(),),
            start_new_session=True,  # Ctrl-C reaches us, and we stop it in order
        )
        app = App(f"http://127.0.0.1:{listener.getsockname()[1]}", process, token)
    try:
        _wait_until_up(app, log)
        yield app
    finally:
        _browser_file().unlink(missing_ok=True)
        _stop(process)


def app_command(listener: socket.socket) -> list[str]:
    """Command line of the App's process, which inherits the socket that it listens on."""
    return [sys.executable, "-m", "tasks.review.server", str(listener.fileno())]


def open_in_browser(link: str) -> None:
    """Open a link by a file that leads there: whoever lists processes does not see it."""
    target = html.escape(link)
    head = f'<meta http-equiv="refresh" content="0;url={target}">'
    write_private(_browser_file(), page("FiftyOne", f'<a href="{target}">Go on</a>', head))
    webbrowser.open(_browser_file().as_uri())


def _browser_file() -> Path:
    return private_folder(cache_folder() / "services") / "open-app.html"


def _wait_until_up(app: App, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if app.process.poll() is not None:
            break
        if processes.answers(app.url):
            return
        time.sleep(0.2)
    last = log.read_text(errors="replace").strip().splitlines()[-3:]
    raise AutolabelError(f"the App did not start: {' | '.join(last)[-500:]}. See {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the server and whatever it started."""
    signals = (signal.SIGINT, *processes.POLITE)
    processes.end(process, STOP_TIMEOUT_S, signals=signals, group=True)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
