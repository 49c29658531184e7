"""Triton's HTTP and metrics as far as they are open to clients, in front of its own sockets.

Triton runs code that a request brings (model control), reads and writes shared memory, and changes
its logs and traces for whoever reaches it. So it listens on sockets in a folder of this user alone,
and only what is listed here is passed on.

`demo_page` is a page to try a served model: boxes and clicks on one picture.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sam2_core.clicks import NO_BOX, drawn
from sam2_core.images import open_image
from sam2_core.redaction import redact
from sam2_core.serving.client import Sam2Client
from sam2_core.types import AutolabelError, FloatArray, Masks

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

# A model's name begins with no dot: `..` would lead elsewhere.
_OPEN = re.compile(
    r"/v2(/health/(live|ready)|/models/stats"
    r"|/models/\w[\w.-]*(/versions/\d+)?(/(ready|stats|infer))?)?",
    re.ASCII,
)
_METRICS = "/metrics"
# Clients say themselves how long they wait, and Triton drops what nobody waits for.
_LONGEST_S = 3600
# Not Content-Encoding: what Triton would unpack has no bound.
_OF_A_BODY = {"content-length", "inference-header-content-length"}
_PASSED = ("content-type", *_OF_A_BODY)


def triton_http(http: Path, metrics: Path) -> ASGIApp:
    """Return an application that passes on inference, metadata, statistics, health and metrics.

    Args:
        http: socket of Triton's HTTP.
        metrics: socket of Triton's metrics.

    """
    import httpx
    from starlette.applications import Starlette
    from starlette.background import BackgroundTask
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, StreamingResponse
    from starlette.routing import Route

    def client(path: Path) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        transport = httpx.AsyncHTTPTransport(verify=False, uds=str(path), limits=limits)
        patience = httpx.Timeout(5, read=_LONGEST_S, write=_LONGEST_S, pool=None)
        headers = {"accept-encoding": "identity"}
        return httpx.AsyncClient(
            transport=transport, base_url="http://triton", headers=headers, timeout=patience
        )

    to_models, to_metrics = client(http), client(metrics)

    async def passed(request: Request) -> Response:
        path = request.scope["raw_path"].decode("latin-1")
        headers = _some(request.headers)
        if refused := _refused(request, headers):
            return refused
        if path != _METRICS and not _OPEN.fullmatch(path):
            return JSONResponse({"error": f"{path} is not open to clients"}, 404)
        triton = to_metrics if path == _METRICS else to_models
        asked = triton.build_request(
            request.method, path, headers=headers,
            content=request.stream() if request.method == "POST" else None,
        )  # fmt: skip
        try:
            found = await triton.send(asked, stream=True)
        except ClientDisconnect:
            return JSONResponse({"error": "the client has gone"}, 400)
        except httpx.TransportError as error:
            why = str(error) or type(error).__name__
            return JSONResponse({"error": f"the models are not there: {why}"}, 503)
        return StreamingResponse(
            found.aiter_raw(), found.status_code, _some(found.headers),
            background=BackgroundTask(found.aclose),
        )  # fmt: skip

    return Starlette(routes=[Route("/{path:path}", passed, methods=["GET", "POST"])])


def _refused(request: Request, headers: dict[str, str]) -> Response | None:
    """Refuse requests whose end Triton and this front would not see at the same place."""
    from starlette.responses import JSONResponse

    if request.method == "HEAD":  # Triton's answer has a body, which the next one would follow
        return JSONResponse({}, 405, {"allow": "GET, POST"})
    if headers.keys() & _OF_A_BODY and request.method != "POST":
        return JSONResponse({"error": f"{request.method} takes no body"}, 400)
    if "transfer-encoding" in request.headers and "content-length" in headers:
        return JSONResponse({"error": "two lengths of one body"}, 400)
    return None


def _some(headers: Any) -> dict[str, str]:
    return {name: headers[name] for name in _PASSED if name in headers}


def listen(host: str, port: int, option: str) -> socket.socket:
    """Listen on a port; 0 takes a free one.

    Raises:
        AutolabelError: it is taken.

    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise AutolabelError(
            f"cannot listen on {host}:{port} ({option}): {error.strerror}"
        ) from error
    return listener


@contextlib.contextmanager
def answering(app: ASGIApp, *listeners: socket.socket, **tls: Any) -> Iterator[None]:
    """Answer requests in a thread until the block ends.

    Args:
        app: what answers.
        listeners: where; closed at the end.
        tls: as `uvicorn.Config` takes it.

    """
    import uvicorn

    server = uvicorn.Server(
        uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
            **tls,
        )
    )
    thread = threading.Thread(target=server.run, args=(list(listeners),), name="http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


CLICK_PAGE = Path(__file__).with_name("click_page.js")
_SMALL = 1 / 8  # of the picture's shorter side


def demo_page(
    client: Sam2Client, picture: Path, boxes_xyxy_px: FloatArray | None = None
) -> Starlette:
    """Return the application of the page, which whoever reaches it may use.

    Args:
        client: of the model.
        picture: what to click on.
        boxes_xyxy_px: float32 (N, 4), of objects in it: a click alone selects the one around it,
            where the model needs a box; by default a small box is put around the click.

    Raises:
        AutolabelError: the picture cannot be read.

    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import FileResponse, JSONResponse
    from starlette.routing import Route

    image = client.set_image(open_image(picture))
    boxes = np.zeros((0, 4), np.float32) if boxes_xyxy_px is None else boxes_xyxy_px

    def mask(asked: Mapping[str, Any]) -> dict[str, Any]:
        """Make the mask of a box and clicks."""
        started = time.perf_counter()
        points = [[float(x), float(y)] for x, y, _ in asked["points"]]
        labels = [int(bool(yes)) for *_, yes in asked["points"]]
        box = None if asked["box"] is None else [float(one) for one in asked["box"]]

        def predicted() -> Masks:
            return client.predict(
                image, boxes_xyxy_px=None if box is None else [box],
                points_px=np.array([points], np.float32) if points else None,
                labels=np.array([labels], np.int32) if points else None,
            )  # fmt: skip

        masks = predicted()
        if masks.reasons[0] == NO_BOX:
            box = _box_around(np.array(points[0], np.float32), boxes, image.size_hw)
            masks = predicted()
        whole = masks.to_array(0)
        rows, columns = (np.flatnonzero(whole.any(axis)) for axis in (1, 0))
        top, left = (int(rows[0]), int(columns[0])) if len(rows) else (0, 0)
        cut = whole[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] if len(rows) else whole
        return {
            "mask": drawn(cut, left, top), "box_xyxy_px": box, "area_px": int(masks.area_px[0]),
            "predicted_iou": round(float(masks.predicted_iou[0]), 3), "reason": masks.reasons[0],
            "milliseconds": round(1000 * (time.perf_counter() - started)),
        }  # fmt: skip

    async def answer(request: Request) -> Response:
        try:
            return JSONResponse(await run_in_threadpool(mask, await request.json()))
        except (AutolabelError, ValueError, KeyError, TypeError) as error:
            return JSONResponse({"error": redact(str(error) or repr(error))}, 400)

    async def name(_: Request) -> Response:
        return JSONResponse({"model": client.served.stamp.name})

    def file(path: Path) -> Callable[[Request], Awaitable[Response]]:
        async def send(_: Request) -> Response:
            return FileResponse(path)

        return send

    files = {
        "/": Path(__file__).with_name("demo.html"),
        "/picture": picture,
        "/click_page.js": CLICK_PAGE,
    }
    routes = [Route(at, file(path)) for at, path in files.items()]
    routes += [Route("/model", name), Route("/mask", answer, methods=["POST"])]
    return Starlette(routes=routes)


def _box_around(click_px: FloatArray, boxes: FloatArray, size_hw: tuple[int, int]) -> list[float]:
    """Return the smallest of boxes that a click is in, else a small one around it: xyxy, px."""
    inside = boxes[((boxes[:, :2] <= click_px) & (click_px <= boxes[:, 2:])).all(1)]
    if len(inside):
        sides = inside[:, 2:] - inside[:, :2]
        return [float(one) for one in inside[sides.prod(1).argmin()]]
    half, (height, width) = _SMALL * min(size_hw) / 2, size_hw
    corners = np.concatenate([click_px - half, click_px + half])
    return [float(one) for one in corners.clip(0, [width, height, width, height])]
