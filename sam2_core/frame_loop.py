"""Many frames through a segmenter with the device kept busy.

Frames are read ahead of the device by threads, the device works on one batch after another, and
masks are encoded behind it; results come out in the order of the frames. Every queue is bounded, so
that a slow consumer or a slow disk costs waiting and not memory. A frame that cannot be read or
segmented becomes a failed result; it never ends the loop. What is wrong with the machine does: a
`MachineError` comes out of it, and the frames from there on have no result.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from sam2_core.machine import usable_cores
from sam2_core.machine_errors import as_machine_error, is_machine_error
from sam2_core.preprocess import PreparedFrame, StagedFrame
from sam2_core.segmenter import Segmenter, StageTimes
from sam2_core.types import Boxes, ImageArray, LowResMasks, Masks


@dataclass(frozen=True, eq=False)
class FrameJob:
    """A frame to segment.

    Attributes:
        key: the caller's name for it.
        read: returns the frame, uint8 (H, W, 3) RGB, or staged for a device already; called on a
            reader thread, once.
        boxes: in the frame's pixels.

    """

    key: Hashable
    read: Callable[[], ImageArray | StagedFrame]
    boxes: Boxes


@dataclass(frozen=True, eq=False)
class FrameResult:
    """What became of a frame.

    Attributes:
        key: the job's.
        masks: one row per box, or None when the frame failed.
        size_hw: of the frame; (0, 0) when it could not be read.
        stage: where it failed: read, segment or postprocess; "" when it did not.
        error: why it failed.

    """

    key: Hashable
    masks: Masks | None
    size_hw: tuple[int, int] = (0, 0)
    stage: str = ""
    error: Exception | None = None


class _StageError(Exception):
    """Carries the stage in which a frame failed."""

    def __init__(self, stage: str, cause: Exception) -> None:
        super().__init__(str(cause))
        self.stage, self.cause = stage, cause


@dataclass(frozen=True, eq=False)
class _Pending:
    job: FrameJob
    frame: Future[PreparedFrame]


# A frame that nothing is wrong with, to see whether the device works.
_PROBE_PX = 64

# How to wait for a frame's low-resolution masks, or why there are none.
_Outcome = Callable[[], LowResMasks] | Exception


class _Stopped(Exception):  # noqa: N818 - not an error: the consumer has gone
    pass


def _seen(item: _Pending) -> PreparedFrame | Exception:
    """Return a frame that the device has seen, without its pixels, or why it could not be read."""
    failure = item.frame.exception()
    if failure is None:
        return item.frame.result().without_images()
    return failure if isinstance(failure, Exception) else RuntimeError(str(failure))


def _arrived(outcome: Callable[[], LowResMasks]) -> LowResMasks:
    """Wait for what was queued on the device; when it does not come, no frame is to blame."""
    try:
        return outcome()
    except Exception as error:
        raise as_machine_error(error, "waiting for the device") from error


class FrameLoop:
    """One pass over frames; iterate it once for the results.

    Args:
        segmenter: a segmenter that nothing else uses at the same time, or not without `turn`.
        jobs: frames in order; taken lazily, on a thread of the loop.
        readers: threads that read and resize; by default half the cores, 2 to 8.
        encoders: threads that encode masks; by default a quarter of the cores, 1 to 4.
        ahead: frames that may be read before the device takes them.
        times: where stage times are summed; a new one when None.
        turn: held while this loop uses the device. Loops that share it follow each other without a
            gap: the next one reads its first frames, and this one's masks are encoded, beside the
            device.

    """

    def __init__(
        self,
        segmenter: Segmenter,
        jobs: Iterable[FrameJob],
        *,
        readers: int | None = None,
        encoders: int | None = None,
        ahead: int | None = None,
        times: StageTimes | None = None,
        turn: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.segmenter = segmenter
        self._turn = turn or nullcontext()
        self.times = times or StageTimes()
        self._jobs = jobs
        cores = usable_cores()
        readers = readers or min(max(cores // 2, 2), 8)
        encoders = encoders or min(max(cores // 4, 1), 4)
        self._readers = ThreadPoolExecutor(readers, "frame-read")
        self._encoders = ThreadPoolExecutor(encoders, "frame-masks")
        depth = ahead or readers + segmenter.frame_batch
        # None ends a queue; an exception in it ends the loop with that exception.
        self._read: queue.Queue[_Pending | Exception | None] = queue.Queue(depth)
        self._done: queue.Queue[Future[FrameResult] | Exception | None] = queue.Queue(
            2 * (encoders + segmenter.frame_batch)
        )
        self._stop = threading.Event()

    def __iter__(self) -> Iterator[FrameResult]:
        threads = [
            threading.Thread(target=self._feed, name="frame-feed", daemon=True),
            threading.Thread(target=self._drive, name="frame-device", daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            while (item := self._done.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item.result()
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
            self._readers.shutdown(cancel_futures=True)
            self._encoders.shutdown(cancel_futures=True)

    def _put(self, to: queue.Queue[Any], item: Any) -> None:
        while not self._stop.is_set():
            try:
                to.put(item, timeout=0.2)
            except queue.Full:
                continue
            return
        raise _Stopped

    def _get(self) -> _Pending | Exception | None:
        while not self._stop.is_set():
            try:
                return self._read.get(timeout=0.2)
            except queue.Empty:
                continue
        raise _Stopped

    def _feed(self) -> None:
        end: Exception | None = None
        try:
            for job in self._jobs:
                self._put(self._read, _Pending(job, self._readers.submit(self._prepare, job)))
        except _Stopped:
            return
        except Exception as error:  # noqa: BLE001 - the caller's iterable; raised where it is read
            end = error
        self._finish_queue(self._read, end)

    def _finish_queue(self, to: queue.Queue[Any], end: Exception | None) -> None:
        try:
            if end is not None:
                self._put(to, end)
            self._put(to, None)
        except _Stopped:
            return

    def _prepare(self, job: FrameJob) -> PreparedFrame:
        try:
            with self.times.measure("read"):
                image = job.read()
            with self.times.measure("preprocess"):
                return self.segmenter.prepare(image, job.boxes)
        except Exception as error:
            raise _StageError("read", error) from error

    def _drive(self) -> None:
        """Take frames in order, run them in batches, hand them on."""
        end: Exception | None = None
        try:
            with self._turn:
                more = True
                while more:
                    batch, more = self._next_batch()
                    for result in self._run(batch):
                        self._put(self._done, result)
        except _Stopped:
            return
        except Exception as error:  # noqa: BLE001 - raised in the consumer's thread
            end = error
        self._finish_queue(self._done, end)

    def _next_batch(self) -> tuple[list[_Pending], bool]:
        batch: list[_Pending] = []
        with self.times.measure("wait"):
            while len(batch) < self.segmenter.frame_batch:
                item = self._get()
                if item is None:
                    return batch, False
                if isinstance(item, Exception):
                    # What was read before the caller's iterable failed is still handed on.
                    for result in self._run(batch):
                        self._put(self._done, result)
                    raise item
                item.frame.exception()  # wait until it is read
                batch.append(item)
        return batch, True

    def _run(self, batch: Sequence[_Pending]) -> list[Future[FrameResult]]:
        for item in batch:
            failure = item.frame.exception()
            if isinstance(failure, _StageError) and is_machine_error(failure.cause):
                raise as_machine_error(failure.cause, "reading frames")
        good = [item for item in batch if item.frame.exception() is None]
        outcomes: dict[int, _Outcome] = {}
        for item, outcome in zip(good, self._segment(good), strict=True):
            outcomes[id(item)] = outcome
        return [
            self._encoders.submit(self._result, item.job.key, _seen(item), outcomes.get(id(item)))
            for item in batch
        ]

    def _segment(self, items: Sequence[_Pending]) -> Sequence[_Outcome]:
        """Run a batch; if it fails, run its frames one by one to know which fail.

        Raises:
            MachineError: the device fails, not a frame.

        """
        try:
            return self.segmenter.start([item.frame.result() for item in items], self.times)
        except Exception as error:
            if is_machine_error(error):
                raise as_machine_error(error, "segmenting") from error
            if len(items) == 1:
                self._probe(error)
                return [error]
        return [self._segment([item])[0] for item in items]

    def _probe(self, error: Exception) -> None:
        """Blame a frame only where the device still segments one that nothing is wrong with."""
        plain = np.zeros((_PROBE_PX, _PROBE_PX, 3), np.uint8)
        corners = np.array([[0.25, 0.25, 0.75, 0.75]], np.float32) * _PROBE_PX
        frame = self.segmenter.prepare(plain, Boxes(corners, np.ones(1, np.float32), ("probe",)))
        try:
            for wait in self.segmenter.start([frame]):
                wait()
        except Exception:  # noqa: BLE001 - whatever it is, it is no frame's
            raise as_machine_error(error, "segmenting") from error

    def _result(
        self, key: Hashable, frame: PreparedFrame | Exception, outcome: _Outcome | None
    ) -> FrameResult:
        if isinstance(frame, _StageError):
            return FrameResult(key, None, (0, 0), frame.stage, frame.cause)
        assert isinstance(frame, PreparedFrame)  # noqa: S101 - reading raises nothing else
        if outcome is None or isinstance(outcome, Exception):
            return FrameResult(key, None, frame.size_hw, "segment", outcome)
        try:
            with self.times.measure("postprocess"):
                low_res = _arrived(outcome)
                masks = self.segmenter.finish(frame, low_res)
        except Exception as error:
            if is_machine_error(error):
                raise as_machine_error(error, "segmenting") from error
            return FrameResult(key, None, frame.size_hw, "postprocess", error)
        return FrameResult(key, masks, frame.size_hw)
