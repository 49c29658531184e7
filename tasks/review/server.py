"""The process of FiftyOne's App behind our door: `python -m tasks.review.server SOCKET [tied]`.

SOCKET is the number of a listening socket that was inherited; the token is in the environment. The
App runs inside this process, so that there is no second port without a door. A process that is
`tied` ends when its standard input closes, that is with its parent, even one that was killed.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import TYPE_CHECKING

from tasks.dataset.database import ensure_database
from tasks.dataset.keep import end_without_waiting
from tasks.processes import end_with_parent
from tasks.review.door import Door
from tasks.review.media import MediaGate, has_sample, media_folders

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


def _copy_ids_at_once() -> None:
    """Spare FiftyOne half of what it does on its one thread whenever a frame is opened.

    It copies the view with every field that the sidebar shows, and the queue has an id for each of
    its labels. Ids never change.
    """
    from bson import ObjectId

    ObjectId.__deepcopy__ = lambda self, memo: self


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

    _copy_ids_at_once()
    end_without_waiting()
    set_port(listener.getsockname()[1])
    guarded = Door(MediaGate(_as_linked(app), media_folders(), has_sample), token, ADVICE)
    config = uvicorn.Config(
        guarded, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=1
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
