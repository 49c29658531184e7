"""How far a run has come: steps report it, a display or a metrics exporter listens."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping

OPEN, DOWNLOAD, DETECT = "open", "download", "detect"
LABEL = "label"  # the task of a block of chunks: DOWNLOAD, DETECT and SEGMENT
SEGMENT, CHECK, TRACK, LOAD = "segment", "check", "track", "load"


class Listener:
    """Listens to how far a run has come, from any thread; does nothing of itself."""

    def expected(self, frames: int) -> None:
        """`frames` more frames are to be labeled than was planned; fewer, where it is below 0."""

    def advanced(self, stage: str, frames: int, kept: bool) -> None:
        """`frames` more frames are through `stage`; `kept` ones needed no work."""

    def chunk_done(self, seconds: Mapping[str, float], instances: int) -> None:
        """Hear what a computed chunk cost in every stage, and how many boxes it had."""

    def finished(self, sequence_id: str, text: str, good: bool) -> None:
        """Hear that a sequence is done."""


class Progress:
    """How far one run has come; any thread may report."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._opened: set[object] = set()

    def expect(self, part: object, frames: int) -> None:
        """Report, once for a part of the run, how many more frames than planned it has."""
        if part not in self._opened:
            self._opened.add(part)
            for listener in tuple(self._listeners):
                listener.expected(frames)

    def advance(self, stage: str, frames: int = 1, *, kept: bool = False) -> None:
        """Report that frames are through a stage."""
        for listener in tuple(self._listeners):
            listener.advanced(stage, frames, kept)

    def finish_chunk(self, seconds: Mapping[str, float], instances: int) -> None:
        """Report what a computed chunk cost."""
        for listener in tuple(self._listeners):
            listener.chunk_done(seconds, instances)

    def finish(self, sequence_id: str, text: str, *, good: bool) -> None:
        """Report that a sequence is done."""
        for listener in tuple(self._listeners):
            listener.finished(sequence_id, text, good)

    @contextlib.contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Let somebody hear everything while the block runs."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)


def summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Add up seconds by stage."""
    total: dict[str, float] = {}
    for part in parts:
        for stage, seconds in part.items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total
