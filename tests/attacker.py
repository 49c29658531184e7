"""A web page of somebody else, which the user's browser opens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>Kittens</title>")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def attackers_origin() -> Iterator[str]:
    """Another port of 127.0.0.1: a browser sends it, and its requests, this machine's cookies."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


# Asks for a picture by a tag, and for everything else by `fetch`: readable, then blind.
_ATTACK = """async ([picture, asked]) => {
  const seen = await new Promise((answer) => {
    const image = new Image();
    image.onload = () => answer(image.width > 0);
    image.onerror = () => answer(false);
    image.src = picture;
  });
  const told = [];
  for (const [url, method, body] of asked)
    for (const mode of ["cors", "no-cors"])
      for (const credentials of ["include", "omit"])
        for (const type of ["application/json", "text/plain"])
          try {
            const options = {method, mode, credentials};
            if (body) options.body = JSON.stringify(body);
            const answer = await fetch(url, {...options, headers: {"Content-Type": type}});
            if (mode == "cors") told.push([url, answer.status, await answer.text()]);
          } catch (error) { /* the browser keeps the answer from us */ }
  return [seen, told];
}"""


def attack(page: Any, picture: str, asked: list[tuple[str, str, Any]]) -> tuple[bool, list[Any]]:
    """From the open page load a picture and send requests; returns what the page came to know."""
    seen, told = page.evaluate(_ATTACK, [picture, [list(one) for one in asked]])
    return seen, told
