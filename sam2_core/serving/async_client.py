"""A client for interactive tools, over gRPC: many requests at once, and cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy.typing as npt

from sam2_core.prompts import PointPrompts
from sam2_core.serving.contract import (
    DEFAULT_URL,
    DESCRIBE,
    ServedModel,
    names_of,
    served_as,
    text_in,
)
from sam2_core.serving.image_requests import (
    SentImage,
    as_prompts,
    content_inputs,
    known_name,
    masks_in,
    name_inputs,
    open_call,
    opened,
    predict_call,
    predictable,
)
from sam2_core.serving.protocols import channel_options, error_of, need_client, request_of
from sam2_core.serving.sessions import Counts, Session
from sam2_core.serving.transport import (
    Access,
    Call,
    DeadlineError,
    ExpiredOnServerError,
    ServerAbsentError,
    Tensors,
    split_url,
)
from sam2_core.types import AutolabelError, ImageArray, Masks

Result = TypeVar("Result")
_FIRST_PAUSE_S = 0.05


class AsyncSam2Client:
    """A model on Triton servers, over gRPC; for one event loop.

    Args:
        urls: address of a server, or several in the order in which they are tried.
        model: as it was given to `autolabel serve`.
        access: TLS and headers.
        most_at_once: requests on their way at once, of all sessions.
        deadline_s: how long to wait for an answer, from when it was asked for.
        grace_s: how long a request of a session may be on its way before a newer one cancels it.

    Attributes:
        counts: what became of the requests.

    """

    def __init__(
        self,
        urls: str | Sequence[str] = DEFAULT_URL,
        model: str | Path = "compact",
        *,
        access: Access | None = None,
        most_at_once: int = 8,
        deadline_s: float = 10.0,
        grace_s: float = 0.25,
    ) -> None:
        need_client()
        import tritonclient.grpc.aio as grpc

        access = access or Access()
        self._grpc, self.counts = grpc, Counts()
        self._names = names_of(served_as(model))
        self._urls = [urls] if isinstance(urls, str) else list(urls)
        self._headers = access.all_headers()
        self._clients = []
        for url in self._urls:
            scheme, address = split_url(url)
            if not scheme.startswith("grpc"):
                raise AutolabelError(f"{url}: only grpc:// can cancel what is on its way")
            options = channel_options(access, secure=scheme == "grpcs")
            self._clients.append(grpc.InferenceServerClient(address, **options))
        self._current = 0
        self._turns = asyncio.Semaphore(most_at_once)
        self._deadline_s, self.grace_s = deadline_s, grace_s
        self._sessions: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()

    async def served(self) -> ServedModel:
        """Ask what the server runs."""
        found = await self._infer(Call(self._names.encoder, DESCRIBE, ["info"], self._deadline_s))
        return ServedModel.from_json(text_in(found["info"]))

    async def set_image(self, image: ImageArray | bytes) -> SentImage:
        """Make an image known to the server: uint8 (H, W, 3) RGB or a JPEG."""
        name = known_name(image)
        if name is not None:
            with contextlib.suppress(ExpiredOnServerError):
                return await self._opened(image, name_inputs(name))
        return await self._opened(image, content_inputs(image))

    async def _opened(self, image: ImageArray | bytes, inputs: Tensors) -> SentImage:
        call = open_call(self._names.image, inputs, self._deadline_s)
        return opened(await self._infer(call), image)

    async def predict(
        self,
        image: SentImage,
        *,
        boxes_xyxy_px: npt.ArrayLike | None = None,
        points_px: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
        session: str = "",
    ) -> Masks:
        """Return the masks of N prompts; as `Sam2Client.predict`.

        Args:
            image: of `set_image`.
            boxes_xyxy_px: (N, 4) in pixels of the image.
            points_px: (N, K, 2) in pixels of the image.
            labels: (N, K): 1 positive, 0 negative, -1 no point.
            session: name of one, of whose requests only the newest counts.

        Raises:
            SupersededError: a newer request of the session took this one's place.
            AutolabelError: as `segment`.

        """
        prompts = as_prompts(boxes_xyxy_px, points_px, labels, grid=1)
        asked = self.session(session) if session else self
        return await asked.segment(image, prompts)

    async def segment(self, image: SentImage, prompts: PointPrompts) -> Masks:
        """Return the masks of prompts; cancelling the caller's task cancels it on the server.

        Raises:
            DeadlineError: no answer in time; the server drops it, too.
            ServerAbsentError: no server answers.
            ServerError: it was refused.

        """
        nothing = predictable(image, prompts)
        if nothing is not None:
            return nothing
        self.counts.asked += 1
        try:
            found = await self._segmented(image, prompts)
        except asyncio.CancelledError:
            self.counts.cancelled += 1
            raise
        except Exception:
            self.counts.failed += 1
            raise
        self.counts.answered += 1
        return found

    async def _segmented(self, image: SentImage, prompts: PointPrompts) -> Masks:
        for about in (name_inputs(image.name), content_inputs(image.content)):
            call = predict_call(self._names.image, about, prompts, self._deadline_s)
            try:
                return masks_in(await self._infer(call))
            except ExpiredOnServerError as error:
                expired = error
        raise expired

    def session(self, name: str) -> Session:
        """Return the session of a name: a tab, a cursor."""
        found = self._sessions.get(name)
        if found is None:
            found = self._sessions[name] = Session(self, name)
        return found

    @property
    def on_their_way(self) -> int:
        """How many requests of sessions wait here or are on their way."""
        return sum(one.pending for one in self._sessions.values())

    async def _infer(self, call: Call) -> Tensors:
        """Send a request; again, and to the next server, only where none has answered it."""
        at = self._current
        problems: list[ServerAbsentError] = []
        try:
            async with asyncio.timeout(call.deadline_s), self._turns:
                return await self._from_any(call, problems)
        except (TimeoutError, DeadlineError) as error:
            if problems:
                raise problems[-1] from error
            if self._current == at:  # it may hang: the next request goes to another
                self._current = (at + 1) % len(self._clients)
            if isinstance(error, DeadlineError):
                raise
            raise DeadlineError(f"no answer within {call.deadline_s:g} s") from error

    async def _from_any(self, call: Call, problems: list[ServerAbsentError]) -> Tensors:
        pause, tried = _FIRST_PAUSE_S, 0
        while True:
            at = self._current
            try:
                return await self._from(at, call)
            except ServerAbsentError as error:
                problems.append(error)
                tried += 1
                if self._current == at:
                    self._current = (at + 1) % len(self._clients)
                if tried % len(self._clients) == 0:
                    if tried > 8 * len(self._clients):
                        raise
                    await asyncio.sleep(pause)
                    pause *= 2

    async def _from(self, at: int, call: Call) -> Tensors:
        from tritonclient.utils import InferenceServerException

        try:
            request = request_of(self._grpc, call)
            answer = await self._clients[at].infer(**request, headers=self._headers)
        except InferenceServerException as error:
            raise error_of(error, call, self._urls[at]) from error
        return {name: answer.as_numpy(name) for name in call.outputs}

    async def close(self) -> None:
        """Cancel what is on its way and let go of connections."""
        for session in list(self._sessions.values()):
            session.cancel()
        for client in self._clients:
            await client.close()

    async def __aenter__(self) -> AsyncSam2Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
