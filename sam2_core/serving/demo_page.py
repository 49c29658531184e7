"""A page to try a served model: boxes and clicks on one picture, in this machine's browser."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sam2_core.images import open_image
from sam2_core.redaction import redact
from sam2_core.serving.client import Sam2Client
from sam2_core.types import AutolabelError, Masks

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


def demo_page(client: Sam2Client, picture: Path) -> Starlette:
    """Return the application of the page, which whoever reaches it may use.

    Args:
        client: of the model.
        picture: what to click on.

    Raises:
        AutolabelError: the picture cannot be read.

    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import FileResponse, JSONResponse
    from starlette.routing import Route

    image = client.set_image(open_image(picture))

    def mask(asked: Mapping[str, Any]) -> dict[str, Any]:
        """Make the mask of a box and clicks."""
        started = time.perf_counter()
        points = [[float(x), float(y)] for x, y, _ in asked["points"]]
        labels = [int(bool(yes)) for *_, yes in asked["points"]]
        box = None if asked["box"] is None else [[float(one) for one in asked["box"]]]
        masks = client.predict(
            image, boxes_xyxy_px=box,
            points_px=np.array([points], np.float32) if points else None,
            labels=np.array([labels], np.int32) if points else None,
        )  # fmt: skip
        return {
            "runs": _runs(masks), "area_px": int(masks.area_px[0]), "reason": masks.reasons[0],
            "milliseconds": round(1000 * (time.perf_counter() - started)),
        }  # fmt: skip

    async def answer(request: Request) -> Response:
        try:
            return JSONResponse(await run_in_threadpool(mask, await request.json()))
        except (AutolabelError, ValueError, KeyError, TypeError) as error:
            return JSONResponse({"error": redact(str(error) or repr(error))}, 400)

    async def show(_: Request) -> Response:
        return FileResponse(Path(__file__).with_name("demo.html"))

    async def send_picture(_: Request) -> Response:
        return FileResponse(picture)

    routes = [Route("/", show), Route("/picture", send_picture)]
    return Starlette(routes=[*routes, Route("/mask", answer, methods=["POST"])])


def _runs(masks: Masks) -> list[int]:
    """Return the lengths of a mask's runs, column by column, background first."""
    flat = masks.to_array(0).T.reshape(-1)
    edges = np.flatnonzero(np.diff(flat, prepend=False)) if len(flat) else flat
    runs: list[int] = np.diff(np.concatenate([[0], edges, [len(flat)]])).tolist()
    return runs
