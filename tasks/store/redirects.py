"""Redirects of web servers: none leads from the internet into a private network."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
from typing import Any


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
def redirect_guard() -> Any:
    """Return aiohttp's trace that ends a request at a redirect from a public to a private address.

    A server that is itself private may redirect within private networks.
    """
    import aiohttp
    from yarl import URL

    async def refuse(_session: Any, _context: Any, redirect: Any) -> None:
        headers = redirect.response.headers
        target = redirect.url.join(URL(headers.get("Location") or headers.get("URI") or ""))

        def leads_inside() -> bool:
            return is_private(target.host or "") and not is_private(redirect.url.host or "")

        if target.host and await asyncio.get_running_loop().run_in_executor(None, leads_inside):
            from tasks.store.storage import StorageError

            raise StorageError(
                f"{redirect.url.host} redirects to {target.host}, which is a private address: "
                "name the address itself if you trust it"
            )

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse)
    return trace
