"""The tracks of a whole sequence, made of nothing but its stored labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tasks.store.manifests import Manifest, labels_of
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import FrameTracks
from tasks.tracks.track import settings, track
from tasks.types import FrameRef


@dataclass(frozen=True, eq=False)
class MadeTracks:
    """The tracks of a sequence.

    Attributes:
        frames: every frame of it and its tracks, one camera after another.
        made: what made them, and `measures` by camera; plain JSON values.

    """

    frames: list[tuple[FrameRef, FrameTracks]]
    made: dict[str, Any]

    def by_frame(self) -> dict[tuple[str, int], FrameTracks]:
        """Return them by camera and index, as `StoredTracks` has them."""
        return {(frame.camera, frame.index): one for frame, one in self.frames}


def make_tracks(out_uri: str, manifest: Manifest) -> MadeTracks:
    """Track the labels of a sequence, camera by camera; of masks only samples are kept in memory.

    Raises:
        NotFoundError, IncompleteArtifactError: labels are gone or damaged.

    """
    frames: list[tuple[FrameRef, FrameTracks]] = []
    measures = {}
    for camera in dict.fromkeys(chunk.camera for chunk in manifest.chunks):
        refs: list[FrameRef] = []
        tracked = track(_looked_at(out_uri, manifest, camera, refs))
        frames += zip(refs, tracked.frames, strict=True)
        measures[camera] = tracked.measures
    return MadeTracks(frames, {"settings": settings(), "measures": measures})


def _looked_at(
    out_uri: str, manifest: Manifest, camera: str, refs: list[FrameRef]
) -> Iterator[LabeledFrame]:
    """Yield a camera's frames in order, remembering which they are."""
    for chunk in manifest.chunks:
        if chunk.camera == camera:
            for one in labels_of(out_uri, manifest, chunk):
                refs.append(one.frame)
                yield one
