"""Boxes for frames, by a detector: images are read and scaled on threads ahead of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from sam2_core.cores import usable_cores
from sam2_core.types import Boxes
from tasks.boxes.detectors import load_detector
from tasks.boxes.yolox import Detector, Letterboxed
from tasks.frames.images import load_frame
from tasks.types import FrameFailure, FrameRef

OnFrame = Callable[[FrameRef, Boxes | FrameFailure], None]


def detect(
    frames: Iterable[FrameRef],
    detector: str | Detector,
    classes: Sequence[str] = (),
    min_score: float = 0.3,
    on_frame: OnFrame | None = None,
) -> dict[int, Boxes | FrameFailure]:
    """Detect boxes on downloaded frames of one camera.

    Args:
        frames: with `local_path`.
        detector: a loaded one, or the name or path of one (see `tasks.boxes.detector_files`).
        classes: class names to keep; all when empty.
        min_score: least score of a box.
        on_frame: called with each frame when it is done.

    Returns:
        By frame index: boxes, best first, possibly none; or why the frame could not be read.

    Raises:
        AutolabelError: no such detector, unreadable, or a class that it does not know.

    """
    if isinstance(detector, str):
        detector = load_detector(detector)
    detector.class_mask(classes)
    queue = _Queue(detector, classes, min_score, on_frame)
    for frame, image in _read_ahead(frames, detector):
        if isinstance(image, FrameFailure):
            queue.finish(frame, image)
        else:
            queue.add(frame, image)
    return queue.ended()


class _Queue:
    """Batches of frames in the detector; while a device works on one, the next is put together."""

    def __init__(
        self, detector: Detector, classes: Sequence[str], min_score: float, on_frame: OnFrame | None
    ) -> None:
        self._detector, self._classes, self._min_score = detector, classes, min_score
        self._on_frame = on_frame
        self._outcomes: dict[int, Boxes | FrameFailure] = {}
        self._batch: list[tuple[FrameRef, Letterboxed]] = []
        self._queued: deque[tuple[list[FrameRef], Callable[[], list[Boxes]]]] = deque()

    def finish(self, frame: FrameRef, outcome: Boxes | FrameFailure) -> None:
        """Note what became of a frame."""
        self._outcomes[frame.index] = outcome
        if self._on_frame:
            self._on_frame(frame, outcome)

    def add(self, frame: FrameRef, image: Letterboxed) -> None:
        """Take a frame; a full batch is queued."""
        self._batch.append((frame, image))
        if len(self._batch) == self._detector.batch:
            self._start()
            self._settle(1)

    def ended(self) -> dict[int, Boxes | FrameFailure]:
        """Wait for all; outcomes by frame index."""
        if self._batch:
            self._start()
        self._settle(0)
        return dict(sorted(self._outcomes.items()))

    def _start(self) -> None:
        images = [image for _, image in self._batch]
        found = self._detector.start(images, self._classes, self._min_score)
        self._queued.append(([frame for frame, _ in self._batch], found))
        self._batch = []

    def _settle(self, ahead: int) -> None:
        """Wait until no more than so many batches are queued."""
        while len(self._queued) > ahead:
            frames, found = self._queued.popleft()
            for frame, boxes in zip(frames, found(), strict=True):
                self.finish(frame, boxes)


def _read_ahead(
    frames: Iterable[FrameRef], detector: Detector
) -> Iterator[tuple[FrameRef, Letterboxed | FrameFailure]]:
    def read(frame: FrameRef) -> Letterboxed | FrameFailure:
        loaded = load_frame(frame)
        return loaded if isinstance(loaded, FrameFailure) else detector.letterbox(loaded[1])

    readers = min(max(usable_cores() // 2, 2), 8)
    pending: deque[tuple[FrameRef, Future[Letterboxed | FrameFailure]]] = deque()
    with ThreadPoolExecutor(readers, "detect-read") as pool:
        for frame in frames:
            pending.append((frame, pool.submit(read, frame)))
            if len(pending) >= 2 * readers:
                done, future = pending.popleft()
                yield done, future.result()
        while pending:
            done, future = pending.popleft()
            yield done, future.result()
