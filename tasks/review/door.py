"""What stands between the pages that we serve and everybody who is not their user.

A server on 127.0.0.1 can be reached by every web page that the user opens (the browser sends the
request), under any name (an attacker's name may resolve to 127.0.0.1), and by every other user of
the machine. So: the name must be this machine's, a request must not come from another page, and who
has no cookie must have come through the link with the token once.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import html
import socket
import urllib.parse
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN = "token"  # noqa: S105 - the name of a query parameter
NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
PRIVATE_HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
}
# Other pages may neither frame nor embed what is sent, not even from the browser's cache.
_FOR_ITSELF = {
    b"x-frame-options": b"SAMEORIGIN",
    b"cross-origin-resource-policy": b"same-origin",
}
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>{head}
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:36em;margin:12vh auto;padding:0 1em}}
a{{display:inline-block;margin:.3em 0}}</style><h1>{title}</h1>{body}</html>"""


class Door:
    """Lets an ASGI application's own user in, and nobody else.

    Args:
        app: what is behind the door.
        token: who knows it may come in; without one, whoever passes the other checks.
        advice: what a person without a token reads.
        is_ours: tells whether requests may call this server by a name.

    """

    def __init__(
        self,
        app: ASGIApp,
        token: str = "",
        advice: str = "not signed in",
        is_ours: Callable[[str], bool] = NAMES.__contains__,
    ) -> None:
        self._app, self._token, self._advice, self._is_ours = app, token, advice, is_ours

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        from starlette.requests import HTTPConnection
        from starlette.responses import HTMLResponse
        from starlette.websockets import WebSocket

        asked = HTTPConnection(scope)
        reason = _not_from_here(asked.headers, scope.get("method", "GET"), self._is_ours)
        if not reason and self._token:
            given = asked.query_params.get(TOKEN, "")
            if scope.get("method") == "GET" and _same(given, self._token):
                await self._welcome(asked)(scope, receive, send)
                return
            name, value = self._cookie()
            reason = "" if _same(asked.cookies.get(name, ""), value) else self._advice
        if not reason:
            await self._app(scope, receive, with_headers(send, _FOR_ITSELF))
        elif scope["type"] == "websocket":
            await WebSocket(scope, receive, send).close(1008)
        else:
            body = page("Access refused", f"<p>{html.escape(reason)}</p>")
            await HTMLResponse(body, 403, PRIVATE_HEADERS)(scope, receive, send)

    def _cookie(self) -> tuple[str, str]:
        """Name and value. Ports share cookies: each door has a name of its own."""

        def derived(what: str) -> str:
            return hmac.new(self._token.encode(), what.encode(), hashlib.sha256).hexdigest()

        return f"autolabel-{derived('name')[:8]}", derived("cookie")

    def _welcome(self, asked: HTTPConnection) -> ASGIApp:
        """Set the cookie, and lead on to the same page without the token."""
        from starlette.responses import HTMLResponse

        kept = [pair for pair in asked.query_params.multi_items() if pair[0] != TOKEN]
        query = urllib.parse.urlencode(kept)
        # One slash: `//host` would lead to another host.
        path = "/" + urllib.parse.quote(asked.scope["path"].lstrip("/"))
        target = html.escape(f"{path}?{query}" if query else path)
        # Not a redirect: after one, a browser that came here from elsewhere would keep the cookie.
        head = f'<meta http-equiv="refresh" content="0;url={target}">'
        response = HTMLResponse(
            page("Signed in", f'<a href="{target}">Go on</a>', head), headers=PRIVATE_HEADERS
        )
        name, value = self._cookie()
        response.set_cookie(name, value, httponly=True, samesite="strict", path="/")
        return response


def bind(port: int, otherwise: str = "") -> socket.socket:
    """Listen on a port of 127.0.0.1: from here on nobody else can be there instead of us.

    Args:
        port: 0 takes a free one.
        otherwise: what else to do where the port is taken.

    Raises:
        AutolabelError: something else listens there.

    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after a restart
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise AutolabelError(
            f"port {port} of 127.0.0.1 is taken by something that this command did not start "
            f"({error.strerror}): end that, or name another port"
            f"{f', or {otherwise}' if otherwise else ''}"
        ) from error
    return listener


def bind_next(port: int, tries: int = 20) -> socket.socket:
    """Listen on the first of some successive ports of 127.0.0.1 that is free.

    Raises:
        AutolabelError: all of them are taken.

    """
    for one in range(port, port + tries):
        with contextlib.suppress(AutolabelError):
            return bind(one)
    raise AutolabelError(
        f"ports {port} to {port + tries - 1} of 127.0.0.1 are all taken: name another port"
    )


def page(title: str, body: str, head: str = "") -> str:
    """Make a small page of our own; `body` and `head` are HTML."""
    return _PAGE.format(title=html.escape(title), body=body, head=head)


def _not_from_here(headers: Headers, method: str, is_ours: Callable[[str], bool]) -> str:
    """Say why a request was made by another page, or under another machine's name; "" if not."""
    host = headers.get("host", "")
    if len(headers.getlist("host")) != 1 or not is_ours(_name(host)):
        return f"{host or 'no host'} is not a name of this machine: use 127.0.0.1"
    origin = headers.get("origin")
    if origin is not None and origin not in {f"http://{host}", f"https://{host}"}:
        return f"pages of {origin} may not use this one"
    kind = (method, headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
    followed = kind == ("GET", "navigate", "document")
    if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} and not followed:
        return "other pages may not use this one"
    return ""


def _name(host: str) -> str:
    """Host without its port: a forwarded one may differ."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


def with_headers(send: Send, ours: Mapping[bytes, bytes]) -> Send:
    """Send answers with these headers, whose names are in lower case, in the place of their own."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            theirs = [pair for pair in message.get("headers", ()) if pair[0].lower() not in ours]
            message["headers"] = [*theirs, *ours.items()]
        await send(message)

    return sending
