"""What a sequence's labels are of, and where it goes: frames, pictures, moments, before any label.

Names in rows are worth nothing until they equal the manifest's: anyone may have written the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.dataset.ids import sample_id
from tasks.dataset.moments import moments_of
from tasks.dataset.pictures import find_pictures
from tasks.frames.identity import frame_identity, is_below
from tasks.store import artifacts, storage
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import ChunkRecord, Manifest, labels_of
from tasks.store.tables import LabeledFrame
from tasks.store.tracks import StoredTracks
from tasks.types import FrameRef


def recorded_frames(out_uri: str, manifest: Manifest) -> list[FrameRef]:
    """Read which frames a sequence's labels are of.

    Raises:
        IncompleteArtifactError: a chunk is damaged, or names frames of something else.

    """
    return [
        _of_manifest(frame, chunk, manifest)
        for chunk in manifest.chunks
        for frame in artifacts.read_frames(out_uri, chunk.stem, chunk.key)
    ]


def recorded_labels(out_uri: str, chunk: ChunkRecord, manifest: Manifest) -> list[LabeledFrame]:
    """Read the labels of a chunk; raises as `recorded_frames`."""
    labeled = labels_of(out_uri, manifest, chunk)
    for one in labeled:
        _of_manifest(one.frame, chunk, manifest)
    return labeled


def recorded_parts(
    out_uri: str, manifest: Manifest, camera: str, tracks: StoredTracks | None
) -> Iterator[list[LabeledFrame]]:
    """Read a camera's labels chunk by chunk, with their tracks; raises as `recorded_frames`."""
    for chunk in manifest.chunks:
        if chunk.camera == camera:
            labeled = recorded_labels(out_uri, chunk, manifest)
            yield [tracks.joined(one) for one in labeled] if tracks else labeled


def _of_manifest(frame: FrameRef, chunk: ChunkRecord, manifest: Manifest) -> FrameRef:
    """Refuse rows that name another sequence or camera, or a file elsewhere on this machine."""
    wrong = (frame.sequence_id, frame.camera) != (manifest.sequence_id, chunk.camera)
    if wrong or (storage.is_local(frame.uri) and not is_below(frame.uri, manifest.frames_uri)):
        raise IncompleteArtifactError(
            f"{chunk.stem} holds labels of {frame.sequence_id!r}, camera {frame.camera!r}, frame "
            f"{storage.redact(frame.uri)}: which is not a frame of sequence {manifest.sequence_id}"
        )
    return frame


@dataclass(frozen=True, eq=False)
class Place:
    """Where frames of a sequence go in a dataset.

    Attributes:
        paths: file that is shown, by the frame's address, where it is a copy.
        moments: id of the sample that stands for a frame's moment, by the frame's sample id.
        listed: sample ids of all frames.
        changed: of those that are left out.
        mask_folder: where masks go as PNG files; None for the database.

    """

    paths: Mapping[str, str] = field(default_factory=dict)
    moments: Mapping[Any, Any] = field(default_factory=dict)
    listed: set[Any] = field(default_factory=set)
    changed: set[Any] = field(default_factory=set)
    mask_folder: Path | None = None


def place_frames(recorded: Sequence[FrameRef], frames_uri: str, mask_folder: Path | None) -> Place:
    """Find frames' pictures and moments before their labels are read."""
    pictures = find_pictures(recorded)
    ids = [sample_id(frame_identity(frame, frames_uri).key) for frame in recorded]
    moments = dict(zip(ids, (ids[anchor] for anchor in moments_of(recorded)), strict=True))
    changed = {
        identity
        for identity, frame in zip(ids, recorded, strict=True)
        if frame.uri in pictures.changed
    }
    return Place(pictures.paths, moments, set(ids), changed, mask_folder)
