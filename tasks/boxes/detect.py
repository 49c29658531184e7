"""Boxes for frames, by a detector: images are read and scaled on threads ahead of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from sam2_core.machine import usable_cores
from sam2_core.preprocess import StagedFrame
from sam2_core.types import Boxes
from tasks.boxes.detectors import AnyDetector, load_detector
from tasks.boxes.tiles import Tile, merged, tiles_of
from tasks.boxes.yolox import Letterboxed
from tasks.frames.images import load_frame
from tasks.types import FrameFailure, FrameRef

OnStaged = Callable[[FrameRef, StagedFrame], None]
OnFrame = Callable[[FrameRef, Boxes | FrameFailure], None]
Parts = list[tuple[Tile, Letterboxed]]


@dataclass
class _Frame:
    """A frame whose parts are in the detector."""

    frame: FrameRef
    parts: int
    size_hw: tuple[int, int]
    found: list[tuple[Tile, Boxes]] = field(default_factory=list)


def detect(
    frames: Iterable[FrameRef],
    detector: str | AnyDetector,
    classes: Sequence[str] = (),
    min_score: float = 0.3,
    on_frame: OnFrame | None = None,
    *,
    tiles: int = 1,
    on_staged: OnStaged | None = None,
) -> dict[int, Boxes | FrameFailure]:
    """Detect boxes on downloaded frames of one camera.

    Args:
        frames: with `local_path`.
        detector: a loaded one, or the name or path of one (see `tasks.boxes.detector_files`).
        classes: class names to keep; all when empty.
        min_score: least score of a box.
        on_frame: called with each frame when it is done.
        tiles: above 1, frames are looked at in tiles x tiles parts as well as in the whole.
        on_staged: called, on reader threads, with each whole frame that is put where a device
            fetches it.

    Returns:
        By frame index: boxes, best first, possibly none; or why the frame could not be read.

    Raises:
        AutolabelError: no such detector, unreadable, or a class that it does not know.

    """
    if isinstance(detector, str):
        detector = load_detector(detector)
    detector.class_mask(classes)
    queue = _Queue(detector, classes, min_score, on_frame)
    for frame, parts in _read_ahead(frames, detector, tiles, on_staged):
        if isinstance(parts, FrameFailure):
            queue.finish(frame, parts)
        else:
            queue.add(frame, parts)
    return queue.ended()


class _Queue:
    """Batches of frames in the detector; while a device works on one, the next is put together."""

    def __init__(
        self,
        detector: AnyDetector,
        classes: Sequence[str],
        min_score: float,
        on_frame: OnFrame | None,
    ) -> None:
        self._detector, self._classes, self._min_score = detector, classes, min_score
        self._on_frame = on_frame
        self._outcomes: dict[int, Boxes | FrameFailure] = {}
        self._batch: list[tuple[_Frame, Tile, Letterboxed]] = []
        self._queued: deque[tuple[list[tuple[_Frame, Tile]], Callable[[], list[Boxes]]]] = deque()

    def finish(self, frame: FrameRef, outcome: Boxes | FrameFailure) -> None:
        """Note what became of a frame."""
        self._outcomes[frame.index] = outcome
        if self._on_frame:
            self._on_frame(frame, outcome)

    def add(self, frame: FrameRef, parts: Parts) -> None:
        """Take a frame's parts; a full batch is queued."""
        whole = _Frame(frame, len(parts), parts[0][1].size_hw)
        for tile, image in parts:
            self._batch.append((whole, tile, image))
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
        images = [image for _, _, image in self._batch]
        found = self._detector.start(images, self._classes, self._min_score)
        self._queued.append(([(frame, tile) for frame, tile, _ in self._batch], found))
        self._batch = []

    def _settle(self, ahead: int) -> None:
        """Wait until no more than so many batches are queued."""
        while len(self._queued) > ahead:
            parts, found = self._queued.popleft()
            for (frame, tile), boxes in zip(parts, found(), strict=True):
                frame.found.append((tile, boxes))
                if len(frame.found) == frame.parts:
                    self.finish(frame.frame, merged(frame.found, frame.size_hw))


def _read_ahead(
    frames: Iterable[FrameRef], detector: AnyDetector, tiles: int, on_staged: OnStaged | None
) -> Iterator[tuple[FrameRef, Parts | FrameFailure]]:
    def read(frame: FrameRef) -> Parts | FrameFailure:
        loaded = load_frame(frame)
        if isinstance(loaded, FrameFailure):
            return loaded
        image = loaded[1]
        if tiles == 1:
            whole = detector.letterbox(image)
            if on_staged and isinstance(whole.pixels, StagedFrame):
                on_staged(frame, whole.pixels)
            return [(tiles_of(loaded[0].size_hw, 1)[0], whole)]
        return [
            (tile, detector.letterbox(tile.of(image)))
            for tile in tiles_of(loaded[0].size_hw, tiles)
        ]

    readers = min(max(usable_cores() // 2, 2), 8)
    pending: deque[tuple[FrameRef, Future[Parts | FrameFailure]]] = deque()
    with ThreadPoolExecutor(readers, "detect-read") as pool:
        for frame in frames:
            pending.append((frame, pool.submit(read, frame)))
            if len(pending) >= 2 * readers:
                done, future = pending.popleft()
                yield done, future.result()
        while pending:
            done, future = pending.popleft()
            yield done, future.result()
