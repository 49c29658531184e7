"""A page to try a served model: boxes and clicks on one picture, in this machine's browser."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from sam2_core.images import open_image
from sam2_core.redaction import redact
from sam2_core.serving.client import Sam2Client
from sam2_core.types import AutolabelError, Masks

_PAGE = Path(__file__).with_name("demo.html")
_MOST_BYTES = 1 << 16
_HOSTS = {"127.0.0.1", "localhost"}


class DemoServer(ThreadingHTTPServer):
    """A server of the page.

    Attributes:
        url: address of the page, for the one who may see it.

    """

    daemon_threads = True
    url: str = ""


def demo_server(client: Sam2Client, picture: Path, port: int = 0) -> DemoServer:
    """Return a server of the page on 127.0.0.1; `serve_forever` runs it.

    Its address has a secret in it, so that other users of this machine cannot look.

    Args:
        client: of the model.
        picture: what to click on.
        port: 0 for any free one.

    Raises:
        AutolabelError: the picture cannot be read.

    """
    page, door = _Page(client, picture), f"/{secrets.token_urlsafe(18)}/"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = page.file(self.path.removeprefix(door)) if self._may() else None
            kind, content = found or ("text/plain", b"not here")
            self._answer(200 if found else 404, kind, content)

        def do_POST(self) -> None:
            if not self._may():
                self._answer(404, "text/plain", b"not here")
                return
            status, told = page.answer(self._json)
            self._answer(status, "application/json", json.dumps(told).encode())

        def _may(self) -> bool:
            return secrets.compare_digest(self.path.encode()[: len(door)], door.encode())

        def _json(self) -> Any:
            length = int(self.headers.get("Content-Length", 0))
            # Another page in the same browser can send no JSON here without being asked first.
            if self.headers.get("Content-Type") != "application/json" or length > _MOST_BYTES:
                raise AutolabelError("expected a little JSON")
            return json.loads(self.rfile.read(length))

        def _answer(self, status: int, kind: str, content: bytes) -> None:
            if self.headers.get("Host", "").partition(":")[0] not in _HOSTS:
                status, kind, content = 403, "text/plain", b"only as 127.0.0.1"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:  # the terminal is the user's
            return

    server = DemoServer(("127.0.0.1", port), Handler)
    server.url = f"http://127.0.0.1:{server.server_port}{door}"
    return server


class _Page:
    def __init__(self, client: Sam2Client, picture: Path) -> None:
        self._client, self._picture = client, picture
        self._image = client.set_image(open_image(picture))

    def file(self, name: str) -> tuple[str, bytes] | None:
        """Return a file of the page: its kind and content."""
        if name == "":
            return "text/html; charset=utf-8", _PAGE.read_bytes()
        return ("image/*", self._picture.read_bytes()) if name == "picture" else None

    def answer(self, read: Callable[[], Any]) -> tuple[int, dict[str, Any]]:
        """Answer what is read: HTTP's status, and a mask or an error."""
        try:
            return 200, self.mask(read())
        except (AutolabelError, ValueError, KeyError, TypeError) as error:
            return 400, {"error": redact(str(error) or repr(error))}

    def mask(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Make the mask of a box and clicks."""
        started = time.perf_counter()
        points = [[float(x), float(y)] for x, y, _ in asked["points"]]
        labels = [int(bool(yes)) for *_, yes in asked["points"]]
        box = None if asked["box"] is None else [[float(one) for one in asked["box"]]]
        masks = self._client.predict(
            self._image, boxes_xyxy_px=box,
            points_px=np.array([points], np.float32) if points else None,
            labels=np.array([labels], np.int32) if points else None,
        )  # fmt: skip
        return {
            "runs": _runs(masks), "area_px": int(masks.area_px[0]), "reason": masks.reasons[0],
            "milliseconds": round(1000 * (time.perf_counter() - started)),
        }  # fmt: skip


def _runs(masks: Masks) -> list[int]:
    """Return the lengths of a mask's runs, column by column, background first."""
    flat = masks.to_array(0).T.reshape(-1)
    edges = np.flatnonzero(np.diff(flat, prepend=False)) if len(flat) else flat
    runs: list[int] = np.diff(np.concatenate([[0], edges, [len(flat)]])).tolist()
    return runs
