"""The FiftyOne App with our plugin, on this machine only, started and stopped cleanly."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks.dataset.database import ensure_database

PLUGIN_NAME = "sam2-autolabel"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class App:
    """A running App server."""

    url: str
    process: subprocess.Popen[bytes]

    def link(self, dataset: str, **query: str) -> str:
        """Return the address of a dataset in the App; `view`, `id` and `groupId` lead deeper."""
        path = f"{self.url}/datasets/{urllib.parse.quote(dataset)}"
        return f"{path}?{urllib.parse.urlencode(query)}" if query else path


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
def run_app(port: int = 0, log: Path | None = None) -> Iterator[App]:
    """Start the App on 127.0.0.1, wait until it answers, and stop it when the block ends.

    Args:
        port: 0 takes a free one.
        log: where the server's own output goes; below the cache folder by default.

    Raises:
        AutolabelError: it does not start; says where its log is.

    """
    ensure_database()
    install_plugin()
    port = port or _free_port()
    log = log or cache_folder() / "review-app.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "fiftyone.server.main", "--port", str(port),
        "--address", "127.0.0.1",
    ]  # fmt: skip
    # The plugin imports our packages, and Python itself ignores a bare name on the path.
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": paths, "FIFTYONE_APP_DEFAULT_QUERY_PERFORMANCE": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches us, and we stop it in order
        )
    app = App(f"http://127.0.0.1:{port}", process)
    try:
        _wait_until_up(app, log)
        yield app
    finally:
        _stop(process)


def _wait_until_up(app: App, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if app.process.poll() is not None:
            break
        if _answers(f"{app.url}/fiftyone"):
            return
        time.sleep(0.2)
    last = log.read_text(errors="replace").strip().splitlines()[-3:]
    raise AutolabelError(f"the App did not start: {' | '.join(last)[-500:]}. See {log}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - http://127.0.0.1
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the server and whatever it started."""
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
