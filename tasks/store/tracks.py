"""Tracks of a labeled sequence: a table of their own beside its manifest.

Chunks are written once, by the first that comes and in any order; tracks need all of them. So they
are made of the stored labels alone when the sequence is complete, and joined to the labels by
each reader of both. A table stays, of any version: ids never change.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from sam2_core.arrays import Arrays
from sam2_core.types import Boxes, IntArray, Masks
from tasks.store import storage, tables
from tasks.store.artifacts import as_written
from tasks.store.checksums import IncompleteArtifactError, sha256_of
from tasks.store.manifests import Key, Manifest, list_keys
from tasks.store.tables import LabeledFrame
from tasks.types import FrameRef

TRACKS = "tracks"
_SUFFIX, _PARTIAL, _MORE = ".parquet", ".partial.parquet", ".interpolated.parquet"
log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class FrameTracks(Arrays):
    """Which objects the N labels of a frame show.

    Attributes:
        ids: int64 (N,), the same for one object in all frames of a camera.
        labels: N classes, each that of the object as a whole.

    """

    forms: ClassVar = {"ids": "int64 (N)", "labels": "tuple (N)"}
    ids: IntArray
    labels: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class StoredTracks:
    """The tracks of a sequence, as they lie in storage.

    Attributes:
        by_frame: of each frame that has labels, by camera and index.
        made: what made them and what was measured on them, plain JSON values.
        more: interpolated boxes and their masks, by camera and index; their tracks follow those of
            the frame's own labels.

    """

    by_frame: Mapping[tuple[str, int], FrameTracks]
    made: Mapping[str, Any]
    more: Mapping[tuple[str, int], tuple[Boxes, Masks]] = field(default_factory=dict)

    def joined(self, labeled: LabeledFrame) -> LabeledFrame:
        """Return a frame's labels with their tracks.

        Raises:
            IncompleteArtifactError: the tracks are those of other labels.

        """
        frame = labeled.frame
        found = self.by_frame.get((frame.camera, frame.index))
        more = self.more.get((frame.camera, frame.index))
        if more and not labeled.failure:
            with as_written(f"{TRACKS} of {frame.sequence_id}"):
                labeled = replace(labeled.with_more(*more), interpolated=len(more[0]))
        if len(labeled.boxes) != (len(found.ids) if found else 0):
            raise IncompleteArtifactError(
                f"tracks of {frame.sequence_id} do not fit the labels of camera {frame.camera!r}, "
                f"frame {frame.index}"
            )
        if found is None:
            return labeled
        boxes = replace(labeled.boxes, track_ids=found.ids)
        return replace(labeled, boxes=boxes, track_labels=found.labels)


def path_of(manifest: Manifest) -> str:
    """Path of the tracks of a sequence's labels, below the run's storage."""
    suffix = _PARTIAL if manifest.partial else _SUFFIX
    return manifest.path_in(TRACKS).removesuffix(".json") + suffix


def _key(manifest: Manifest) -> str:
    """Key of the labels that a manifest lists: other labels, other key."""
    chunks = (
        f"{chunk.stem} {chunk.frames_sha256} {chunk.masks_sha256}" for chunk in manifest.chunks
    )
    return sha256_of("\n".join(chunks).encode())[:20]


def write_tracks(
    out_uri: str,
    manifest: Manifest,
    tracks: Iterable[tuple[FrameRef, FrameTracks]],
    made: Mapping[str, Any],
    more: Sequence[tuple[FrameRef, Boxes, Masks]] = (),
) -> None:
    """Write the tracks of a sequence, in the order of its chunks.

    Interpolated labels are a table of masks beside it, written first.

    Args:
        out_uri: the run's storage.
        manifest: which labels they are of.
        tracks: of each frame; those without labels may be left out.
        made: what made them and what was measured on them, plain JSON values.
        more: interpolated boxes and their masks; `tracks` has them after the frame's own labels.

    """
    key, made = _key(manifest), dict(made)
    if more:
        rows = [tables.mask_columns(*row) for row in more]
        data = tables.encode_table("masks", rows, {"key": key})
        storage.write_bytes(storage.join(out_uri, _path_of_more(manifest)), data)
        made["interpolated"] = {"labels": sum(map(len, (boxes for _, boxes, _ in more))),
                                "sha256": sha256_of(data)}  # fmt: skip
    parts = [tables.track_columns(frame, found.ids, found.labels) for frame, found in tracks]
    metadata = {"key": key, "made": made}
    data = tables.encode_table("tracks", parts, metadata)
    storage.write_bytes(storage.join(out_uri, path_of(manifest)), data)


def read_tracks(out_uri: str, manifest: Manifest) -> StoredTracks | None:
    """Read the tracks of a sequence; None where there are none of these very labels."""
    return _read(out_uri, manifest, whole=True)


def read_made(out_uri: str, manifest: Manifest) -> Mapping[str, Any] | None:
    """Read `StoredTracks.made` alone, which takes one file; None as for `read_tracks`."""
    found = _read(out_uri, manifest, whole=False)
    return None if found is None else found.made


def _read(out_uri: str, manifest: Manifest, *, whole: bool) -> StoredTracks | None:
    uri = storage.join(out_uri, path_of(manifest))
    try:
        table, metadata = tables.decode_table(
            storage.read_bytes(uri), "tracks", _key(manifest), storage.redact(uri)
        )
        made = metadata["made"]
        if not whole:
            return StoredTracks({}, made)
        more = _read_more(out_uri, manifest, made["interpolated"]) if "interpolated" in made else {}
        by_frame = {
            key: FrameTracks(rows["track_id"].to_numpy(), tables.strings_of(rows["track_label"]))
            for key, rows in tables.split_by_frame(table).items()
        }
        return StoredTracks(by_frame, made, more)
    except storage.NotFoundError:
        return None
    except (IncompleteArtifactError, LookupError, ValueError, TypeError) as error:
        log.warning("tracks do not count: %s", error)
        return None


def _path_of_more(manifest: Manifest) -> str:
    return path_of(manifest).removesuffix(_SUFFIX) + _MORE


def _read_more(
    out_uri: str, manifest: Manifest, recorded: Mapping[str, Any]
) -> dict[tuple[str, int], tuple[Boxes, Masks]]:
    """Read interpolated labels; raises IncompleteArtifactError for others than were recorded."""
    uri = storage.join(out_uri, _path_of_more(manifest))
    data = storage.read_bytes(uri)
    if sha256_of(data) != recorded["sha256"]:
        raise IncompleteArtifactError(f"{storage.redact(uri)} was written again")
    table, _ = tables.decode_table(data, "masks", _key(manifest), storage.redact(uri))
    found = {}
    for key, rows in tables.split_by_frame(table).items():
        size_hw = (rows["height"][0].as_py(), rows["width"][0].as_py())
        found[key] = tables.to_boxes(rows, tables.INTERPOLATED), tables.to_masks(rows, size_hw)
    return found


def list_tracked(out_uri: str, run_key: str) -> set[Key]:
    """(sequence_id, content_key) of every complete sequence of a run that has tracks."""
    found = list_keys(out_uri, TRACKS, run_key, _SUFFIX)
    return {key for key in found if "." not in key[1]}  # neither partial ones nor interpolated
