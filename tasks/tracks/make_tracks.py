"""The tracks of a whole sequence, made of nothing but its stored labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tasks.store.manifests import Fresh, Manifest, labels_of
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import FrameTracks
from tasks.tracks.gaps import Gap
from tasks.tracks.linking import settings, track
from tasks.types import FrameRef


@dataclass(frozen=True, eq=False)
class MadeTracks:
    """The tracks of a sequence.

    Attributes:
        frames: every frame of it and its tracks, one camera after another.
        made: what made them, and `measures` by camera; plain JSON values.
        gaps: where an object was lost for a few frames, with the frames.
        no_gaps: masks that are missing along tracks and are in no gap, by reason.

    """

    frames: list[tuple[FrameRef, FrameTracks]]
    made: dict[str, Any]
    gaps: list[tuple[FrameRef, Gap]]
    no_gaps: Counter[str]

    @property
    def by_frame(self) -> dict[tuple[str, int], FrameTracks]:
        """Return them by camera and index, as `StoredTracks` has them."""
        return {(frame.camera, frame.index): one for frame, one in self.frames}


def make_tracks(
    out_uri: str, manifest: Manifest, gap_frames: int = 0, fresh: Fresh | None = None
) -> MadeTracks:
    """Track the labels of a sequence, camera by camera; of masks only samples are kept in memory.

    Args:
        out_uri: the run's storage.
        manifest: which labels.
        gap_frames: how long the gaps are at most that are returned.
        fresh: labels that are in memory still.

    Raises:
        NotFoundError, IncompleteArtifactError: labels are gone or damaged.

    """

    def looked_at(camera: str, refs: list[FrameRef], failed: set[int]) -> Iterator[LabeledFrame]:
        """Yield a camera's frames in order, remembering which they are, and which have failed."""
        for chunk in manifest.chunks:
            if chunk.camera == camera:
                for one in labels_of(out_uri, manifest, chunk, fresh):
                    if one.failure:
                        failed.add(len(refs))
                    refs.append(one.frame)
                    yield one

    frames: list[tuple[FrameRef, FrameTracks]] = []
    gaps: list[tuple[FrameRef, Gap]] = []
    no_gaps: Counter[str] = Counter()
    measures = {}
    for camera in dict.fromkeys(chunk.camera for chunk in manifest.chunks):
        refs: list[FrameRef] = []
        failed: set[int] = set()
        tracked = track(looked_at(camera, refs, failed), gap_frames)
        there = [(refs[gap.frame], gap) for gap in tracked.gaps if gap.frame not in failed]
        gaps += there
        no_gaps.update(tracked.no_gaps)
        no_gaps["the frame failed"] += len(tracked.gaps) - len(there)
        frames += zip(refs, tracked.frames, strict=True)
        measures[camera] = tracked.measures
    return MadeTracks(frames, {"settings": settings(), "measures": measures}, gaps, +no_gaps)
