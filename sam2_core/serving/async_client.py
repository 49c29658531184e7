"""A client for interactive tools, over gRPC: many requests at once, cancellation, and sessions."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt

from sam2_core.prompts import PointPrompts
from sam2_core.serving.client import Requests, SentImage, as_prompts
from sam2_core.serving.contract import DEFAULT_URL, ServedModel
from sam2_core.serving.transport import Cancellation, DeadlineError
from sam2_core.types import AutolabelError, ImageArray, Masks

Result = TypeVar("Result")


class SupersededError(AutolabelError):
    """A newer request of the session took this one's place, or the session was cancelled."""


class AsyncSam2Client(AbstractAsyncContextManager["AsyncSam2Client"]):
    """A model on Triton servers, over gRPC; for one event loop.

    Args:
        urls: address of a server, or several in the order in which they are tried.
        model: as it was given to `autolabel serve`.
        most_at_once: requests on their way at once, of all sessions.
        deadline_s: how long to wait for an answer, from when it was asked for.
        grace_s: how long a request of a session may be on its way before a newer one cancels it.

    """

    def __init__(
        self,
        urls: str | Sequence[str] = DEFAULT_URL,
        model: str | Path = "compact",
        *,
        most_at_once: int = 8,
        deadline_s: float = 10.0,
        grace_s: float = 0.25,
    ) -> None:
        self._requests = Requests(urls, model, deadline_s, (deadline_s, deadline_s))
        self._threads = ThreadPoolExecutor(most_at_once, "sam2-client")
        self._deadline_s, self.grace_s = deadline_s, grace_s
        self._sessions: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()

    async def _run(self, work: Callable[[Cancellation], Result]) -> Result:
        """Run on a thread; when the caller stops waiting it is cancelled, on the server, too."""
        cancellation = Cancellation()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._deadline_s):
                return await loop.run_in_executor(self._threads, work, cancellation)
        except TimeoutError as error:
            cancellation.late = True
            raise DeadlineError(f"no answer within {self._deadline_s:g} s") from error
        finally:
            cancellation.cancel()

    async def served(self) -> ServedModel:
        """Ask what the server runs."""
        return await self._run(lambda _: self._requests.served)

    async def set_image(self, image: ImageArray | bytes) -> SentImage:
        """Make an image known to the server: uint8 (H, W, 3) RGB or a JPEG."""
        return await self._run(lambda until: self._requests.set_image(image, until))

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
        return await self._run(lambda until: self._requests.segment(image, prompts, until))

    def session(self, name: str) -> Session:
        """Return the session of a name: a tab, a cursor."""
        return self._sessions.setdefault(name, Session(self))

    async def close(self) -> None:
        """Cancel what is on its way and let go of connections."""
        for session in list(self._sessions.values()):
            session.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._requests.close()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Session:
    """Requests of which only the newest matters; made by `AsyncSam2Client.session`.

    Somebody moves a mouse over an image, and a mask follows. A session has at most one request on
    its way; the newest waits for it, and what waited before is dropped without being sent. A
    request that has been on its way for longer than usual waits in the server's queue: it is
    cancelled, which takes it out of there, and the newest is sent at once.
    """

    def __init__(self, client: AsyncSam2Client) -> None:
        self._client = client
        self._newest: object = None
        self._sent: asyncio.Task[Masks] | None = None
        self._sent_at_s = 0.0

    async def segment(self, image: SentImage, prompts: PointPrompts) -> Masks:
        """Return the masks of prompts, unless a newer request of this session comes first.

        Raises:
            SupersededError: one did, or the session was cancelled.
            AutolabelError: the server refuses, or does not answer in time.

        """
        this = self._newest = object()
        loop = asyncio.get_running_loop()
        if self._sent is not None:
            left_s = max(self._sent_at_s + self._client.grace_s - loop.time(), 0)
            await asyncio.wait([self._sent], timeout=left_s)
            if self._newest is not this:
                raise SupersededError("a newer request took its place")
            self._cancel_sent()
        task = self._sent = asyncio.create_task(self._client.segment(image, prompts))
        self._sent_at_s = loop.time()
        try:
            return await task
        except asyncio.CancelledError:
            caller: Any = asyncio.current_task()
            if caller.cancelling():
                raise
            raise SupersededError("a newer request took its place, or it was given up") from None
        finally:
            if self._sent is task:
                self._sent = None

    def cancel(self) -> None:
        """Give up all requests of this session, here and on the server."""
        self._newest = None
        self._cancel_sent()

    def _cancel_sent(self) -> None:
        if self._sent is not None:
            self._sent.cancel()
            self._sent = None
