"""The password of our Prefect server, and how a browser gets it without anybody typing it.

Prefect's pages ask for the password and keep it in the browser's storage for their address. The
link that `autolabel up` prints leads to a small page of the server's own that puts it there. The
password is in the link's fragment, which browsers do not send: no request and no log has it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import secrets
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flows.machine.services import LINKS
from tasks.review.door import PRIVATE_HEADERS, page, with_headers
from tasks.store.private_files import (
    private_folder,
    read_or_create_secret,
    read_secret,
    write_private,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

# Prefect's pages would ask an analytics service how much they should tell it.
_ASKING_NOBODY_ELSE = {b"content-security-policy": b"connect-src 'self'"}
SERVER_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
CLIENT_AUTH = "PREFECT_API_AUTH_STRING"
USER = "autolabel"
PATH = "/sign-in"
SHOWS = {"Prefect": ": runs, schedules, workers", "FiftyOne": ": labels to look at and to review"}
# Any page can open this one with a password of its own: only the server's is kept.
_SCRIPT = """const given = btoa(decodeURIComponent(location.hash.slice(1)));
fetch("/api/admin/version", {headers: {Authorization: `Basic ${given}`}}).then((answer) => {
  if (answer.ok) localStorage.setItem("prefect-password", given);
}).finally(() => location.replace("/"));"""


def new_auth() -> str:
    """Make a password that has never been used."""
    return f"{USER}:{secrets.token_urlsafe(32)}"


def auth_file(folder: Path) -> Path:
    """Where the password of the server in a folder of services is."""
    return folder / "prefect-password"


def choose_auth(folder: Path) -> str:
    """Return the password for a server to be started: the user's own, else this installation's."""
    file = auth_file(private_folder(folder))
    if own := os.environ.get(SERVER_AUTH):
        write_private(file, own)
    return read_or_create_secret(file, new_auth)


def known_auth(folder: Path) -> str:
    """Return the password of the server that runs.

    Raises:
        AutolabelError: there is none, or others could have read or made it.

    """
    return read_secret(auth_file(folder))


def sign_in_link(api: str, auth: str) -> str:
    """Return the address that signs a browser in to Prefect's pages."""
    return f"{api.removesuffix('/api')}{PATH}#{urllib.parse.quote(auth, safe='')}"


def write_links(folder: Path, links: Mapping[str, str], name: str = LINKS, head: str = "") -> Path:
    """Write a page of links that only this user can read, `head` in its HTML; returns it."""
    rows = "".join(
        f'<p><a href="{html.escape(link)}">{html.escape(name)}</a>'
        f"{html.escape(SHOWS.get(name, ''))}</p>"
        for name, link in links.items()
    )
    file = private_folder(folder) / name
    write_private(file, page("autolabel", rows, head))
    return file


class SignIn:
    """Adds the page that signs a browser in to Prefect's server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer for our page, pass everything else on."""
        from starlette.responses import HTMLResponse

        if scope["type"] == "http" and scope["path"] == PATH:
            digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
            policy = f"default-src 'none'; connect-src 'self'; script-src 'sha256-{digest}'"
            headers = PRIVATE_HEADERS | {"content-security-policy": policy}
            body = page("Signing in", "", f"<script>{_SCRIPT}</script>")
            await HTMLResponse(body, headers=headers)(scope, receive, send)
        else:
            await self._app(scope, receive, with_headers(send, _ASKING_NOBODY_ELSE))
