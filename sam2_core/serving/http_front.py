"""Triton's HTTP and metrics as far as they are open to clients, in front of its own sockets.

Triton runs code that a request brings (model control), reads and writes shared memory, and changes
its logs and traces for any client. So it listens on sockets in a folder of this user alone,
and only what is listed here can be read.

`demo_page` is a page to try a served model: boxes and clicks on one picture.
"""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sam2_core.clicks import NO_BOX, drawn
from sam2_core.images import open_image
from sam2_core.redaction import redact
from sam2_core.serving.client import Sam2Client
from sam2_core.types import AutolabelError, FloatArray, Masks

# A model's name begins with no dot: `..` would lead elsewhere.
_OPEN = re.compile(
    r"/v2(/health/(live|ready)|/models/stats"
    r"|/models/\w[\w.-]*(/versions/\d+)?(/(ready|stats))?)?",
    re.ASCII,
)
_METRICS = "/metrics"


def triton_http(http: Path, metrics: Path) -> ASGIApp:
    """Return an application that passes on metadata, statistics, health and metrics.

    Requests to models go over gRPC.

    Args:
        http: socket of Triton's HTTP.
        metrics: socket of Triton's metrics.

    """
    to_models, to_metrics = (
        httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(verify=False, uds=str(path)),
            base_url="http://triton",
            timeout=60,
        )
        for path in (http, metrics)
    )

    async def passed(request: Request) -> Response:
        path = request.scope["raw_path"].decode("latin-1")
        if path != _METRICS and not _OPEN.fullmatch(path):
            return JSONResponse({"error": f"{path} is not open to clients"}, 404)
        try:
            found = await (to_metrics if path == _METRICS else to_models).get(path)
        except httpx.TransportError as error:
            why = str(error) or type(error).__name__
            return JSONResponse({"error": f"the models are not there: {why}"}, 503)
        media_type = found.headers.get("content-type")
        return Response(found.content, found.status_code, media_type=media_type)

    return Starlette(routes=[Route("/{path:path}", passed)])


def listen(host: str, port: int, option: str) -> socket.socket:
    """Listen on a port; 0 takes a free one.

    Answers go out at once, which asyncio sees to for other sockets only: else a small one waits
    40 ms for the client to acknowledge the one before.

    Raises:
        AutolabelError: it is taken.

    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        found = socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        why = str(error.strerror).partition(" (while attempting")[0]
        raise AutolabelError(f"cannot listen on {host}:{port} ({option}): {why}") from error
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


@contextlib.contextmanager
def answering(app: ASGIApp, *listeners: socket.socket, **tls: Any) -> Iterator[None]:
    """Answer requests in a thread until the block ends.

    Args:
        app: what answers.
        listeners: where; closed at the end.
        tls: as `uvicorn.Config` takes it.

    """
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
    """Return the application of the page, which every client may use.

    Args:
        client: of the model.
        picture: what to click on.
        boxes_xyxy_px: float32 (N, 4), of objects in it: a click alone selects the one around it,
            where the model needs a box; by default a small box is put around the click.

    Raises:
        AutolabelError: the picture cannot be read.

    """
    image = client.set_image(open_image(picture))
    boxes = np.zeros((0, 4), np.float32) if boxes_xyxy_px is None else boxes_xyxy_px

    def mask(asked: Mapping[str, Any]) -> dict[str, Any]:
        """Make the mask of a box and clicks."""
        started = time.perf_counter()
        points = [[float(x), float(y)] for x, y, _ in asked["points"]]
        labels = [int(bool(yes)) for *_, yes in asked["points"]]
        box = None if asked["box"] is None else [float(side) for side in asked["box"]]

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

    files = {
        "/": Path(__file__).with_name("demo.html"),
        "/picture": picture,
        "/click_page.js": CLICK_PAGE,
    }
    routes = [Route(at, FileResponse(path)) for at, path in files.items()]
    name = JSONResponse({"model": client.served.stamp.name})
    routes += [Route("/model", name), Route("/mask", answer, methods=["POST"])]
    return Starlette(routes=routes)


def _box_around(click_px: FloatArray, boxes: FloatArray, size_hw: tuple[int, int]) -> list[float]:
    """Return the smallest of boxes that a click is in, else a small one around it: xyxy, px."""
    inside = boxes[((boxes[:, :2] <= click_px) & (click_px <= boxes[:, 2:])).all(1)]
    if len(inside):
        sides = inside[:, 2:] - inside[:, :2]
        return [float(side) for side in inside[sides.prod(1).argmin()]]
    half, (height, width) = _SMALL * min(size_hw) / 2, size_hw
    corners = np.concatenate([click_px - half, click_px + half])
    return [float(side) for side in corners.clip(0, [width, height, width, height])]
