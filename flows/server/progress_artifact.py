"""How far a run is, on its page in Prefect: one card for each run, whatever happens to it.

A run that was killed begins again and would leave a card that stands still for ever.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast
from uuid import UUID

import httpx

from flows.server.client import connected
from sam2_core.types import AutolabelError
from tasks.observe.progress import SEGMENT, Listener
from tasks.pipeline.tools import Tools
from tasks.wording import counted

if TYPE_CHECKING:
    from prefect.client.schemas.objects import Artifact

PROGRESS_EVERY_S = 10.0
MOST_BEFORE_THE_END = 99.0
INTERRUPTED = "interrupted after "
_AWAY = (httpx.HTTPError, AutolabelError)


class ProgressArtifact:
    """The progress artifact of the flow run that makes it; a server that is away costs it alone.

    It never goes back, and 100% is the end. An earlier attempt's is taken over, unless it says that
    it was interrupted: that one stays.

    Args:
        key: of the artifact; Prefect breaks it at dashes only, and shows about 20 characters.
        total: frames in all.
        estimated: nobody has counted them all.

    """

    def __init__(self, key: str, total: int, *, estimated: bool = False) -> None:
        from prefect.artifacts import create_progress_artifact
        from prefect.runtime import flow_run

        self._about, self._most = "about " if estimated else "", 0.0
        self._id: UUID | None = None
        with contextlib.suppress(*_AWAY):
            found = _cards([flow_run.id], key) if flow_run.id else []
            left = [one for one in found if not (one.description or "").startswith(INTERRUPTED)]
            self._id = left[0].id if left else None
            if not left:
                self._id = cast("UUID", create_progress_artifact(0.0, key, "nothing yet"))
        self.tell(0, total)

    def tell(self, done: int, total: int, how: str = "", *, ended: bool = False) -> None:
        """Say how many frames are through; `how` is what stands before."""
        from prefect.artifacts import update_progress_artifact

        self._most = max(self._most, min(100 * done / total, MOST_BEFORE_THE_END) if total else 0.0)
        if self._id is not None:
            text = f"{how}{self._about}{done:,} of {counted(total, 'frame')}"
            with contextlib.suppress(*_AWAY):
                update_progress_artifact(self._id, 100.0 if ended else self._most, text)

    def end(self, done: int, total: int, how: str = "") -> None:
        """Say how it ended; `how` is "" where it was not cut short."""
        self.tell(done, total, how, ended=not how)


def _cards(run_ids: Collection[str | UUID], key: str | None = None) -> list[Artifact]:
    """Return the progress artifacts of flow runs, the newest first."""
    from prefect.client.schemas.filters import ArtifactFilter
    from prefect.client.schemas.sorting import ArtifactSort

    wanted = {"flow_run_id": {"any_": list(run_ids)}, "type": {"any_": ["progress"]}}
    wanted |= {"key": {"any_": [key]}} if key else {}
    with connected() as client:
        return client.read_artifacts(
            artifact_filter=ArtifactFilter.model_validate(wanted), sort=ArtifactSort.CREATED_DESC
        )


def percent_done(run_ids: Collection[UUID]) -> dict[UUID, float]:
    """Return how far flow runs have told that they are; nothing of those that have told nothing.

    Raises:
        AutolabelError: Prefect is not there.

    """
    found = _cards(run_ids)[::-1] if run_ids else []
    return {one.flow_run_id: float(str(one.data)) for one in found if one.flow_run_id}


class FrameCount(Listener):
    """How many of a run's frames are through the model.

    Args:
        planned: frames of each sequence as planned; those of videos are estimates.

    """

    def __init__(self, planned: Sequence[int]) -> None:
        self._planned, self._done, self._one_at_a_time = list(planned), 0, threading.Lock()

    def opened(self, number: int, frames: int) -> None:
        """Correct what was planned of a sequence."""
        self._planned[number] = frames

    def advanced(self, stage: str, frames: int, kept: bool) -> None:
        """Count frames that are through the model, those from before, too."""
        if stage == SEGMENT:
            with self._one_at_a_time:
                self._done += frames

    def so_far(self) -> tuple[int, int]:
        """Return frames that are through, and all; what a second pass does again counts once."""
        total = sum(self._planned)
        return min(self._done, total), total


@contextlib.contextmanager
def frames_counted(tools: Tools, key: str, planned: Sequence[int]) -> Iterator[FrameCount]:
    """Count a run's frames in an artifact while the block runs, and say if it was interrupted."""
    count, ended = FrameCount(planned), threading.Event()
    card = ProgressArtifact(key, sum(planned))

    def tell_now_and_then() -> None:
        told = count.so_far()
        while not ended.wait(PROGRESS_EVERY_S):
            if count.so_far() != told:
                told = count.so_far()
                card.tell(*told)

    telling = partial(contextvars.copy_context().run, tell_now_and_then)
    thread = threading.Thread(target=telling, name="progress", daemon=True)
    thread.start()
    interrupted = True
    try:
        with tools.progress.listening(count):
            yield count
        interrupted = tools.stop.requested
    finally:
        ended.set()
        thread.join()  # what it says must not come after the last word
        card.end(*count.so_far(), INTERRUPTED if interrupted else "")
