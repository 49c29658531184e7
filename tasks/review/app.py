"""The FiftyOne App with our plugin, on this machine only, started and stopped cleanly.

Its process is `python -m tasks.review.app SOCKET [tied]`. SOCKET is the number of a listening
socket that was inherited, or ADDRESS:PORT in a container; the token is in the environment. The App
runs inside this process, so that there is no second port without a door. A process that is `tied`
ends when its standard input closes, that is with its parent, even one that was killed.
"""

from __future__ import annotations

import contextlib
import mimetypes
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks import processes
from tasks.dataset.database import end_without_waiting, ensure_database
from tasks.review.door import NAMES, TOKEN, Door, bind, bind_next
from tasks.store.private_files import close_file, private_folder

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN_VARIABLE = "AUTOLABEL_APP_TOKEN"  # noqa: S105 - a name
NAMES_VARIABLE = "AUTOLABEL_APP_NAMES"  # host names, by commas, that a proxy serves the App under
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
            processes.python("tasks.review.app", str(listener.fileno()), "tied"),
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
        processes.end(process, STOP_TIMEOUT_S, group=True)


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


# Plugins are read again when their folder has changed. Otherwise FiftyOne reads and compiles all of
# them for every operator, on the thread that answers everybody.
FIFTYONE_SETTINGS = {
    "FIFTYONE_SERVER": "1", "FIFTYONE_APP_DEFAULT_QUERY_PERFORMANCE": "1",
    "FIFTYONE_PLUGINS_CACHE_ENABLED": "1",
}  # fmt: skip
ADVICE = (
    "This is the FiftyOne App of somebody's labels. Open it by the link that `autolabel review` or "
    "`autolabel up` has printed: it signs this browser in."
)


CLICK_PAGE_PATH = "/autolabel/click_page.js"  # the plugin loads it from there


def _as_linked(app: ASGIApp) -> ASGIApp:
    """Have a page that is opened by a link show the view that the link names; send the click page.

    FiftyOne keeps one state for all pages, and once a page has reloaded its dataset the next one
    was led to the view of that.
    """
    from fiftyone.core.state import StateDescription
    from fiftyone.server.events.state import set_state
    from starlette.responses import FileResponse

    from sam2_core.serving.http_front import CLICK_PAGE

    page = FileResponse(CLICK_PAGE)

    async def opening(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == CLICK_PAGE_PATH:
            await page(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"].startswith("/datasets/"):
            names = [part.partition(b"=")[0] for part in scope["query_string"].split(b"&")]
            if b"view" in names:
                set_state(StateDescription())
        await app(scope, receive, send)

    return opening


def main() -> None:
    """Serve the App until SIGTERM or SIGINT."""
    if "tied" in sys.argv:
        threading.Thread(target=processes.end_with_parent, daemon=True).start()
    from sam2_core.serving.http_front import listen

    address, colon, number = sys.argv[1].rpartition(":")
    port = int(number)
    listener = listen(address, port, "SOCKET") if colon else socket.socket(fileno=port)
    token = os.environ.pop(TOKEN_VARIABLE, "")
    if not token:  # nobody would be asked for one
        sys.exit(f"{TOKEN_VARIABLE} is empty: set it to the secret that links shall have")
    named = os.environ.get(NAMES_VARIABLE, "").lower().replace(",", " ").split()
    ensure_database()
    install_plugin()
    os.environ |= FIFTYONE_SETTINGS

    import uvicorn
    from fiftyone.server.app import app
    from fiftyone.server.events import set_port

    end_without_waiting()
    set_port(listener.getsockname()[1])
    shown = MediaGate(_as_linked(app), media_folders(), has_sample)
    guarded = Door(shown, token, ADVICE, NAMES.union(named).__contains__)
    config = uvicorn.Config(
        guarded, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=1
    )
    uvicorn.Server(config).run(sockets=[listener])


DIRECTORIES_VARIABLE = "AUTOLABEL_MEDIA_DIRS"
_KINDS = ("image/", "video/")


class MediaGate:
    """Answers "not found" for files that no page of the App has any business with.

    Args:
        app: FiftyOne's application.
        folders: whose pictures and videos may be shown, wherever links in them lead inside.
        recorded: says whether a dataset has a sample of that file, with the content it has now;
            None where no dataset has one.

    """

    def __init__(
        self, app: ASGIApp, folders: list[Path], recorded: Callable[[str], bool | None]
    ) -> None:
        self._app, self._recorded = app, recorded
        self._folders = [os.path.join(os.path.realpath(folder), "") for folder in folders]  # noqa: PTH118

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on unless it is for a file that is not to be shown."""
        if scope["type"] == "http" and scope["path"].rstrip("/") == "/media":
            import anyio
            from starlette.datastructures import QueryParams
            from starlette.responses import PlainTextResponse

            path = QueryParams(scope["query_string"]).get("filepath", "")
            if path and not await anyio.to_thread.run_sync(self.may_show, path):
                await PlainTextResponse("Not found", 404)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def may_show(self, path: str) -> bool:
        """Whether the App may show a file; asked anew each time, because files change."""
        if "\0" in path:
            return False
        real = os.path.realpath(path)
        kind, _ = mimetypes.guess_type(real)
        if not (kind or "").startswith(_KINDS):  # also where a link of that name leads elsewhere
            return False
        recorded = self._recorded(path)
        return real.startswith(tuple(self._folders)) if recorded is None else recorded


def media_folders() -> list[Path]:
    """Folders whose pictures may be shown: frames of ours, masks, what the user names."""
    named = os.environ.get(DIRECTORIES_VARIABLE, "").split(os.pathsep)
    masks = os.environ.get("AUTOLABEL_MASK_DIR", "")
    chosen = [Path(one).expanduser() for one in (*named, masks) if one]
    return [cache_folder() / "frames", *chosen]


def has_sample(path: str) -> bool | None:
    """Whether a dataset has a sample of that very file as it is now; None where none has any.

    A file that was rewritten is not shown, or the old labels would be seen on the new picture.
    """
    from tasks.dataset.layout import database
    from tasks.review.set_aside import VERSION, difference

    names = database().datasets.distinct("sample_collection_name")
    found = [database()[name].find_one({"filepath": path}, VERSION) for name in names if name]
    samples = [one for one in found if one]
    return any(not difference(one) for one in samples) if samples else None


if __name__ == "__main__":
    main()
