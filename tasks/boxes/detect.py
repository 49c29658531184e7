"""Boxes for frames, by a detector: images are read and scaled on threads ahead of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from sam2_core.types import Boxes
from tasks.boxes.yolox import Detector, Letterboxed, load_detector
from tasks.frames.images import load_frame
from tasks.types import FrameFailure, FrameRef

READERS = 4
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
    outcomes: dict[int, Boxes | FrameFailure] = {}
    batch: list[tuple[FrameRef, Letterboxed]] = []

    def finish(frame: FrameRef, outcome: Boxes | FrameFailure) -> None:
        outcomes[frame.index] = outcome
        if on_frame:
            on_frame(frame, outcome)

    def flush() -> None:
        found = detector.detect([image for _, image in batch], classes, min_score)
        for (frame, _), boxes in zip(batch, found, strict=True):
            finish(frame, boxes)
        batch.clear()

    for frame, image in _read_ahead(frames, detector):
        if isinstance(image, FrameFailure):
            finish(frame, image)
            continue
        batch.append((frame, image))
        if len(batch) == detector.batch:
            flush()
    if batch:
        flush()
    return dict(sorted(outcomes.items()))


def _read_ahead(
    frames: Iterable[FrameRef], detector: Detector
) -> Iterator[tuple[FrameRef, Letterboxed | FrameFailure]]:
    def read(frame: FrameRef) -> Letterboxed | FrameFailure:
        loaded = load_frame(frame)
        return loaded if isinstance(loaded, FrameFailure) else detector.letterbox(loaded[1])

    pending: deque[tuple[FrameRef, Future[Letterboxed | FrameFailure]]] = deque()
    with ThreadPoolExecutor(READERS, "detect-read") as pool:
        for frame in frames:
            pending.append((frame, pool.submit(read, frame)))
            if len(pending) >= 2 * READERS:
                done, future = pending.popleft()
                yield done, future.result()
        while pending:
            done, future = pending.popleft()
            yield done, future.result()
