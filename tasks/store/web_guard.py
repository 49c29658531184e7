"""What web servers may not answer: a redirect into a private network, and compressed bodies."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
from typing import Any

# Of objects in some stores: how they were once uploaded, and nothing is compressed.
_UNCOMPRESSED = {"", "identity", "aws-chunked"}


def is_private(host: str) -> bool:
    """Whether a name or an address is of this machine or a private network.

    A name is private if one of its addresses is; one that does not resolve (behind a proxy, which
    resolves for us) is not.
    """
    host = host.strip("[]")
    try:
        addresses = {host} if _is_address(host) else _resolved(host)
    except OSError:
        return False
    return any(not ipaddress.ip_address(one.partition("%")[0]).is_global for one in addresses)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _resolved(host: str) -> set[str]:
    return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}


@functools.cache  # fsspec knows a filesystem again by the identity of its options
def web_guard() -> Any:
    """Return aiohttp's trace that ends requests with a StorageError.

    At a redirect from a public to a private address; a server that is itself private may redirect
    within private networks. And at a body that is compressed though nobody asked for it: nobody
    knows how large it becomes.
    """
    import aiohttp
    from yarl import URL

    from tasks.store.storage import StorageError

    async def refuse_redirect(_session: Any, _context: Any, redirect: Any) -> None:
        headers = redirect.response.headers
        target = redirect.url.join(URL(headers.get("Location") or headers.get("URI") or ""))

        def leads_inside() -> bool:
            return is_private(target.host or "") and not is_private(redirect.url.host or "")

        if target.host and await asyncio.get_running_loop().run_in_executor(None, leads_inside):
            raise StorageError(
                f"{redirect.url.host} redirects to {target.host}, which is a private address: "
                "name the address itself if you trust it"
            )

    async def refuse_compressed(_session: Any, _context: Any, request: Any) -> None:
        told = request.response.headers.get("Content-Encoding", "").lower()
        if {one.strip() for one in told.split(",")} - _UNCOMPRESSED:
            raise StorageError(
                f"{request.url.host} sends it compressed (Content-Encoding), so that nobody knows "
                "how large it becomes: let the server send it as it is"
            )

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse_redirect)
    trace.on_request_end.append(refuse_compressed)
    return trace
