"""What a run leaves in its storage: keys, chunks of frames, and their tables.

A chunk is at most 64 frames of one camera. Its key hashes everything that its labels depend on, so
a whole file under that key is the answer, by any writer, at any time: a killed run continues, a
repeated one does nothing, and two writers at once write the same bytes.

Whoever can write to storage can write any name into a file, and names become paths and ids: a name
counts only when it is the one that the file lies under.
"""

import contextlib
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from sam2_core.types import Boxes, ModelStamp
from tasks.store import storage, tables
from tasks.store.checksums import IncompleteArtifactError, sha256_of
from tasks.store.tables import FORMAT_VERSION, Kind, LabeledFrame
from tasks.types import Footage, FrameRef, VideoRef

CHUNK_FRAMES = 64
_STEM = re.compile(r"labels/([^/]*)/([^/]*)/(\d{6,18})-(\d{6,18})-([0-9a-f]+)")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f/\\\ud800-\udfff]")


@dataclass(frozen=True)
class RunStamp:
    """What decides the labels of a run besides the frames.

    Attributes:
        detector: name and sha256 of the detector, or of the imported boxes.
        model: what makes the masks; None for a run that makes boxes only.
        parameters: every other setting that changes the result, as plain JSON values.
        code: the labels' version of the code that decides pixels and boxes; that of masks is the
            model's.
        boxes: digest of the imported boxes of the one sequence that these labels are of; "" for
            the run as a whole, and where a detector finds boxes.
        versions: of this machine's libraries that decide pixels, boxes and masks, by name. They
            are no part of the key: every chunk records those that made it.

    """

    detector: str
    model: ModelStamp | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    boxes: str = ""
    versions: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def run_key(self) -> str:
        """Key of the run, the same for all of its sequences."""
        return replace(self, boxes="").labels_key

    @property
    def labels_key(self) -> str:
        """Key of what made the labels of one sequence: equal stamps, equal key."""
        return _digest([json.dumps(self.as_json(), sort_keys=True)])

    def as_json(self) -> dict[str, Any]:
        """Plain values, for manifests and schema metadata."""
        return {
            "format_version": FORMAT_VERSION,
            "detector": self.detector,
            "model": asdict(self.model) if self.model else None,
            "parameters": dict(self.parameters),
            "code": self.code,
        } | ({"boxes": self.boxes} if self.boxes else {})


_STAMP = TypeAdapter(RunStamp)  # of what `as_json` gives


@dataclass(frozen=True)
class Chunk:
    """Successive frames of one camera that are labeled and stored together.

    Attributes:
        key: see `chunk_key`.
        frames: at most `CHUNK_FRAMES`, in order.
        boxes: `RunStamp.boxes` of their sequence.
        tables: those that storage lists; whether they are whole is seen when they are read.

    """

    key: str
    frames: tuple[FrameRef, ...]
    boxes: str = ""
    tables: frozenset[Kind] = frozenset()

    @property
    def stem(self) -> str:
        """Path of its files below the run's storage, up to the kind."""
        first, last = self.frames[0], self.frames[-1]
        name = f"{first.index:06d}-{last.index + 1:06d}-{self.key}"
        return f"labels/{first.sequence_id}/{first.camera or '_'}/{name}"

    def path(self, kind: Kind) -> str:
        """Path of one of its tables below the run's storage."""
        return f"{self.stem}.{kind}.parquet"


class Place(NamedTuple):
    """What a `Chunk.stem` says: sequence, camera ("_" for none) and key; frames first to stop."""

    names: tuple[str, str, str]
    first: int
    stop: int


def place_of(stem: str) -> Place:
    """Take a `Chunk.stem` apart; names become paths.

    Raises:
        IncompleteArtifactError: it is not of that form.

    """
    found = _STEM.fullmatch(stem)
    if not found or not all(map(is_safe_name, found.groups())):
        raise IncompleteArtifactError(f"{stem!r} is not a place for labels")
    sequence_id, camera, first, stop, key = found.groups()
    return Place((sequence_id, camera, key), int(first), int(stop))


def is_safe_name(name: Any) -> bool:
    """Whether a name can be one part of a path, and nothing but that."""
    return (
        isinstance(name, str) and name not in {"", ".", ".."} and not _UNSAFE.search(name)
        and len(name.encode()) <= 255
    )  # fmt: skip


def _digest(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()[:20]


def _identities(frames: Iterable[Footage]) -> Iterator[str]:
    for frame in frames:
        if isinstance(frame, VideoRef):
            yield f"{frame.camera}\0{frame.selection}\0{frame.address}\0{frame.etag}"
        else:
            yield f"{frame.camera}\0{frame.index}\0{frame.uri}\0{frame.etag}"


def content_key(frames: Iterable[Footage], boxes: str = "") -> str:
    """Key of a sequence's content: changes when a frame is added, removed or rewritten.

    The digest of its imported boxes follows after a "-".
    """
    key = _digest(_identities(frames))
    return f"{key}-{boxes}" if boxes else key


def chunk_key(labels_key: str, frames: Iterable[FrameRef]) -> str:
    """Key of a chunk's labels: what made them, and the content of the chunk's frames."""
    return _digest([labels_key, *_identities(frames)])


def chunks_of(
    frames: Iterable[FrameRef], labels_key: str, size: int = CHUNK_FRAMES, boxes: str = ""
) -> list[Chunk]:
    """Cut a sequence's frames into chunks of at most `size` frames, camera by camera."""
    cameras: dict[str, list[FrameRef]] = {}
    for frame in frames:
        cameras.setdefault(frame.camera, []).append(frame)
    return [
        Chunk(chunk_key(labels_key, part), part, boxes)
        for camera in cameras.values()
        for part in (tuple(camera[i : i + size]) for i in range(0, len(camera), size))
    ]


@dataclass(frozen=True, eq=False)
class StoredChunk:
    """A chunk as it lies in storage.

    Attributes:
        labels_key: of what made it, as its files say.
        labeled: its outcomes in frame order.
        frames_sha256, masks_sha256: of the two files.
        versions: `RunStamp.versions` where it was made; {} where they were not recorded.

    """

    labels_key: str
    labeled: list[LabeledFrame]
    frames_sha256: str
    masks_sha256: str
    versions: Mapping[str, str] = field(default_factory=dict)


def write_boxes(out_uri: str, chunk: Chunk, boxes: Mapping[int, Boxes], stamp: RunStamp) -> None:
    """Write the boxes of a chunk by frame index; a frame with none is remembered as looked at.

    Frames that could not be decoded are simply not in `boxes`.
    """
    frames = [frame for frame in chunk.frames if frame.index in boxes]
    parts = [tables.box_columns(frame, boxes[frame.index]) for frame in frames]
    sources = {str(frame.index): boxes[frame.index].source for frame in frames}
    metadata = _stamped(stamp, chunk) | {"sources": sources}
    _write(out_uri, chunk, "boxes", parts, metadata)


def find_boxes(
    out_uri: str, chunk: Chunk, versions: Mapping[str, str] | None = None
) -> dict[int, Boxes] | None:
    """Boxes of a chunk by frame index, frames without boxes included; None: detect (again).

    Args:
        out_uri: the run's storage.
        chunk: which.
        versions: `RunStamp.versions` that they must have been made with; None: any.

    Raises:
        StorageError: storage cannot be read; that is not the same as nothing being there.

    """
    with (
        contextlib.suppress(storage.NotFoundError, IncompleteArtifactError),
        as_written(chunk.stem),
    ):
        table, metadata, _ = _read(out_uri, chunk.stem, chunk.key, "boxes")
        sources = {int(index): str(source) for index, source in metadata["sources"].items()}
        frames = [frame for frame in chunk.frames if frame.index in sources]
        rows = _rows_of(frames, table)
        if versions is None or metadata.get("versions") == dict(versions):
            return {index: tables.to_boxes(rows[index], sources[index]) for index in sorted(rows)}
    return None


def write_labels(
    out_uri: str, chunk: Chunk, labeled: Sequence[LabeledFrame], stamp: RunStamp
) -> StoredChunk:
    """Write the masks and then the frames of a chunk: with the frames it is complete.

    Args:
        out_uri: the run's storage.
        chunk: every one of its frames must be in `labeled` exactly once.
        labeled: outcomes, failed frames too, in any order.
        stamp: what made them.

    Returns:
        The chunk as it lies in storage now.

    Raises:
        ValueError: a frame is missing, foreign or there twice.
        StorageError: a file cannot be written.

    """
    by_index = {frame.frame.index: frame for frame in labeled}
    indices = [frame.index for frame in chunk.frames]
    if len(labeled) != len(indices) or set(by_index) != set(indices):
        raise ValueError(f"{chunk.stem}: labeled frames {sorted(by_index)}, wanted {indices}")
    ordered = [by_index[index] for index in indices]
    sources = {str(frame.frame.index): frame.boxes.source for frame in ordered}
    parts = [
        tables.mask_columns(frame.frame, frame.boxes, frame.masks)
        for frame in ordered
        if frame.masks is not None
    ]
    followed = {str(frame.frame.index): frame.followed for frame in ordered if frame.followed}
    metadata = _stamped(stamp, chunk) | {"sources": sources}
    metadata |= {"followed": followed} if followed else {}
    masks_sha256 = _write(out_uri, chunk, "masks", parts, metadata)
    parts = [tables.frame_columns(frame) for frame in ordered]
    frames_sha256 = _write(out_uri, chunk, "frames", parts, metadata)
    labels_key = replace(stamp, boxes=chunk.boxes).labels_key
    return StoredChunk(labels_key, ordered, frames_sha256, masks_sha256, stamp.versions)


def _stamped(stamp: RunStamp, chunk: Chunk) -> dict[str, Any]:
    made_by = replace(stamp, boxes=chunk.boxes).as_json()
    return {"stamp": made_by, "versions": dict(stamp.versions)}


def read_chunk(out_uri: str, stem: str, key: str) -> StoredChunk:
    """Read a chunk, by any writer, and hold it against its name.

    Args:
        out_uri: the run's storage.
        stem: `Chunk.stem`, which manifests list as well.
        key: `Chunk.key`; what the files say of their frames must give it again.

    Raises:
        NotFoundError: they were never written.
        IncompleteArtifactError: a file is damaged, the two disagree, or they hold the labels of
            other frames than their name says.

    """
    table, metadata, frames_sha256 = _read(out_uri, stem, key, "frames")
    masks, _, masks_sha256 = _read(out_uri, stem, key, "masks")
    with as_written(stem):
        frames, labels_key = _frames_of(table, metadata, stem, key)
        rows = _rows_of(frames, masks)
        sources, followed = metadata["sources"], metadata.get("followed", {})
        labeled = [
            tables.to_labeled(
                frame, row, rows[frame.index], str(sources[str(frame.index)]),
                followed.get(str(frame.index), ()),
            )
            for frame, row in zip(frames, table.to_pylist(), strict=True)
        ]  # fmt: skip
        versions = {str(k): str(v) for k, v in metadata.get("versions", {}).items()}
    return StoredChunk(labels_key, labeled, frames_sha256, masks_sha256, versions)


def _rows_of(frames: Sequence[FrameRef], table: Any) -> dict[int, Any]:
    """Return the rows of each of these frames of one camera, by index.

    Raises:
        ValueError: there are rows of other frames.

    """
    found = tables.split_by_frame(table)
    own = {(frame.camera, frame.index) for frame in frames}
    sequences = {*table["sequence_id"].to_pylist()} - {frame.sequence_id for frame in frames}
    if sequences or not found.keys() <= own:
        raise ValueError("rows that belong to none of its frames")
    return {index: found.get((camera, index), table.slice(0, 0)) for camera, index in own}


@contextlib.contextmanager
def as_written(stem: str) -> Iterator[None]:
    """Turn what foreign values lead to into the one error for that."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError,
            RuntimeError) as error:  # fmt: skip
        raise IncompleteArtifactError(f"{stem} holds no labels of ours: {error!r}") from error


def read_frames(out_uri: str, stem: str, key: str) -> list[FrameRef]:
    """Read a chunk's frames in order, failed ones too, no labels; raises as `read_chunk`."""
    table, metadata, _ = _read(out_uri, stem, key, "frames")
    with as_written(stem):
        return _frames_of(table, metadata, stem, key)[0]


def _frames_of(
    table: Any, metadata: Mapping[str, Any], stem: str, key: str
) -> tuple[list[FrameRef], str]:
    """Return the frames of a chunk's name and key, and what made their labels."""
    frames = [tables.to_frame(row) for row in table.to_pylist()]
    labels_key = _STAMP.validate_python(metadata["stamp"]).labels_key
    places = {(frame.sequence_id, frame.camera) for frame in frames}
    numbers = [frame.index for frame in frames]
    named = Chunk(key, tuple(frames)).stem == stem and chunk_key(labels_key, frames) == key
    if not named or len(places) > 1 or any(b <= a for a, b in itertools.pairwise(numbers)):
        raise IncompleteArtifactError(f"{stem}: its frames are not those of its name and key")
    return frames, labels_key


def find_chunk(out_uri: str, chunk: Chunk) -> StoredChunk | None:
    """Return a chunk that is already there and whole, else None: label it (again).

    Raises:
        StorageError: storage cannot be read; that is not the same as nothing being there.

    """
    try:
        return read_chunk(out_uri, chunk.stem, chunk.key)
    except (storage.NotFoundError, IncompleteArtifactError):
        return None


def _write(
    out_uri: str, chunk: Chunk, kind: Kind, parts: list[tables.Columns], metadata: dict[str, Any]
) -> str:
    """Write a file; returns its sha256."""
    data = tables.encode_table(kind, parts, {"key": chunk.key} | metadata)
    storage.write_bytes(storage.join(out_uri, chunk.path(kind)), data)
    return sha256_of(data)


def _read(out_uri: str, stem: str, key: str, kind: Kind) -> tuple[Any, dict[str, Any], str]:
    """Return a file's rows, its metadata and its sha256."""
    uri = storage.join(out_uri, f"{stem}.{kind}.parquet")
    data = storage.read_bytes(uri)
    return *tables.decode_table(data, kind, key, storage.redact(uri)), sha256_of(data)
