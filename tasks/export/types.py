"""What every writer of a format gets and uses: frames with their labels, names, and the sink.

The sink is the folder or URL of an export, with the hash of every file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
import unicodedata
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from sam2_core.cache import cache_folder
from sam2_core.mask_geometry import Bitmap, mask_of
from sam2_core.types import AutolabelError
from tasks.frames.identity import part_of
from tasks.masks.crops import bounds_of, cut_out, masks_of
from tasks.store import storage
from tasks.types import FrameRef

INDEX, CLAIM = "export.json", "UNFINISHED"
ImageMode = Literal["copy", "link", "none"]
_CONNECTIONS = 8


class Lines:
    """Texts of any number: in a file of this machine until they are a part of another one."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(  # noqa: SIM115 - `copy_to` closes it
            "w+", dir=folder, newline=""
        )
        self.count = 0

    def write(self, text: str) -> None:
        """Add a text as it is."""
        self._file.write(text)

    def add(self, value: Any) -> None:
        """Add a JSON value to a list of them."""
        self.write((",\n" if self.count else "") + json.dumps(value))
        self.count += 1

    def copy_to(self, file: IO[str]) -> None:
        """Write the texts."""
        with self._file:
            self._file.seek(0)
            shutil.copyfileobj(self._file, file)

    def write_to(self, file: IO[str]) -> None:
        """Write the list, a value a line."""
        file.write("[\n")
        self.copy_to(file)
        file.write("\n]")


def _paths_below(uri: str, below: str = "") -> Iterator[str]:
    """Yield the files in a folder and in all folders below it, relative to it."""
    for name, is_folder, *_ in storage.entries(storage.join(uri, below) if below else uri):
        path = f"{below}/{name}" if below else name
        yield from _paths_below(uri, path) if is_folder else (path,)


def _what_is_there(names: Iterable[str]) -> str:
    if any(name.startswith(CLAIM) for name in names):
        return (
            "holds an export that is not finished: give its command again, or name another folder "
            "or remove what is there"
        )
    return "is not empty: name another folder, or remove what is there"


class Sink:
    """An export's folder. Files are under way a few at a time; a context manager waits for them.

    From the first file to the last a mark lies there, which names the command. An export that was
    ended leaves it, and the same command writes every file anew and removes what is left over.

    Args:
        uri: folder or URL; nothing may be there yet but what the same command has left unfinished.
        images: copy pictures, link to local ones, or leave them out.
        command: names source, format and options: equal commands write equal files.

    Raises:
        AutolabelError: something else is there, or is being written; or links are wanted elsewhere
            than here.

    """

    def __init__(self, uri: str, images: ImageMode = "copy", command: str = "") -> None:
        self.uri, self.images = uri, images
        if images == "link" and not storage.is_local(uri):
            raise AutolabelError(f"links to pictures need a folder of this machine, not {uri}")
        if storage.is_local(uri) and storage.local_path(uri).is_file():
            raise AutolabelError(f"{uri} is a file: name a folder that is empty or not there yet")
        mark = f"{CLAIM}-{hashlib.sha256(command.encode()).hexdigest()[:12]}"
        self._claim = storage.join(uri, mark)
        there = {*storage.list_names(uri), *storage.list_folders(uri)}
        self._left = {*_paths_below(uri)} - {mark} if mark in there else set()
        if there and mark not in there:
            raise AutolabelError(f"{uri} {_what_is_there(there)}")
        storage.write_bytes(self._claim, b"")
        # Not every store can refuse to replace a file: of several marks none is the first.
        if not there and any(name != mark for name in storage.list_names(uri)):
            storage.delete(self._claim)
            raise AutolabelError(f"another export is being written to {uri}: name another folder")
        self._pool = ThreadPoolExecutor(_CONNECTIONS, "export")
        self._pending: deque[Future[dict[str, Any]]] = deque()
        self._scratch = tempfile.TemporaryDirectory(prefix="autolabel-export-")
        self.folder = Path(self._scratch.name)
        self._files = self.lines()

    def write(self, path: str, data: bytes) -> None:
        """Write a file, soon."""
        self._submit(self._pool.submit(self._write, path, data))

    def image(self, path: str, source: Path | None) -> bool:
        """Bring a picture, soon; False where pictures are not wanted or this one is not here."""
        if self.images == "none" or source is None:
            return False
        self._submit(self._pool.submit(self._bring, path, source))
        return True

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[IO[str]]:
        """Write a text of any length: it lies on this machine until it is whole."""
        with tempfile.NamedTemporaryFile("w+", dir=self.folder, delete=False) as file:
            yield file
        self.upload(path, Path(file.name))

    def lines(self) -> Lines:
        """Return texts to be written later."""
        return Lines(self.folder)

    def upload(self, path: str, file: Path) -> None:
        """Move a finished file of this machine to its place."""
        self._submit(self._pool.submit(self._upload, path, file))

    def close(self, report: Mapping[str, Any]) -> None:
        """Wait for everything, then write the index with every file's hash: the export is whole."""
        self._wait(0)
        for path in self._left:
            storage.delete(storage.join(self.uri, path))
        index = self.folder / INDEX
        with index.open("w") as file:
            head = json.dumps(report, indent=1)
            file.write(f'{head.rstrip("}").rstrip()},\n "files": ')
            self._files.write_to(file)
            file.write("}\n")
        self._upload(INDEX, index)
        storage.delete(self._claim)

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_error: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._scratch.cleanup()
        if not (self._files.count or self._pending or self._left):  # nothing is there but the mark
            storage.delete(self._claim)

    def _submit(self, future: Future[dict[str, Any]]) -> None:
        self._pending.append(future)
        self._wait(4 * _CONNECTIONS)

    def _wait(self, most: int) -> None:
        """Wait until no more than so many files are under way."""
        while len(self._pending) > most:
            written = self._pending.popleft().result()
            self._left.discard(written["path"])
            self._files.add(written)

    def _write(self, path: str, data: bytes) -> dict[str, Any]:
        storage.write_bytes(storage.join(self.uri, path), data)
        return {"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def _bring(self, path: str, source: Path) -> dict[str, Any]:
        # What lies in our cache may go at any time: frames of videos and of containers, downloads.
        if self.images != "link" or source.is_relative_to(cache_folder()):
            return self._write(path, source.read_bytes())
        target = storage.local_path(storage.join(self.uri, path))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(source.resolve())
        return {"path": path, "is_link": True}

    def _upload(self, path: str, file: Path) -> dict[str, Any]:
        uri, size = storage.join(self.uri, path), file.stat().st_size
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        storage.ask("write", uri, lambda fs, target: fs.put_file(str(file), target))
        file.unlink()
        return {"path": path, "bytes": size, "sha256": digest}


XyxyPx = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Instance:
    """One label of one frame, with a mask that is not empty.

    Attributes:
        label: class, after the class map.
        score: of the box, in [0, 1].
        box_xyxy_px: the box that prompted the mask; the mask may leave it.
        rle: COCO compressed counts of the whole image.
        area_px: pixels of the mask.
        track_id: the same for one object in all frames of a camera, or None.
        risk: how likely the label is wrong, in [0, 1].
        predicted_iou: what the model expects of its mask.
        decision: what people decided, "" without a decision.
        source: of an instance that no detector has found, `LabeledFrame.source_of`.
        review: who decided, when, and what was changed.

    """

    label: str
    score: float
    box_xyxy_px: XyxyPx
    rle: bytes
    area_px: int
    track_id: int | None = None
    risk: float = 0.0
    predicted_iou: float = 0.0
    decision: str = ""
    source: Mapping[str, Any] = field(default_factory=dict)
    review: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExportFrame:
    """A frame and the labels of it that were chosen.

    Attributes:
        sequence_id, camera, index: which frame.
        timestamp_ns: or None.
        uri: address of its picture where it was labeled, which stands in no file that is handed on;
            see `tasks.frames.identity` for those inside of files.
        size_hw: (height, width).
        split: train, val, ...; "" where there are none.
        model: what made the masks, for people.
        file_stem: name of its picture without the ending, unlike others of its camera.
        instances: labels, in the order of their boxes.
        key: what it is on every machine, as `tasks.frames.identity.frame_key`.
        folders: names of its sequence and of its camera, which no others have on any file system.
        moment: the frame that stands for those of all cameras at its moment.
        image: the picture on this machine, or None.
        confirmed_empty: whether a person has confirmed that it shows nothing.

    """

    sequence_id: str
    camera: str
    index: int
    timestamp_ns: int | None
    uri: str
    size_hw: tuple[int, int]
    split: str
    model: str
    file_stem: str
    instances: tuple[Instance, ...]
    key: str
    folders: tuple[str, ...]
    moment: FrameRef
    image: Path | None = None
    confirmed_empty: bool = False

    @property
    def series(self) -> str:
        """Folder of its camera: sequence and camera."""
        return "/".join(self.folders)

    @property
    def name(self) -> str:
        """Path of its files below a format's folders, without an ending."""
        stem = f"{self.series}/{self.file_stem}"
        return f"{self.split}/{stem}" if self.split else stem

    @property
    def file_name(self) -> str:
        """`name` with the ending of its picture."""
        return f"{self.name}{self.suffix}"

    @property
    def suffix(self) -> str:
        """Ending of its picture, with the dot."""
        part = part_of(self.uri)
        if part is None or part.is_member:
            return Path(part.stream if part else self.uri).suffix
        return self.image.suffix if self.image else ".jpg"

    @property
    def usual_suffix(self) -> str:
        """`suffix` as readers of formats that prescribe names look for it."""
        return self.suffix.lower()


def rle_dict(instance: Instance, size_hw: tuple[int, int]) -> dict[str, Any]:
    """Return a mask as pycocotools takes it."""
    return {"size": list(size_hw), "counts": instance.rle}


def bitmap(instance: Instance, size_hw: tuple[int, int]) -> Bitmap:
    """Pixels of a mask: uint8 (H, W) of 0 and 1."""
    return np.asarray(mask_of(instance.rle, size_hw).to_array())


def tight_box(instance: Instance, size_hw: tuple[int, int]) -> tuple[float, float, float, float]:
    """Smallest box around a mask: x, y, width, height in pixels."""
    x, y, width, height = mask_of(instance.rle, size_hw).bbox().tolist()
    return x, y, width, height


def tight_crops(
    frame: ExportFrame,
) -> Iterator[tuple[Instance, tuple[int, int, int, int], npt.NDArray[np.bool_]]]:
    """Yield each label with the smallest box around its mask, xyxy in pixels, and what is in it.

    The masks are bool (height, width) of their boxes; no picture of the whole image is made.
    """
    masks = masks_of([instance.rle for instance in frame.instances], frame.size_hw)
    for instance, mask, box in zip(frame.instances, masks, bounds_of(masks).tolist(), strict=True):
        left, top, right, bottom = box
        yield instance, (left, top, right, bottom), cut_out(mask, box)


class DistinctNames:
    """Names of files or folders that differ on every file system.

    macOS and Windows take names for one that differ by case or by how accents are written.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def new(self, wanted: str, more: str = "2") -> str:
        """Return a name that no other has: as wanted, or longer."""
        name = wanted
        while (folded := unicodedata.normalize("NFC", name).casefold()) in self._taken:
            name += f"-{more}"
        self._taken.add(folded)
        return name


def stem_of(uri: str, index: int) -> str:
    """Return the name of a picture without its ending; frames of videos have their number."""
    part = part_of(uri)
    if part and not part.is_member:
        return f"{index:06d}"
    return Path(part.stream if part else uri).stem


class Classes:
    """Numbers of classes: those that were asked for in their order, others as they come."""

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self._numbers = {name: number for number, name in enumerate(names)}

    def number(self, name: str) -> int:
        """Return a class's number, from 0."""
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def names(self) -> list[str]:
        """All classes in the order of their numbers."""
        return list(self._numbers)


@dataclass
class ExportNotes:
    """What a writer has to say at the end, for the report.

    Attributes:
        left_out: labels that were not chosen or that the format has no place for, by reason.
        unreadable: why a sequence's labels cannot be read, or its pictures not be, by its name.
        unwritten: how many of them were chosen.
        classes: that labels have, before they are renamed.
        named_as_track: labels that were detected as another class than their track.

    """

    left_out: dict[str, int] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    unwritten: int = 0
    classes: set[str] = field(default_factory=set)
    named_as_track: int = 0

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Count labels that are not written."""
        if count:
            self.left_out[reason] = self.left_out.get(reason, 0) + count

    def no_place(self, reason: str, count: int = 1) -> None:
        """Count chosen labels that the format has no place for."""
        self.leave_out(reason, count)
        self.unwritten += count


@dataclass
class Writer:
    """Writes one format, frame by frame; keeps nothing that grows with the labels.

    Attributes:
        sink: where to.
        classes: numbers of classes.
        notes: counts labels that the format has no place for.
        splits: what is written of each split so far, where that is put together at the end.

    """

    sink: Sink
    classes: Classes
    notes: ExportNotes
    splits: dict[str, Lines] = field(init=False)

    def __post_init__(self) -> None:
        self.splits = defaultdict(self.sink.lines)

    def add(self, frame: ExportFrame) -> None:
        """Write a frame. The frames of a camera come in one run and in order."""
        raise NotImplementedError

    def close(self) -> Mapping[str, Any]:
        """Write what belongs at the end; returns facts for the report."""
        return {}


class ObjectNumbers:
    """Numbers from 1 for the objects of one camera's frames: a track keeps its number.

    Labels without a track get numbers that nothing else of their frame has, and that mean
    nothing in the next frame.
    """

    def __init__(self) -> None:
        self._series, self._of_track = "", dict[int, int]()
        self.untracked = 0

    def of(self, frame: ExportFrame, instances: Sequence[Instance]) -> list[int]:
        """Return a number for each of some labels of a frame."""
        if frame.series != self._series:
            self._series, self._of_track = frame.series, {}
        for instance in instances:
            if instance.track_id is not None:
                self._of_track.setdefault(instance.track_id, len(self._of_track) + 1)
        free = len(self._of_track)
        numbers: list[int] = []
        for instance in instances:
            number = 0 if instance.track_id is None else self._of_track[instance.track_id]
            if not number or number in numbers:  # a track that is there twice in one frame
                free += 1
                number = free
                self.untracked += 1
            numbers.append(number)
        return numbers

    def facts(self) -> dict[str, int]:
        """Say how many labels had no track."""
        return {"labels_without_track": self.untracked}


class FlatNames:
    """Names without folders for the cameras of sequences, each unlike all others.

    Args:
        plain: gives the name of a series; by default `SEQUENCE__CAMERA`.

    """

    def __init__(self, plain: Callable[[str], str] = lambda series: series.replace("/", "__")):
        self._plain, self._distinct = plain, DistinctNames()
        self._names: dict[str, str] = {}

    def of(self, series: str) -> str:
        """Return the name of a sequence's camera, with a number if need be."""
        if series not in self._names:
            self._names[series] = self._distinct.new(self._plain(series))
        return self._names[series]

    def facts(self) -> dict[str, dict[str, str]]:
        """Say which sequence and camera each name is."""
        return {"sequence_names": {name: series for series, name in self._names.items()}}
