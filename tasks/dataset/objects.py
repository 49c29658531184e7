"""Names of objects over time: what review decides on once. Each is named by its first label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.store.tracks import FrameTracks
from tasks.types import FrameRef


class ObjectNames:
    """Names the objects of a sequence's labels, frame after frame.

    Args:
        tracks: of each frame, by camera and index. Ids that came with boxes may be counted anew for
            each class: an object is an id and a class.

    """

    def __init__(self, tracks: Mapping[tuple[str, int], FrameTracks]) -> None:
        self._tracks = tracks
        self._first: dict[tuple[str, str, int], str] = {}

    def names(self, frame: FrameRef, label_ids: Sequence[str]) -> list[str]:
        """Name the objects of the next frame's labels.

        Args:
            frame: which.
            label_ids: N ids; an object takes that of its first label.

        Returns:
            N names.

        """
        found = self._tracks.get((frame.camera, frame.index))
        if found is None or len(found.ids) != len(label_ids):
            return list(label_ids)
        rows = zip(found.labels, found.ids.tolist(), label_ids, strict=True)
        return [
            self._first.setdefault((frame.camera, label, track), name)
            for label, track, name in rows
        ]
