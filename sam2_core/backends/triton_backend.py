"""Runs a model on a Triton server: frames and boxes go there, masks come back.

The server segments as another backend of this package does there; its stamp is that one's. Requests
are sent by threads, so that the server has the next ones while one comes back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sam2_core.backends.protocol import Backend, BackendInfo
from sam2_core.labels_version import LABELS_VERSION
from sam2_core.postprocess import finish
from sam2_core.preprocess import PreparedFrame, StagedFrame, checked_image
from sam2_core.serving.client import MASKS, masks_in
from sam2_core.serving.contract import (
    DEFAULT_URL,
    MOST_PROMPTS,
    URLS_VARIABLE,
    ServedModel,
    served_as,
    text_in,
)
from sam2_core.serving.transport import Call, ModelReplacedError, ServerError, Servers, Transport
from sam2_core.types import (
    AutolabelError,
    EncoderImage,
    Features,
    ImageArray,
    LowResMasks,
    Masks,
    Prompts,
)


def server_urls(given: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the servers to use: as given, the environment's, or one on this machine."""
    named = os.environ.get(URLS_VARIABLE, "")
    return tuple(given) or tuple(filter(None, named.split(","))) or (DEFAULT_URL,)


def find_served(
    models: Sequence[str | Path], precision: str = "auto", urls: Sequence[str] = ()
) -> tuple[str, ServedModel]:
    """Return the first of several models that is served, and what it is.

    Args:
        models: as they were given to `autolabel serve`.
        precision: that it must have, or "auto".
        urls: servers, in the order in which they are tried.

    Raises:
        AutolabelError: no server answers, none of the models is served, or one of another version
            of this package.

    """
    problem: ServerError | None = None
    for model in models:
        servers = _servers(model, urls)
        try:
            served = servers.served
        except ServerError as error:
            problem = problem or error
            continue
        finally:
            servers.close()
        _refuse_other(served, precision)
        return str(model), served
    raise AutolabelError(
        f"{' and '.join(server_urls(urls))} does not serve {' or '.join(map(str, models))}: "
        f"`autolabel serve {models[-1]}` there does ({problem})"
    ) from problem


def load_triton(
    model: str | Path, precision: str = "auto", urls: Sequence[str] = ()
) -> TritonBackend:
    """Return a served model as a backend.

    Raises:
        AutolabelError: as `find_served`.

    """
    servers = _servers(model, urls)
    _refuse_other(servers.served, precision)
    return TritonBackend(servers)


def _servers(model: str | Path, urls: Sequence[str]) -> Servers:
    return Servers([Transport(url) for url in server_urls(urls)], served_as(model))


def _refuse_other(served: ServedModel, precision: str) -> None:
    """Refuse a server whose masks are not those that this side takes them for."""
    stamp = served.stamp
    if precision not in {"auto", stamp.precision}:
        raise AutolabelError(
            f"the server runs {stamp.name} in {stamp.precision}, not in {precision}: leave "
            "--precision out, or `autolabel serve` with it"
        )
    if stamp.code_version != LABELS_VERSION:
        raise AutolabelError(
            f"the server runs another version of sam2-autolabel ({stamp.code_version}, here "
            f"{LABELS_VERSION}): install the same one on both sides"
        )


# Requests on their way at once: enough that the server never waits for this side.
_AT_ONCE = 4


class TritonBackend(Backend):
    """A model on one of several servers; it segments frames, and nothing smaller.

    Args:
        servers: where it is served.

    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._pool = ThreadPoolExecutor(_AT_ONCE, "triton")
        self.served = served = servers.served
        self.info = BackendInfo(
            stamp=served.stamp,
            image_size=served.image_size,
            # Not "cpu", whatever it is there: the server batches by itself.
            device=f"triton/{served.device}",
            close_ups=served.close_ups,
        )

    def certified(self) -> dict[str, Any]:
        """Return the certificate that the model has on its server."""
        return self.served.certified()

    def stage(self, image: ImageArray) -> StagedFrame:
        """Keep a frame as it is: the server cuts and resizes."""
        return StagedFrame(checked_image(image))

    def segment_later(self, frames: Sequence[PreparedFrame]) -> list[Callable[[], Masks]]:
        """Send frames that have valid boxes, each in one request unless it has very many."""
        return [self._pool.submit(self._segmented, frame).result for frame in frames]

    def _segmented(self, frame: PreparedFrame) -> Masks:
        if not len(frame.rows):
            return finish(LowResMasks.joined([]), frame.size_hw, frame.rows, frame.reasons)
        pixels, boxes, parts = frame.images_model[0].frame.pixels, frame.boxes_xyxy_px, []
        for start in range(0, len(boxes), MOST_PROMPTS):
            some = boxes[start : start + MOST_PROMPTS]
            call = Call(
                self._servers.model, {"image": pixels[None], "boxes_xyxy_px": some[None]},
                ("info", *MASKS), version=self.served.version,
            )  # fmt: skip
            found = self._servers.infer(call)
            if ServedModel.from_json(text_in(found["info"])) != self.served:
                raise ModelReplacedError(
                    "the model on the Triton server was replaced since this run began: run again, "
                    "and the labels get their own key"
                )
            parts.append(masks_in(found))
        return Masks.joined(parts)

    def encode(self, images: Sequence[EncoderImage]) -> Features:
        """Refuse: the server gives no features away."""
        raise AutolabelError("a served model segments whole frames only: name another --backend")

    def decode(self, features: Features, prompts: Prompts) -> LowResMasks:
        """Refuse, as `encode`."""
        raise AutolabelError("a served model segments whole frames only: name another --backend")

    def close(self) -> None:
        """Stop the threads and let go of connections."""
        self._pool.shutdown(cancel_futures=True)
        self._servers.close()
