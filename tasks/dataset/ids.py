"""Ids in FiftyOne's database: hashes of what they name, so the same after a rebuild.

A frame is named by its content, not its position: links into the App stay valid, and a decision
finds its label again or none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.store.tracks import FrameTracks
from tasks.types import FrameRef


def object_id(*parts: str) -> Any:
    """Make a MongoDB id from what it names."""
    from bson import ObjectId

    return ObjectId(hashlib.sha256("\0".join(parts).encode()).digest()[:12])


def sample_id(key: str) -> Any:
    """Id of the sample of a frame, by its identity's key."""
    return object_id("sample", key)


def label_id(key: str, run_key: str, box_index: int) -> Any:
    """Id of one machine label: of a frame, a run and a box."""
    from bson import ObjectId

    return ObjectId(label_prefix(key, run_key) + box_index.to_bytes(3, "big"))


def label_prefix(key: str, run_key: str) -> bytes:
    """First bytes of the ids of a run's labels of a frame; the box's index follows."""
    return hashlib.sha256(f"label\0{key}\0{run_key}".encode()).digest()[:9]


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
