"""Runs a model on a Triton server: pixels go there, low-resolution masks come back.

What the server does is what another backend of this package does there; its stamp is that one's.
Requests are sent by threads, so that the server has the next ones while one comes back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from sam2_core.backends.protocol import Backend, BackendInfo, PendingMasks
from sam2_core.batching import gather, slice_prompts
from sam2_core.decisive_code import mask_code
from sam2_core.preprocess import StagedFrame, View, checked_image
from sam2_core.serving.contract import (
    DEFAULT_URL,
    URLS_VARIABLE,
    ServedModel,
    pasted,
    served_as,
    text_in,
    text_tensor,
)
from sam2_core.serving.failover import Servers
from sam2_core.serving.transport import (
    Call,
    ExpiredOnServerError,
    ModelReplacedError,
    ServerError,
    Tensors,
    connect,
)
from sam2_core.types import (
    POINT_NEGATIVE,
    POINT_POSITIVE,
    AutolabelError,
    EncoderImage,
    Features,
    ImageArray,
    LowResMasks,
    Prompts,
)

BACKEND = "triton"


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
    return Servers([connect(url) for url in server_urls(urls)], served_as(model))


def _refuse_other(served: ServedModel, precision: str) -> None:
    """Refuse a server whose masks are not those that this side takes them for."""
    stamp = served.stamp
    if precision not in {"auto", stamp.precision}:
        raise AutolabelError(
            f"the server runs {stamp.name} in {stamp.precision}, not in {precision}: leave "
            "--precision out, or `autolabel serve` with it"
        )
    if stamp.code_version != mask_code(stamp.backend):
        raise AutolabelError(
            f"the server runs another version of sam2-autolabel ({stamp.code_version}, here "
            f"{mask_code(stamp.backend)}): install the same one on both sides"
        )


Result = TypeVar("Result")
# Requests on their way at once: enough that the server never waits for this side.
_AT_ONCE = 4
# A server that forgets what it has just encoded keeps too little.
_HEALINGS = 3
_MASKS = ("logits", "windows", "predicted_iou", "object_score", "stability")


@dataclass(eq=False)
class _Part:
    """Regions of one frame that were encoded together, and their id on the server."""

    views: Sequence[View]
    name: Future[str]


class TritonBackend(Backend):
    """A model on one of several servers.

    Args:
        servers: where it is served.
        at_once: requests on their way at once; 0 sends each on the caller's thread.

    """

    def __init__(self, servers: Servers, at_once: int = _AT_ONCE) -> None:
        self._servers = servers
        self._pool = ThreadPoolExecutor(at_once, "triton") if at_once else None
        self.served = served = servers.served
        self._key = served.key
        self._info = BackendInfo(
            stamp=served.stamp,
            image_size=served.image_size,
            providers=("Triton", served.stamp.backend),
            # Not "cpu", whatever it is there: the server cuts calls to its own size.
            device=f"triton/{served.device}",
            close_ups=served.close_ups,
        )

    @property
    def info(self) -> BackendInfo:
        """Stamp of the server's backend, input size and where it runs."""
        return self._info

    def stage(self, image: ImageArray) -> StagedFrame:
        """Keep a frame as it is: the server cuts and resizes."""
        return StagedFrame(checked_image(image))

    def encode(self, images: Sequence[EncoderImage]) -> Features:
        """Send B images, or views of staged frames, of each frame in one request."""
        views = [_as_view(image) for image in images]
        parts: list[list[View]] = []
        for view in views:
            if parts and parts[-1][0].frame is view.frame:
                parts[-1].append(view)
            else:
                parts.append([view])
        data = [self._sent(some) for some in parts]
        return Features(data, len(views), tuple(view.size_hw for view in views))

    def _sent(self, views: Sequence[View]) -> _Part:
        return _Part(views, self._submit(lambda: self._encoded(views)))

    def _submit(self, work: Callable[[], Result]) -> Future[Result]:
        if self._pool is not None:
            return self._pool.submit(work)
        # An error is raised at once: whoever keeps features would keep it with them.
        done: Future[Result] = Future()
        done.set_result(work())
        return done

    def _encoded(self, views: Sequence[View]) -> str:
        frame = views[0].frame
        inputs: Tensors = {"image": frame.pixels[None]}
        if [view.region_xyxy_px for view in views] != [frame.whole().region_xyxy_px]:
            regions = np.array([view.region_xyxy_px for view in views], np.int32)
            inputs["regions_xyxy_px"] = regions[None]
        call = Call(self._servers.names.encoder, inputs, ["embedding_id"])
        text = text_in(self._servers.infer(call)["embedding_id"])
        if not text.startswith(self._key):
            raise ModelReplacedError(
                "the model on the Triton server was replaced since this run began: run again, and "
                "the labels get their own key"
            )
        return text

    def decode(self, features: Features, prompts: Prompts) -> LowResMasks:
        """Decode P prompts in one request for each frame."""
        return self.decode_later(features, prompts).wait()

    def decode_later(self, features: Features, prompts: Prompts) -> PendingMasks:
        """Send P prompts; the masks are waited for by whoever needs them."""
        pending: list[tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Future[LowResMasks]]] = []
        first = 0
        for part in features.data:
            last = first + len(part.views)
            inside = (prompts.image_index >= first) & (prompts.image_index < last)
            rows = np.flatnonzero(inside)
            if len(rows):
                some, start = slice_prompts(prompts, rows), first
                found = self._submit(
                    lambda part=part, some=some, start=start: self._decoded(part, some, start)  # type: ignore[misc]
                )
                pending.append((rows, found))
            first = last
        grid = self._info.image_size // 4

        def fetch() -> LowResMasks:
            return gather([(rows, one.result()) for rows, one in pending], len(prompts), grid)

        return PendingMasks(len(prompts), fetch)

    def _decoded(self, part: _Part, prompts: Prompts, first: int) -> LowResMasks:
        inputs: Tensors = {
            "points": prompts.points_model[None].astype(np.float32, copy=False),
            "labels": prompts.labels[None].astype(np.int32, copy=False),
            "image_index": (prompts.image_index - first)[None].astype(np.int32),
        }
        if np.isin(prompts.labels, (POINT_NEGATIVE, POINT_POSITIVE)).any():
            # What holds clicks looks at cells outside the mask, too.
            inputs["whole_grid"] = np.ones((1, 1), np.uint8)
        if prompts.mask_logits is not None:
            inputs["mask_logits"] = prompts.mask_logits[None].astype(np.float32, copy=False)
        name = part.name.result()
        for _ in range(_HEALINGS):
            inputs["embedding_id"] = text_tensor(name)[None]
            try:
                found = self._servers.infer(Call(self._servers.names.decoder, inputs, _MASKS))
                break
            except ExpiredOnServerError:
                name = self._encoded(part.views)
                part.name = Future()
                part.name.set_result(name)
        else:
            raise AutolabelError(
                "the Triton server forgets images before they are decoded: serve with a larger "
                "--cache-mb"
            )
        scores = [found[name][0] for name in ("predicted_iou", "object_score", "stability")]
        return pasted(
            found["windows"][0], found["logits"][0], np.stack(scores), self._info.image_size // 4
        )

    def close(self) -> None:
        """Stop the threads and let go of connections."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._servers.close()


def _as_view(image: EncoderImage) -> View:
    if isinstance(image, View):
        return image
    if isinstance(image, np.ndarray) and image.dtype == np.uint8:
        return StagedFrame(image).whole()
    raise ValueError("the server takes frames as they are: uint8 (H, W, 3), or views of them")
