"""Many frames through a segmenter with the device kept busy.

Frames are read ahead of the device by threads, the device works on one batch after another, and
masks are encoded behind it; results come out in the order of the frames. Every queue is bounded, so
that a slow consumer or a slow disk costs waiting and not memory. A frame that cannot be read or
segmented becomes a failed result; it never ends the loop. What is wrong with the machine does: a
`MachineError` comes out of it, and the frames from there on have no result.
"""

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from sam2_core.machine import usable_cores
from sam2_core.machine_errors import as_machine_error, is_machine_error
from sam2_core.preprocess import PreparedFrame, StagedFrame
from sam2_core.segmenter import Segmenter
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


# How to wait for a frame's low-resolution masks, or why there are none.
_Outcome = Callable[[], LowResMasks | Masks] | Exception


class FrameLoop:
    """One pass over frames; iterate it once for the results.

    Args:
        segmenter: a segmenter that nothing else uses at the same time, or not without `turn`.
        jobs: frames in order; taken lazily, on a thread of the loop.
        readers: threads that read and resize; by default half the cores, 2 to 8.
        ahead: frames that may be read before the device takes them.
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
        ahead: int | None = None,
        turn: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.segmenter = segmenter
        self._turn = turn or nullcontext()
        cores = usable_cores()
        readers = readers or min(max(cores // 2, 2), 8)
        encoders = min(max(cores // 4, 1), 4)
        self._readers = ThreadPoolExecutor(readers, "frame-read")
        self._encoders = ThreadPoolExecutor(encoders, "frame-masks")
        self._jobs = iter(jobs)
        self._ahead: deque[tuple[FrameJob, Future[PreparedFrame | Exception]]] = deque()
        self._most_ahead = ahead or readers + segmenter.frame_batch
        # None ends the results; an exception ends them with that exception.
        self._done: queue.SimpleQueue[Future[FrameResult] | Exception | None] = queue.SimpleQueue()
        self._end: Exception | None = None
        self._room = threading.Semaphore(2 * (encoders + segmenter.frame_batch))
        self._stopped = False

    def __iter__(self) -> Iterator[FrameResult]:
        device = threading.Thread(target=self._drive, name="frame-device", daemon=True)
        device.start()
        try:
            while (item := self._done.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                self._room.release()
                yield item.result()
        finally:
            self._stopped = True
            self._room.release()
            device.join()
            self._readers.shutdown(cancel_futures=True)
            self._encoders.shutdown(cancel_futures=True)

    def _drive(self) -> None:
        """Take frames in order, run them in batches, hand them on."""
        try:
            self._read_ahead()
            with self._turn:
                while batch := self._next_batch():
                    for result in self._run(batch):
                        self._room.acquire()
                        if self._stopped:
                            return
                        self._done.put(result)
        except Exception as error:  # noqa: BLE001 - raised in the consumer's thread
            self._end = error
        self._done.put(self._end)

    def _read_ahead(self) -> None:
        """Have frames read; what the caller's iterable raises ends the loop behind them."""
        try:
            for job in itertools.islice(self._jobs, self._most_ahead - len(self._ahead)):
                self._ahead.append((job, self._readers.submit(self._prepare, job)))
        except Exception as error:  # noqa: BLE001 - raised in the consumer's thread
            self._end, self._jobs = error, iter(())

    def _prepare(self, job: FrameJob) -> PreparedFrame | Exception:
        try:
            return self.segmenter.prepare(job.read(), job.boxes)
        except Exception as error:  # noqa: BLE001 - the frame's answer, or the machine's
            return error

    def _next_batch(self) -> list[tuple[FrameJob, PreparedFrame | Exception]]:
        """Wait until the next frames are read; none: there are no more."""
        count = min(len(self._ahead), self.segmenter.frame_batch)
        batch = [self._ahead.popleft() for _ in range(count)]
        self._read_ahead()
        return [(job, frame.result()) for job, frame in batch]

    def _run(
        self, batch: Sequence[tuple[FrameJob, PreparedFrame | Exception]]
    ) -> list[Future[FrameResult]]:
        good = []
        for _, frame in batch:
            if isinstance(frame, PreparedFrame):
                good.append(frame)
            elif is_machine_error(frame):
                raise as_machine_error(frame, "reading frames")
        outcomes = iter(self._segment(good))
        results = []
        for job, frame in batch:
            if isinstance(frame, Exception):
                answer = self._encoders.submit(FrameResult, job.key, None, (0, 0), "read", frame)
            else:
                seen = replace(frame, images_model=())  # images are memory for nothing from here on
                answer = self._encoders.submit(self._result, job.key, seen, next(outcomes))
            results.append(answer)
        return results

    def _segment(self, frames: Sequence[PreparedFrame]) -> Sequence[_Outcome]:
        """Run a batch; if it fails, run its frames one by one to know which fail.

        Raises:
            MachineError: the device fails, not a frame.

        """
        try:
            return self.segmenter.start(frames)
        except Exception as error:
            if is_machine_error(error):
                raise as_machine_error(error, "segmenting") from error
            if len(frames) == 1:
                self._probe(error)
                return [error]
        return [self._segment([frame])[0] for frame in frames]

    def _probe(self, error: Exception) -> None:
        """Blame a frame only where the device still segments one that nothing is wrong with."""
        try:
            self.segmenter.probe()
        except Exception:  # noqa: BLE001 - no frame is to blame for it
            raise as_machine_error(error, "segmenting") from error

    def _result(self, key: Hashable, frame: PreparedFrame, outcome: _Outcome) -> FrameResult:
        if isinstance(outcome, Exception):
            return FrameResult(key, None, frame.size_hw, "segment", outcome)
        try:
            decoded = outcome()
        except Exception as error:  # it was queued: when it does not come, no frame is to blame
            raise as_machine_error(error, "waiting for the device") from error
        try:
            masks = self.segmenter.finish(frame, decoded)
        except Exception as error:
            if is_machine_error(error):
                raise as_machine_error(error, "segmenting") from error
            return FrameResult(key, None, frame.size_hw, "postprocess", error)
        return FrameResult(key, masks, frame.size_hw)
