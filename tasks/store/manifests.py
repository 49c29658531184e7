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
import itertools
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from sam2_core.machine import product_version
from sam2_core.types import AutolabelError
from tasks.store import checksums, storage
from tasks.store.artifacts import Chunk, RunStamp, StoredChunk, is_safe_name, place_of, read_chunk
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.tables import FORMAT_VERSION, LabeledFrame
from tasks.types import FrameFailure

Fresh = Mapping[str, StoredChunk]  # chunks in memory, by stem, as they were written
Count = Annotated[int, Field(ge=0, lt=2**31)]
Address = Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=4096)]
COMPLETE, PARTIAL, MIXED = "manifests", "partial", "mixed"


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
    frames: Count
    failed: Count
    instances: Count
    rejected: Count = 0
    frames_sha256: str = ""
    masks_sha256: str = ""
    followed: Count = 0

    @property
    def labeled(self) -> int:
        """Frames with labels."""
        return self.frames - self.failed

    @staticmethod
    def of(chunk: Chunk, labeled: Sequence[LabeledFrame]) -> ChunkRecord:
        """Count a chunk's outcomes."""
        counts = _counts(labeled)
        return ChunkRecord(chunk.stem, chunk.key, chunk.frames[0].camera, **counts)

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
    frames_uri: Address
    content_key: str
    stamp: RunStamp
    chunks: tuple[ChunkRecord, ...]
    partial: bool = False
    versions: tuple[Mapping[str, str], ...] = ()

    @property
    def uri(self) -> str:
        """Path below the run's storage."""
        return self.path_in(PARTIAL if self.partial else COMPLETE)

    def path_in(self, folder: str) -> str:
        """Path of what is about its labels in a folder of the run's storage."""
        return path_of(self.stamp.run_key, self.sequence_id, self.content_key, folder)

    @property
    def version(self) -> str:
        """What tells the labels that it lists from those of any other manifest."""
        return f"{self.uri}#{self.frames - self.failed}" if self.partial else self.uri

    @property
    def mixed(self) -> str:
        """Say which libraries of several versions made its labels; "" where it was one set."""
        names = sorted({name for version in self.versions for name in version})
        found = {
            name: {version.get(name, "unknown") for version in self.versions} for name in names
        }
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


def _counts(labeled: Sequence[LabeledFrame]) -> dict[str, Any]:
    """Count outcomes as a `ChunkRecord` has them."""
    masks = [frame.masks for frame in labeled if frame.masks is not None]
    return {
        "frames": len(labeled), "failed": len(labeled) - len(masks),
        "instances": sum(map(len, masks)),
        "rejected": sum(bool(reason) for mask in masks for reason in mask.reasons),
        "followed": sum(len(frame.followed) for frame in labeled),
    }  # fmt: skip


_MANIFEST = TypeAdapter(Manifest)


def path_of(run_key: str, sequence_id: str, content_key: str, folder: str = COMPLETE) -> str:
    """Path below the run's storage: of a complete sequence's manifest, or in another folder."""
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
        "versions": [dict(version) for version in manifest.versions],
        "labeled_by": product_version(),
    }
    storage.write_bytes(storage.join(out_uri, manifest.uri), checksums.encode_json(values))


def note_mixed(out_uri: str, manifest: Manifest) -> None:
    """Leave a note that versions of libraries are mixed in a sequence, or take it back."""
    uri = storage.join(out_uri, manifest.path_in(MIXED))
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
        IncompleteArtifactError: the file is damaged or foreign, or another version of this package
            has labeled it, in another form.

    """
    folder = PARTIAL if partial else COMPLETE
    uri = storage.join(out_uri, path_of(run_key, sequence_id, content_key, folder))
    data, shown = storage.read_bytes(uri), storage.redact(uri)
    _refuse_other_version(data)  # first: other versions seal otherwise, or not at all
    values = checksums.decode_json(data, shown)
    try:
        manifest = _MANIFEST.validate_python(values | {"partial": partial})
    except ValidationError as error:
        raise IncompleteArtifactError(f"{shown} is not a manifest") from error
    # Anyone may have written it: it must lie in its place, and list its own labels alone, once.
    places = [place_of(chunk.stem) for chunk in manifest.chunks]
    own = [(manifest.sequence_id, chunk.camera or "_", chunk.key) for chunk in manifest.chunks]
    is_own = [place.names for place in places] == own and is_safe_name(sequence_id)
    spans = sorted((place.names[1], place.first, place.stop) for place in places)
    twice = any(a[0] == b[0] and b[1] < a[2] for a, b in itertools.pairwise(spans))
    if storage.join(out_uri, manifest.uri) != uri or not is_own or twice:
        raise IncompleteArtifactError(f"{shown} is the manifest of something else")
    return manifest


def _refuse_other_version(data: bytes) -> None:
    try:
        values = json.loads(data)
        version = values["stamp"]["format_version"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return  # damaged, which checksums tell
    if version != FORMAT_VERSION:
        by = values.get("labeled_by") or "another version"
        raise IncompleteArtifactError(
            f"labeled by {by}, which this version cannot read: label again"
        )


def labels_of(
    out_uri: str, manifest: Manifest, record: ChunkRecord, fresh: Fresh | None = None
) -> list[LabeledFrame]:
    """Outcomes of one of a manifest's chunks, in frame order; `fresh` ones are not read.

    Raises:
        NotFoundError: a file of it is gone.
        IncompleteArtifactError: a file is damaged, or is not the one that the manifest was made of.

    """
    stored = (fresh or {}).get(record.stem) or read_chunk(out_uri, record.stem, record.key)
    if stored.labels_key != manifest.stamp.labels_key:
        raise IncompleteArtifactError(f"{record.stem}: labels of another run")
    if record.with_checksums(stored) != record:
        raise IncompleteArtifactError(
            f"{record.stem}: its files were written again after the manifest"
        )
    if record != replace(record, **_counts(stored.labeled)):
        raise IncompleteArtifactError(f"{record.stem}: the manifest counts other labels")
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


def list_keys(out_uri: str, folder: str, run_key: str, suffix: str = ".json") -> dict[Key, float]:
    """When a run's files in a folder were written, in seconds since 1970, by one listing.

    By (sequence_id, content_key) of their names, which are as those of manifests.
    """
    return {key: at for key, size, at in _each_key(out_uri, folder, run_key, suffix) if size}


def _each_key(
    out_uri: str, folder: str, run_key: str, suffix: str = ".json"
) -> Iterator[tuple[Key, int, float]]:
    """Yield the key, the size in bytes and the time of each of a run's files in a folder."""
    for name, size, written_s in storage.each_file(storage.join(out_uri, folder, run_key)):
        if name.endswith(suffix) and not name.startswith("."):
            stem = name.removesuffix(suffix)
            # A name that is none of ours is one without content: it is told, as it cannot be read.
            sequence_id, _, content_key = (stem if "@" in stem else f"{stem}@").rpartition("@")
            yield (sequence_id, content_key), size, written_s


def list_runs(out_uri: str) -> list[str]:
    """Keys of every run that has labeled a sequence below this storage."""
    folders = (storage.join(out_uri, folder) for folder in (COMPLETE, PARTIAL))
    return sorted({run_key for folder in folders for run_key in storage.list_folders(folder)})


def write_report(out_uri: str, manifest: Manifest, report: dict[str, Any]) -> None:
    """Write a sequence's report: counts, reasons, seconds by stage."""
    uri = storage.join(out_uri, manifest.path_in("reports"))
    storage.write_bytes(uri, checksums.encode_json(report))


def add_to_report(out_uri: str, manifest: Manifest, facts: dict[str, Any]) -> None:
    """Add what was found out after a sequence's report was written; without one, do nothing."""
    with contextlib.suppress(storage.NotFoundError):
        report = _decode(storage.join(out_uri, manifest.path_in("reports")))
        write_report(out_uri, manifest, report | facts)


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
        empty: whether its file has no byte; it is told as damaged, and its sequence labeled again.

    """

    written_s: float
    run_key: str
    sequence_id: str
    content_key: str
    partial: bool = False
    empty: bool = False

    @property
    def key(self) -> Key:
        """What tells it from others of its run."""
        return self.sequence_id, self.content_key

    @property
    def path(self) -> str:
        """Path below the run's storage."""
        return path_of(self.run_key, *self.key, PARTIAL if self.partial else COMPLETE)

    def read(self, out_uri: str) -> Manifest:
        """Read it; errors are those of `read_manifest`."""
        return read_manifest(out_uri, self.run_key, *self.key, partial=self.partial)


def list_manifests(out_uri: str, run_key: str = "") -> list[ListedManifest]:
    """Every manifest of a run, or of all runs, oldest first; partial ones where no other is."""
    found: list[ListedManifest] = []
    for run in [run_key] if run_key else list_runs(out_uri):
        complete = [
            ListedManifest(at, run, *key, empty=not size)
            for key, size, at in _each_key(out_uri, COMPLETE, run)
        ]
        whole = {manifest.key for manifest in complete}
        partial = list_keys(out_uri, PARTIAL, run)
        found += complete
        found += [
            ListedManifest(at, run, *key, True) for key, at in partial.items() if key not in whole
        ]
    return sorted(found)


def dated_ahead(listed: Iterable[ListedManifest]) -> list[ListedManifest]:
    """Return the manifests, in the order of `listed`, whose time has not come yet."""
    now_s = time.time()
    return [manifest for manifest in listed if manifest.written_s > now_s]


def newest_of(listed: Iterable[ListedManifest]) -> dict[str, ListedManifest]:
    """Newest manifest of each sequence, by id; `listed` oldest first."""
    return {manifest.sequence_id: manifest for manifest in listed}


def complete_keys(listed: Iterable[ListedManifest], run_key: str = "") -> set[Key]:
    """(sequence_id, content_key) of what is complete, in one run or in any."""
    whole = (manifest for manifest in listed if not manifest.partial and not manifest.empty)
    return {manifest.key for manifest in whole if run_key in {"", manifest.run_key}}


def labeled_since(listed: Iterable[ListedManifest]) -> Callable[[Key, float], bool]:
    """Return what tells whether a sequence has labels that are newer than a moment, or its own.

    What failed or was given up then is past, though its files may have changed meanwhile.
    """
    listed = list(listed)
    newest, complete = newest_of(listed), complete_keys(listed)

    def is_past(key: Key, since_s: float) -> bool:
        last = newest.get(key[0])
        return key in complete or (
            last is not None and not last.partial and last.written_s > since_s
        )

    return is_past


def newest_manifests(
    out_uri: str, run_key: str = ""
) -> tuple[list[Manifest], dict[str, AutolabelError]]:
    """Read the newest manifest of each sequence, of one run or of all, by sequence.

    Returns:
        Them, and why those of other sequences cannot be read: they are damaged, or of another
        version of this package.

    """
    newest = newest_of(list_manifests(out_uri, run_key))
    return read_listed(out_uri, [newest[name] for name in sorted(newest)])


MOST_READ = 10_000  # of a run, to tell of it; seconds on a disk, a minute on S3


def read_listed(
    out_uri: str, listed: Sequence[ListedManifest]
) -> tuple[list[Manifest], dict[str, AutolabelError]]:
    """Read manifests, `listed` oldest first; where the newest of a sequence cannot be, none of it.

    Older labels never replace newer ones. Returns as `newest_manifests`.
    """

    def read(entry: ListedManifest) -> Manifest | AutolabelError:
        try:
            return entry.read(out_uri)
        except (IncompleteArtifactError, storage.NotFoundError) as error:
            return error

    found = storage.at_once(read, listed)
    newest = {entry.sequence_id: made for entry, made in zip(listed, found, strict=True)}
    unreadable = {
        name: outcome for name, outcome in newest.items() if not isinstance(outcome, Manifest)
    }
    manifests = [outcome for outcome in found if isinstance(outcome, Manifest)]
    return [
        manifest for manifest in manifests if manifest.sequence_id not in unreadable
    ], unreadable


def declare_again(out_uri: str, listed: Iterable[ListedManifest]) -> None:
    """Make manifests, one after another, the newest of their sequences, without a change in them.

    What cannot be read or written is logged and stays as it is: no label is lost.
    """
    for entry in listed:
        try:
            write_manifest(out_uri, entry.read(out_uri))
        except AutolabelError as error:
            log.warning("%s: older labels stay the newest: %s", entry.sequence_id, error)


LISTED_FRAMES = 100
Tally = Counter[tuple[str, str]]  # by what is counted, and a name of it or ""


def tally_of(labeled: Iterable[LabeledFrame]) -> Tally:
    """Count what the report of a sequence tells beside what its manifest does."""
    tally: Tally = Counter()
    for frame in labeled:
        if frame.masks is not None:
            tally["frames_without_boxes", ""] += not len(frame.boxes)
            tally["masks", ""] += int(np.count_nonzero(frame.masks.area_px))
            tally.update(("classes", label) for label in frame.boxes.labels)
            tally.update(("rejected", reason) for reason in frame.masks.reasons if reason)
    return tally


def report_of(manifest: Manifest, tally: Tally, failures: Sequence[FrameFailure]) -> dict[str, Any]:
    """Sum up a labeled sequence.

    Args:
        manifest: that of the sequence.
        tally: that of all its chunks.
        failures: its frames and videos without labels.

    Returns:
        Plain JSON values: `frames`, `failed`, `frames_without_boxes`, `instances`, `masks` (those
        that are not empty), `followed` (those of them that memory has made, where there are some),
        counts by `cameras`, `classes`, `failures` ("stage: reason") and `rejected` (masks'
        reasons), and the first `failed_frames`, each with camera, index, uri and reason.

    """

    def counts(what: str) -> dict[str, int]:
        return {name: count for (kind, name), count in tally.most_common() if kind == what}

    cameras: Counter[str] = Counter()
    for chunk in manifest.chunks:
        cameras[chunk.camera] += chunk.frames
    followed = sum(chunk.followed for chunk in manifest.chunks)
    # Without the frame's address, so that equal ones add up.
    reasons = [
        f"{failure.stage}: {failure.reason.replace(failure.uri, 'the frame')}"
        for failure in failures
    ]
    return ({"followed": followed} if followed else {}) | {
        "frames": manifest.frames,
        "failed": manifest.failed,
        "frames_without_boxes": tally["frames_without_boxes", ""],
        "instances": manifest.instances,
        "masks": tally["masks", ""],
        "cameras": dict(cameras.most_common()),
        "classes": counts("classes"),
        "failures": dict(Counter(reasons).most_common()),
        "rejected": counts("rejected"),
        "failed_frames": [
            {"camera": failure.camera, "index": failure.index, "uri": failure.uri, "reason": reason}
            for failure, reason in zip(failures[:LISTED_FRAMES], reasons, strict=False)
        ],
    }
