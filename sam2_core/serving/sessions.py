"""Sessions: requests of which only the newest matters.

Somebody moves a mouse over an image, and a mask follows. Of what was asked for on the way only the
last matters. A session has at most one request on its way; the newest waits for it, and what waited
before is dropped without being sent. A request that has been on its way for longer than usual waits
in the server's queue: it is cancelled, which reaches the server and takes it out of there, and the
newest is sent at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sam2_core.prompts import PointPrompts
from sam2_core.serving.image_requests import SentImage
from sam2_core.types import AutolabelError, Masks

if TYPE_CHECKING:
    from sam2_core.serving.async_client import AsyncSam2Client


class SupersededError(AutolabelError):
    """A newer request of the session took this one's place, or the session was cancelled."""


@dataclass
class Counts:
    """What became of a client's requests.

    Attributes:
        asked: by callers.
        answered: with masks.
        never_sent: superseded while they waited here.
        cancelled: superseded, or given up, on their way; the server was told.
        failed: refused, too late, or no server.

    """

    asked: int = 0
    answered: int = 0
    never_sent: int = 0
    cancelled: int = 0
    failed: int = 0


@dataclass(eq=False)
class _Asked:
    work: Callable[[], Awaitable[Any]]
    done: asyncio.Future[Any]
    sent_at_s: float = 0.0
    task: asyncio.Task[None] | None = None


class Session:
    """Requests of which only the newest matters; made by `AsyncSam2Client.session`."""

    def __init__(self, client: AsyncSam2Client, name: str) -> None:
        self._client, self.name = client, name
        self._waiting: _Asked | None = None
        self._sent: _Asked | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> int:
        """How many requests wait here or are on their way."""
        return (self._waiting is not None) + (self._sent is not None)

    async def segment(self, image: SentImage, prompts: PointPrompts) -> Masks:
        """Return the masks of prompts, unless a newer request of this session comes first.

        Raises:
            SupersededError: it did, or the session was cancelled.
            AutolabelError: as `AsyncSam2Client.segment`.

        """
        loop = asyncio.get_running_loop()
        asked = _Asked(lambda: self._client.segment(image, prompts), loop.create_future())
        self._drop_waiting()
        self._waiting = asked
        self._advance()
        try:
            found: Masks = await asked.done
        except asyncio.CancelledError:  # the caller itself
            self._give_up(asked)
            raise
        return found

    def cancel(self) -> int:
        """Give up all requests of this session, here and on the server; tells how many."""
        count = self.pending
        self._drop_waiting()
        if self._sent is not None:
            self._cancel_sent()
        return count

    def _drop_waiting(self) -> None:
        if self._waiting is not None:
            self._client.counts.asked += 1
            self._client.counts.never_sent += 1
            _fail(self._waiting, SupersededError("a newer request took its place"))
            self._waiting = None

    def _give_up(self, asked: _Asked) -> None:
        if self._waiting is asked:
            self._drop_waiting()
        elif self._sent is asked:
            self._cancel_sent()
            self._advance()

    def _advance(self) -> None:
        """Send the newest if it may be sent now, or see to it when it may be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting is None:
            return
        loop = asyncio.get_running_loop()
        if self._sent is not None:
            left_s = self._sent.sent_at_s + self._client.grace_s - loop.time()
            if left_s > 0:
                self._timer = loop.call_later(left_s, self._advance)
                return
            self._cancel_sent()
        asked, self._waiting = self._waiting, None
        asked.sent_at_s, self._sent = loop.time(), asked
        asked.task = loop.create_task(self._run(asked))

    def _cancel_sent(self) -> None:
        asked, self._sent = self._sent, None
        if asked is not None:
            _fail(asked, SupersededError("a newer request took its place, or it was given up"))
            if asked.task is not None:
                asked.task.cancel()

    async def _run(self, asked: _Asked) -> None:
        try:
            found = await asked.work()
        except Exception as error:  # noqa: BLE001 - the caller's
            _fail(asked, error)
        else:
            if not asked.done.done():
                asked.done.set_result(found)
        finally:
            if self._sent is asked:
                self._sent = None
                self._advance()


def _fail(asked: _Asked, error: Exception) -> None:
    if not asked.done.done():
        asked.done.set_exception(error)
