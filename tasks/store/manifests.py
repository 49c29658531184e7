"""Manifests and reports: one small JSON file per sequence, written when all its chunks are.

The name of a manifest holds all that planning needs, so one listing of `manifests/<run_key>/` says
which of a hundred thousand sequences are up to date.

A sequence of which something could not be fetched gets its manifest below `partial/` instead: its
labels can be used, and the next run tries to fetch the rest. Once there is a complete manifest the
partial one means nothing.

A sequence has several manifests when its frames changed or several models labeled it. The newest
counts, by the time of its file: `declare_again` writes one again after other labels have taken its
place, and those that a wrong clock has dated ahead, so that what is new is newer than all others.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from sam2_core.arrays import freeze_arrays
from sam2_core.machine import product_version
from sam2_core.types import AutolabelError, FloatArray
from tasks.store import checksums, storage
from tasks.store.artifacts import Chunk, RunStamp, StoredChunk, read_chunk
from tasks.store.checksums import IncompleteArtifactError, OtherVersionError
from tasks.store.tables import FORMAT_VERSION, ChunkPath, LabeledFrame, is_safe_name
from tasks.types import FrameFailure, FrameRef, SequenceRef
from tasks.wording import counted

COMPLETE, PARTIAL, MIXED = "manifests", "partial", "mixed"
Fresh = Mapping[str, StoredChunk]  # chunks in memory, by stem, as they were written


@dataclass(frozen=True)
class ChunkRecord:
    """A complete chunk as a manifest lists it; `labels_of` reads it.

    Attributes:
        instances: boxes of its frames.
        rejected: those of them that have no mask, with the reason in their row.
        followed: those of them that no detector has found; not in the file where there are none.
        frames_sha256, masks_sha256: of its files; "" until the manifest is about to be written.

    """

    stem: str
    key: str
    camera: str
    frames: int
    failed: int
    instances: int
    rejected: int = 0
    frames_sha256: str = ""
    masks_sha256: str = ""
    followed: int = 0

    @staticmethod
    def of(chunk: Chunk, labeled: Sequence[LabeledFrame]) -> ChunkRecord:
        """Count a chunk's outcomes."""
        failed = sum(one.failure is not None for one in labeled)
        instances = sum(len(one.boxes) for one in labeled if one.failure is None)
        rejected = sum(
            bool(reason) for one in labeled if one.masks is not None for reason in one.masks.reasons
        )
        return ChunkRecord(
            chunk.stem, chunk.key, chunk.frames[0].camera, len(labeled), failed, instances,
            rejected, followed=sum(len(one.followed) for one in labeled),
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        values = asdict(self)
        return values if self.followed else {n: v for n, v in values.items() if n != "followed"}

    def with_checksums(self, stored: StoredChunk) -> ChunkRecord:
        """Remember which files these are."""
        return replace(self, frames_sha256=stored.frames_sha256, masks_sha256=stored.masks_sha256)


@dataclass(frozen=True)
class Manifest:
    """A labeled sequence: which chunks hold its labels, and what made them.

    Attributes:
        partial: whether frames or videos of it could not be fetched, and may yet be.
        versions: the sets of versions of libraries that made its chunks, each once; one set unless
            libraries were upgraded between two chunks.

    """

    sequence_id: str
    frames_uri: str
    content_key: str
    stamp: RunStamp
    chunks: tuple[ChunkRecord, ...]
    partial: bool = False
    versions: tuple[Mapping[str, str], ...] = ()

    @property
    def uri(self) -> str:
        """Path below the run's storage."""
        key = (self.stamp.run_key, self.sequence_id, self.content_key)
        return path_of(*key, partial=self.partial)

    @property
    def version(self) -> str:
        """What tells the labels that it lists from those of any other manifest."""
        return f"{self.uri}#{self.frames - self.failed}" if self.partial else self.uri

    @property
    def mixed(self) -> str:
        """Say which libraries of several versions made its labels; "" where it was one set."""
        names = sorted({name for one in self.versions for name in one})
        found = {name: {one.get(name, "unknown") for one in self.versions} for name in names}
        return ", ".join(
            f"{name} {' and '.join(sorted(versions))}"
            for name, versions in found.items()
            if len(versions) > 1
        )

    @property
    def frames(self) -> int:
        """Frames of the sequence, failed ones included."""
        return sum(chunk.frames for chunk in self.chunks)

    @property
    def failed(self) -> int:
        """Frames without labels."""
        return sum(chunk.failed for chunk in self.chunks)

    @property
    def instances(self) -> int:
        """Boxes with a mask row, rejected masks included."""
        return sum(chunk.instances for chunk in self.chunks)

    @property
    def rejected(self) -> int:
        """Boxes whose row has a reason and no mask."""
        return sum(chunk.rejected for chunk in self.chunks)

    @property
    def followed(self) -> int:
        """Boxes that no detector has found."""
        return sum(chunk.followed for chunk in self.chunks)


def path_of(run_key: str, sequence_id: str, content_key: str, *, partial: bool = False) -> str:
    """Path of a manifest below the run's storage."""
    return _path(PARTIAL if partial else COMPLETE, run_key, sequence_id, content_key)


def _path(folder: str, run_key: str, sequence_id: str, content_key: str) -> str:
    return f"{folder}/{run_key}/{sequence_id}@{content_key}.json"


def write_manifest(out_uri: str, manifest: Manifest) -> None:
    """Declare a sequence labeled; call it after every chunk has been written."""
    values = {
        "sequence_id": manifest.sequence_id,
        "frames_uri": manifest.frames_uri,
        "content_key": manifest.content_key,
        "run_key": manifest.stamp.run_key,
        "stamp": manifest.stamp.as_json(),
        "chunks": [chunk.as_json() for chunk in manifest.chunks],
        "versions": [dict(one) for one in manifest.versions],
        "labeled_by": product_version(),
    }
    storage.write_bytes(storage.join(out_uri, manifest.uri), checksums.encode_json(values))


def note_mixed(out_uri: str, manifest: Manifest) -> None:
    """Leave a note that versions of libraries are mixed in a sequence, or take it back."""
    key = (manifest.stamp.run_key, manifest.sequence_id, manifest.content_key)
    uri = storage.join(out_uri, _path(MIXED, *key))
    if manifest.mixed:
        storage.write_bytes(uri, checksums.encode_json({"mixed": manifest.mixed}))
    else:
        storage.delete(uri)


def read_manifest(
    out_uri: str, run_key: str, sequence_id: str, content_key: str, *, partial: bool = False
) -> Manifest:
    """Read the manifest of a complete sequence, or that of a partial one.

    Raises:
        NotFoundError: the sequence is not complete, or not partial.
        OtherVersionError: another version of this package has labeled it, in another form.
        IncompleteArtifactError: the file is damaged or foreign.

    """
    uri = storage.join(out_uri, path_of(run_key, sequence_id, content_key, partial=partial))
    data, shown = storage.read_bytes(uri), storage.redact(uri)
    _refuse_other_version(data)  # first: other versions seal otherwise, or not at all
    values = checksums.decode_json(data, shown)
    try:
        manifest = Manifest(
            values["sequence_id"],
            values["frames_uri"],
            values["content_key"],
            RunStamp.from_json(values["stamp"]),
            tuple(ChunkRecord(**chunk) for chunk in values["chunks"]),
            partial,
            tuple(
                {str(name): str(version) for name, version in one.items()}
                for one in values.get("versions", ())
            ),
        )
        if not all(_is_of(record, manifest) for record in manifest.chunks):
            raise IncompleteArtifactError("it lists labels of something else")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IncompleteArtifactError(f"{shown} is not a manifest: {error!r}") from error
    except IncompleteArtifactError as error:
        raise IncompleteArtifactError(f"{shown}: {error}") from error
    if storage.join(out_uri, manifest.uri) != uri or not is_safe_name(sequence_id):
        raise IncompleteArtifactError(f"{shown} is the manifest of something else")
    return manifest


def _refuse_other_version(data: bytes) -> None:
    try:
        values = json.loads(data)
        version = values["stamp"]["format_version"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return  # damaged, which checksums tell
    if version != FORMAT_VERSION:
        raise OtherVersionError(str(values.get("labeled_by", "")))


def _is_of(record: ChunkRecord, manifest: Manifest) -> bool:
    """Whether a manifest, which anyone may have written, points where its own labels are."""
    path = ChunkPath.of(record.stem)
    counts = (
        record.frames, record.failed, record.instances, record.rejected, record.followed,
    )  # fmt: skip
    return (
        path.holds(manifest.sequence_id, record.camera) and path.key == record.key
        and all(isinstance(count, int) and count >= 0 for count in counts)
    )  # fmt: skip


def labels_of(
    out_uri: str, manifest: Manifest, record: ChunkRecord, fresh: Fresh | None = None
) -> list[LabeledFrame]:
    """Outcomes of one of a manifest's chunks, in frame order; `fresh` ones are not read.

    Raises:
        NotFoundError: a file of it is gone.
        IncompleteArtifactError: a file is damaged, or is not the one that the manifest was made of.

    """
    stored = (fresh or {}).get(record.stem) or read_chunk(out_uri, record.stem, record.key)
    found = record.with_checksums(stored)
    if stored.labels_key != manifest.stamp.labels_key:
        raise IncompleteArtifactError(f"{record.stem}: labels of another run")
    if (record.frames_sha256 or record.masks_sha256) and found != record:
        raise IncompleteArtifactError(
            f"{record.stem}: its files were written again after the manifest"
        )
    failed = sum(one.failure is not None for one in stored.labeled)
    if (len(stored.labeled), failed) != (record.frames, record.failed):
        raise IncompleteArtifactError(
            f"{record.stem}: {counted(len(stored.labeled), 'frame')} and "
            f"{counted(failed, 'failure')}, the manifest says {record.frames} and {record.failed}"
        )
    return stored.labeled


@contextlib.contextmanager
def withdrawn_if_damaged(out_uri: str, manifest: Manifest) -> Iterator[None]:
    """Take a manifest back when the block finds its labels damaged or gone.

    Then the sequence is no longer complete, and the next run makes again what is missing of it.
    """
    try:
        yield
    except (IncompleteArtifactError, storage.NotFoundError) as error:
        with contextlib.suppress(storage.StorageError):  # may be read only: then it stays refused
            storage.delete(storage.join(out_uri, manifest.uri))
        raise IncompleteArtifactError(
            f"{error}. {manifest.sequence_id} counts as not labeled: run again"
        ) from error


Key = tuple[str, str]  # sequence_id, content_key


def list_complete(out_uri: str, run_key: str) -> set[Key]:
    """(sequence_id, content_key) of every complete sequence of a run, by one listing."""
    return keys_in(storage.join(out_uri, COMPLETE, run_key))


def list_mixed(out_uri: str, run_key: str) -> set[Key]:
    """(sequence_id, content_key) of a run's sequences with labels of mixed versions."""
    return keys_in(storage.join(out_uri, MIXED, run_key))


def keys_in(folder_uri: str, suffix: str = ".json") -> set[Key]:
    """(sequence_id, content_key) of the files `<sequence_id>@<content_key><suffix>` in a folder."""
    return {key for key, _ in _times_in(folder_uri, suffix)}


def times_in(folder_uri: str, suffix: str = ".json") -> dict[Key, float]:
    """When those files were written, in seconds since 1970, by (sequence_id, content_key)."""
    return dict(_times_in(folder_uri, suffix))


def _times_in(folder_uri: str, suffix: str = ".json") -> Iterator[tuple[Key, float]]:
    for name, size, written_s in storage.each_file(folder_uri):
        if size and name.endswith(suffix) and not name.startswith("."):
            sequence_id, _, content_key = name.rpartition("@")
            yield (sequence_id, content_key.removesuffix(suffix)), written_s


def list_runs(out_uri: str) -> list[str]:
    """Keys of every run that has labeled a sequence below this storage."""
    folders = (storage.join(out_uri, folder) for folder in (COMPLETE, PARTIAL))
    return sorted({run_key for folder in folders for run_key in storage.list_folders(folder)})


def write_report(
    out_uri: str, run_key: str, sequence: SequenceRef, content_key: str, report: dict[str, Any]
) -> None:
    """Write a sequence's report: counts, reasons, seconds by stage."""
    path = _path("reports", run_key, sequence.sequence_id, content_key)
    storage.write_bytes(storage.join(out_uri, path), checksums.encode_json(report))


def add_to_report(out_uri: str, manifest: Manifest, facts: dict[str, Any]) -> None:
    """Add what was found out after a sequence's report was written; without one, do nothing."""
    key = manifest.stamp.run_key, manifest.sequence_id, manifest.content_key
    uri = storage.join(out_uri, _path("reports", *key))
    with contextlib.suppress(storage.NotFoundError):
        report = _decode(uri)
        storage.write_bytes(uri, checksums.encode_json(report | facts))


def read_reports(out_uri: str, run_key: str) -> Iterable[dict[str, Any]]:
    """Every report of a run, one after another, as they are listed; damaged ones are left out."""
    folder = storage.join(out_uri, "reports", run_key)
    for name, _, _ in storage.each_file(folder):
        if name.endswith(".json") and not name.startswith("."):
            with contextlib.suppress(IncompleteArtifactError, storage.NotFoundError):
                yield _decode(storage.join(folder, name))


def _decode(uri: str) -> dict[str, Any]:
    return checksums.decode_json(storage.read_bytes(uri), storage.redact(uri))


log = logging.getLogger(__name__)


class ListedManifest(NamedTuple):
    """A manifest as a listing tells it. The later in order the newer.

    Attributes:
        written_s: when its file was written, in seconds since 1970.
        run_key: its run.
        sequence_id: its sequence.
        content_key: key of the frames that it lists.
        partial: whether something of the sequence could not be fetched.

    """

    written_s: float
    run_key: str
    sequence_id: str
    content_key: str
    partial: bool = False

    @property
    def key(self) -> Key:
        """What tells it from others of its run."""
        return self.sequence_id, self.content_key

    @property
    def path(self) -> str:
        """Path below the run's storage."""
        return path_of(self.run_key, *self.key, partial=self.partial)

    def read(self, out_uri: str) -> Manifest:
        """Read it; errors are those of `read_manifest`."""
        return read_manifest(out_uri, self.run_key, *self.key, partial=self.partial)


def list_manifests(out_uri: str, run_key: str = "") -> list[ListedManifest]:
    """Every manifest of a run, or of all runs, oldest first; partial ones where no other is."""
    found: list[ListedManifest] = []
    for run in [run_key] if run_key else list_runs(out_uri):
        partial = times_in(storage.join(out_uri, PARTIAL, run))
        for key, at in _times_in(storage.join(out_uri, COMPLETE, run)):
            partial.pop(key, None)
            found.append(ListedManifest(at, run, *key))
        found += [ListedManifest(at, run, *key, True) for key, at in partial.items()]
    found.sort()
    return found


def dated_ahead(listed: Iterable[ListedManifest]) -> list[ListedManifest]:
    """Return the manifests, in the order of `listed`, whose time has not come yet."""
    now_s = time.time()
    return [one for one in listed if one.written_s > now_s]


def newest_of(listed: Iterable[ListedManifest]) -> dict[str, ListedManifest]:
    """Newest manifest of each sequence, by id; `listed` oldest first."""
    return {one.sequence_id: one for one in listed}


def complete_keys(listed: Iterable[ListedManifest], run_key: str = "") -> set[Key]:
    """(sequence_id, content_key) of what is complete, in one run or in any."""
    return {one.key for one in listed if not one.partial and run_key in {"", one.run_key}}


def newest_manifests(
    out_uri: str, run_key: str = ""
) -> tuple[list[Manifest], dict[str, IncompleteArtifactError]]:
    """Read the newest manifest of each sequence, of one run or of all, by sequence.

    Returns:
        Them, and why those of other sequences cannot be read: they are damaged, or of another
        version of this package.

    """
    newest = newest_of(list_manifests(out_uri, run_key))
    found, unreadable = [], {}
    for name in sorted(newest):
        try:
            found.append(newest[name].read(out_uri))
        except IncompleteArtifactError as error:
            unreadable[name] = error
    return found, unreadable


def declare_again(out_uri: str, listed: Iterable[ListedManifest]) -> None:
    """Make manifests, one after another, the newest of their sequences, without a change in them.

    What cannot be read or written is logged and stays as it is: no label is lost.
    """
    for one in listed:
        try:
            write_manifest(out_uri, one.read(out_uri))
        except AutolabelError as error:
            log.warning("%s: older labels stay the newest: %s", one.sequence_id, error)


LISTED_FRAMES = 100
# No boxes between two frames with at least so many: the detector probably missed them.
BOXES_OF_NEIGHBOURS = 3
LOW_PREDICTED_IOU = 0.5


@dataclass(frozen=True, eq=False)
class Seen:
    """What a report needs of a frame; masks are not kept.

    Attributes:
        frame: which.
        failure: why it has no labels, None when it has.
        labels: class of every box.
        rejected: reasons of the masks that were refused.
        predicted_iou: float32 (M,), of the masks that are not empty.
        stability: float32 (M,), likewise.
        followed: how many of the boxes no detector has found.

    """

    frame: FrameRef
    failure: FrameFailure | None
    labels: tuple[str, ...]
    rejected: tuple[str, ...]
    predicted_iou: FloatArray
    stability: FloatArray
    followed: int = 0

    def __post_init__(self) -> None:
        freeze_arrays(self, predicted_iou="float32 (M)", stability="float32 (M)")

    @staticmethod
    def of(one: LabeledFrame) -> Seen:
        """Keep of a labeled frame what a report needs."""
        nothing = np.zeros(0, np.float32)
        if one.masks is None:
            return Seen(one.frame, one.failure, (), (), nothing, nothing)
        good = np.flatnonzero(one.masks.area_px)
        return Seen(
            one.frame,
            None,
            one.boxes.labels,
            tuple(reason for reason in one.masks.reasons if reason),
            one.masks.predicted_iou[good],
            one.masks.stability[good],
            len(one.followed),
        )

    def named(self, reason: str) -> dict[str, Any]:
        """Say which frame is worth a look, and why."""
        frame = self.frame
        return {"camera": frame.camera, "index": frame.index, "uri": frame.uri, "reason": reason}


def report_of(frames: Iterable[Seen]) -> dict[str, Any]:
    """Count a sequence's outcomes and point at frames worth a look.

    Args:
        frames: every frame of the sequence, failed ones too, camera by camera in order.

    Returns:
        Plain JSON values: `frames`, `failed`, `frames_without_boxes`, `instances`, `masks` (those
        that are not empty), `followed` (those of them that memory has made, where there are some),
        `mean_predicted_iou`, `mean_stability`, counts by `cameras`,
        `classes`, `failures` ("stage: reason") and `rejected` (masks' reasons), and the first
        `failed_frames` and `suspicious_frames`, each with camera, index, uri and reason.

    """
    seen = list(frames)
    failed = [one for one in seen if one.failure]
    masks = sum(len(one.predicted_iou) for one in seen)
    followed = sum(one.followed for one in seen)
    return ({"followed": followed} if followed else {}) | {
        "frames": len(seen),
        "failed": len(failed),
        "frames_without_boxes": sum(not one.labels and not one.failure for one in seen),
        "instances": sum(len(one.labels) for one in seen),
        "masks": masks,
        "mean_predicted_iou": _mean([one.predicted_iou for one in seen]),
        "mean_stability": _mean([one.stability for one in seen]),
        "cameras": _counted(one.frame.camera for one in seen),
        "classes": _counted(label for one in seen for label in one.labels),
        "failures": _counted(_kind(one) for one in failed),
        "rejected": _counted(reason for one in seen for reason in one.rejected),
        "failed_frames": [one.named(_kind(one)) for one in failed[:LISTED_FRAMES]],
        "suspicious_frames": list(_suspicious(seen))[:LISTED_FRAMES],
    }


def _mean(parts: list[FloatArray]) -> float | None:
    values = np.concatenate([np.zeros(0, np.float32), *parts])
    return round(float(values.mean()), 4) if len(values) else None


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _kind(one: Seen) -> str:
    """Stage and reason of a failure, without the frame's address, so that equal ones add up."""
    if one.failure is None:
        return ""
    return f"{one.failure.stage}: {one.failure.reason.replace(one.frame.uri, 'the frame')}"


def _suspicious(seen: Sequence[Seen]) -> Iterator[dict[str, Any]]:
    for _, group in groupby(seen, key=lambda one: one.frame.camera):
        frames = [one for one in group if not one.failure]
        sizes = Counter(one.frame.size_hw for one in frames)
        for number, one in enumerate(frames):
            usual = sizes.most_common(1)[0][0]
            around = frames[max(0, number - 1) : number] + frames[number + 1 : number + 2]
            busy = [len(other.labels) >= BOXES_OF_NEIGHBOURS for other in around]
            if one.frame.size_hw != usual:
                yield one.named(f"{one.frame.size_hw} pixels where {usual} is usual")
            elif len(one.predicted_iou) and one.predicted_iou.mean() < LOW_PREDICTED_IOU:
                yield one.named(f"mean predicted IoU {one.predicted_iou.mean():.2f}")
            elif not one.labels and busy == [True, True]:
                yield one.named("no boxes, though the frames before and after have several")
