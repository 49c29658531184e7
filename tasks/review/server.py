"""The process of FiftyOne's App behind our door: `python -m tasks.review.server SOCKET [tied]`.

SOCKET is the number of a listening socket that was inherited; the token is in the environment. The
App runs inside this process, so that there is no second port without a door. A process that is
`tied` ends when its standard input closes, that is with its parent, even one that was killed.
"""

from __future__ import annotations

import mimetypes
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sam2_core.cache import cache_folder
from tasks.dataset.database import ensure_database
from tasks.dataset.database_keeper import end_without_waiting
from tasks.processes import end_with_parent
from tasks.review.door import Door

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN_VARIABLE = "AUTOLABEL_APP_TOKEN"  # noqa: S105 - a name
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


def _as_linked(app: ASGIApp) -> ASGIApp:
    """Have a page that is opened by a link show the view that the link names.

    FiftyOne keeps one state for all pages, and once a page has reloaded its dataset the next one
    was led to the view of that.
    """
    from fiftyone.core.state import StateDescription
    from fiftyone.server.events.state import set_state

    async def opening(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/datasets/"):
            names = [part.partition(b"=")[0] for part in scope["query_string"].split(b"&")]
            if b"view" in names:
                set_state(StateDescription())
        await app(scope, receive, send)

    return opening


def main() -> None:
    """Serve the App until SIGTERM or SIGINT."""
    from tasks.review.app import install_plugin

    if "tied" in sys.argv:
        threading.Thread(target=end_with_parent, daemon=True).start()
    listener = socket.socket(fileno=int(sys.argv[1]))
    token = os.environ.pop(TOKEN_VARIABLE)
    ensure_database()
    install_plugin()
    os.environ |= FIFTYONE_SETTINGS

    import uvicorn
    from fiftyone.server.app import app
    from fiftyone.server.events import set_port

    end_without_waiting()
    set_port(listener.getsockname()[1])
    guarded = Door(MediaGate(_as_linked(app), media_folders(), has_sample), token, ADVICE)
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
    from fiftyone.core.odm import get_db_conn

    from tasks.review.set_aside import VERSION, difference

    database: Any = get_db_conn()
    names = database.datasets.distinct("sample_collection_name")
    found = [database[name].find_one({"filepath": path}, VERSION) for name in names if name]
    samples = [one for one in found if one]
    return any(not difference(one) for one in samples) if samples else None


if __name__ == "__main__":
    main()
