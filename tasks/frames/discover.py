"""What there is to label: sequences and their frames below one or more sources.

A source is a folder of images, a video file, a folder of camera folders (or of one video a
camera), or a folder of any of these, at any depth, under any fsspec URL. A folder holds cameras
when its subfolders are named like cameras (CAM_FRONT, camera_05, ring_side_left, image_02); other
subfolders are sequences of their own. Other formats have readers of their own
(`tasks.frames.readers`). Patterns (`drives/2026-*/CAM_FRONT`) are sources, too: a
sequence in what fits is named by all names from the first wildcard on. So are pictures named one by
one: those of a folder are a sequence with the folder's name.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from sam2_core.types import AutolabelError
from tasks.frames.identity import (
    CAMERA_BYTES,
    CONTAINER_SUFFIXES,
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    safe_name,
    shared_beginning,
    split_address,
    suffix_of,
)
from tasks.frames.listing import File, ListedSequence, Reader, by_camera, natural_key, stat_file
from tasks.frames.naming import Names, folder_of
from tasks.frames.readers.choice import FOLDERS, reader_of
from tasks.frames.readers.folders import groups
from tasks.frames.unread import is_read
from tasks.passed_over import PassedOver, passed_over_in
from tasks.store import storage
from tasks.store.artifacts import Chunk, content_key
from tasks.store.manifests import Manifest
from tasks.types import (
    ALL_FRAMES,
    Footage,
    FrameFailure,
    FrameRef,
    FrameSelection,
    NothingFoundError,
    StreamRef,
    VideoRef,
)


@dataclass(frozen=True)
class FoundSequence:
    """One drive (or one video), or the part of it that a run is to label.

    A video is one VideoRef until `tasks.frames.video.expand_videos` has opened it.

    Attributes:
        sequence_id: stable across runs and machines: path of the sequence below the root of names,
            "/" replaced where needed; safe as a file name.
        frames_uri: fsspec URL of the folder of images, folder of camera folders, or video file; of
            other formats `FOLDER#READER=PART` (`tasks.frames.identity`).
        planned_key: `content_key` as it was planned, for as long as `frames` are not listed here.
        planned: frames that it is to have.
        is_estimated: that is a guess from the sizes of videos.
        chunks: (first, stop) of the sequence's chunks; None for all of them.
        frames: those that are selected, camera by camera, in order; () until they are listed.
        picked: they were named one by one, so that listing the sequence anew may find others.
        boxes: digest of the imported boxes that belong to them, "" where a detector finds boxes.
        other_names: of sequences that have some of the frames, or more, if they are labeled.
        manifest: what an earlier run left, when nothing needs to be labeled.
        tracks_made: what was measured on the tracks of that run's labels; None where they have
            none yet.
        failures: frames that the earlier run could not label, or videos that did not open.
        work: the chunks to label, once the sequence is open.
        rest: its other chunks then, which other shards do.
        attempt_uri: for `quarantine.end`; "" where attempts are not counted.

    """

    sequence_id: str
    frames_uri: str
    planned_key: str = ""
    planned: int = 0
    is_estimated: bool = False
    chunks: tuple[int, int] | None = None
    frames: tuple[Footage, ...] = ()
    picked: bool = False
    boxes: str = ""
    other_names: tuple[str, ...] = ()
    manifest: Manifest | None = None
    tracks_made: Mapping[str, Any] | None = None
    failures: tuple[FrameFailure, ...] = ()
    work: tuple[Chunk, ...] = ()
    rest: tuple[Chunk, ...] = ()
    attempt_uri: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from other sequences, and from itself with other frames."""
        return self.sequence_id, self.content_key

    @cached_property
    def content_key(self) -> str:
        """Key of the content, from addresses and etags alone: a digest of every frame.

        With imported boxes, a digest of those as well.
        """
        return content_key(self.frames, self.boxes) if self.frames else self.planned_key


def discover(
    sources: Sequence[str],
    selection: FrameSelection = ALL_FRAMES,
    name: str = "",
    format_: str = "auto",
    names: Names | None = None,
    *,
    passed_over: list[PassedOver] | None = None,
) -> Iterator[FoundSequence]:
    """Every sequence of the sources with its frames, one listing per source, as a stream.

    Args:
        sources: fsspec URLs, or patterns of them; one that is named twice counts once.
        selection: which frames of each camera; indices keep counting over all frames.
        name: of the only sequence in the sources; by default its folder's.
        format_: that of every source; "auto" looks at each.
        names: those of what was labeled before; without a root yet, they have one afterwards.
        passed_over: what is not read is added, an entry for each source or pattern.

    Raises:
        NamedOtherwiseError: a source is not below the root of the names.
        AutolabelError: a source is missing, has no images or videos, or is inside another one, or
            a link joins two; a folder can be read in two ways; two sequences or cameras would have
            the same name, or several the one that was given.
        NothingFoundError: there are frames, and the selection takes none of them.

    """
    if not sources:
        raise AutolabelError("no source: name a folder, a video file or a bucket to label")
    if safe_name(name or "_") != (name or "_"):
        raise AutolabelError(f"--sequence {name!r}: call it {safe_name(name)!r}, say")
    seen: dict[str, tuple[str, str]] = {}
    owners: dict[str, str] = {}
    selected = False
    passed_over = [] if passed_over is None else passed_over
    pattern_of = distinct(expanded(sources, passed_over))
    for source, sequence in _found(
        pattern_of, selection, format_, names or Names(), name, passed_over=passed_over
    ):
        if len(pattern_of) > 1 and storage.is_local(source):
            _refuse_same_places(sequence, source, owners)
        _refuse_same_id(sequence, source, seen, name)
        if sequence.frames:
            selected = True
            yield sequence
    if not selected:
        raise NothingFoundError(
            f"--frames {selection} takes no frame: none is number {selection.start}, from 0"
        )


_WITHOUT_MEDIA = "folder without pictures or videos", "folders without pictures or videos"


def _found(
    pattern_of: Mapping[str, str],
    selection: FrameSelection,
    format_: str,
    names: Names,
    name: str,
    *,
    passed_over: list[PassedOver],
) -> Iterator[tuple[str, FoundSequence]]:
    """Sequences with their names, each with its source."""
    picked = pictures_among(list(pattern_of))
    folders = [beginning_of(pattern) or folder_of(source) for source, pattern in pattern_of.items()]
    fitting: dict[str, int] = {}
    for source, pattern in pattern_of.items():
        if source in picked:
            continue
        found, of_source = 0, passed_over_in(storage.redact(pattern or source), passed_over)
        reader = reader_of(_plain(source), format_)
        plain = _plain(source)
        names.check_source(plain, reader.name, folders, name)
        for listed in reader.sequences(plain, of_source):
            found += 1
            yield source, _found_sequence(names.name_of(plain, listed, name), listed, selection)
        if not found and not pattern:
            raise _no_media(source, reader, of_source)
        if not found:
            of_source.add(*_WITHOUT_MEDIA, example=source.rstrip("/").rpartition("/")[2])
        fitting[pattern] = fitting.get(pattern, 0) + found
    root, of_folder = by_sequence(picked.values()) if picked else ("", {})
    for way, cameras in sorted(of_folder.items()):
        folder = storage.join(root, *way)
        names.check_source(folder, FOLDERS.name, folders, name, is_walked=False)
        listed = ListedSequence((), folder, by_camera(cameras))
        sequence = _found_sequence(names.name_of(folder, listed, name), listed, selection)
        yield folder, replace(sequence, picked=True)
    for pattern in (unmet for unmet, found in fitting.items() if not found and not picked):
        raise _no_media(pattern)


def _no_media(
    source: str, reader: Reader = FOLDERS, passed_over: PassedOver | None = None
) -> AutolabelError:
    where = storage.redact(source)
    if reader.layout:
        return AutolabelError(f"{where} is not of --layout {reader.name}: no {reader.layout}")
    return AutolabelError(
        f"{where} holds no images or videos "
        f"({', '.join(sorted(IMAGE_SUFFIXES | VIDEO_SUFFIXES))}), no plain .tar and no .mcap; "
        "lists of frames (.json, .parquet) are sources themselves: name the file"
        + (f"; {passed_over.text}" if passed_over and passed_over.text else "")
    )


def _refuse_same_places(sequence: FoundSequence, source: str, owners: dict[str, str]) -> None:
    """Refuse a folder or video to which links lead from two sources: each walks by itself."""
    uri = sequence.frames_uri
    whole = {
        frame.uri for frame in sequence.frames if isinstance(frame, VideoRef) or frame.uri == uri
    }
    folders = {frame.uri.rpartition("/")[0] for frame in sequence.frames if frame.uri not in whole}
    for real_path in map(os.path.realpath, sorted(whole | folders)):
        other = owners.setdefault(real_path, source)
        if other != source:
            raise AutolabelError(
                f"{real_path} is part of source {other} and of source {source}, by a link: its "
                "frames would be labeled twice; name one"
            )


def _refuse_same_id(
    sequence: FoundSequence, source: str, seen: dict[str, tuple[str, str]], name: str
) -> None:
    """Remember where each sequence comes from, and refuse a second one of the same name."""
    known = seen.setdefault(sequence.sequence_id, (sequence.frames_uri, source))
    if known == (sequence.frames_uri, source):
        return
    if name:
        raise AutolabelError(
            f"--sequence {name} names one sequence, and there are more: "
            f"{storage.redact(known[0])} and {storage.redact(sequence.frames_uri)}"
        )
    raise AutolabelError(
        storage.redact(
            f"two sequences are both called {sequence.sequence_id}: {known[0]} and "
            f"{sequence.frames_uri}; rename one of them, or choose another --out"
        )
    )


def list_frames(
    sequence: FoundSequence, selection: FrameSelection = ALL_FRAMES
) -> tuple[Footage, ...]:
    """Frames of one sequence, listed anew; equal to those that `discover` found.

    Raises:
        AutolabelError: it is gone.

    """
    folder, name, part = split_address(sequence.frames_uri)
    reader = reader_of(folder, name or FOLDERS.name)
    for listed in reader.sequences(_plain(reader.source_of(folder, part)), PassedOver(), part):
        if listed.address.rstrip("/") == sequence.frames_uri.rstrip("/"):
            return _found_sequence((sequence.sequence_id, ()), listed, selection).frames
    raise AutolabelError(
        f"sequence {sequence.sequence_id}: no frames below {storage.redact(sequence.frames_uri)}"
    )


def _plain(source: str) -> str:
    return str(storage.local_path(source)) if storage.is_local(source) else source.rstrip("/")


def _found_sequence(
    names: tuple[str, tuple[str, ...]], listed: ListedSequence, selection: FrameSelection
) -> FoundSequence:
    """Name a sequence that a reader has listed, as `Names.name_of` says, and select its frames."""
    sequence_id, other_names = names
    frames: list[Footage] = []
    named: dict[str, str] = {}
    for camera, pictures in listed.cameras.items():
        name = camera and safe_name(camera, CAMERA_BYTES)
        if named.setdefault(name, camera) != camera:
            where = storage.redact(listed.address)
            raise AutolabelError(
                f"{where}: cameras {named[name]} and {camera} are both called {name}"
            )
        frames += _frames_of(sequence_id, name, pictures, selection)
    known = sum(isinstance(frame, FrameRef) for frame in frames)
    return FoundSequence(
        sequence_id, listed.address, planned=known, frames=tuple(frames), other_names=other_names
    )


def _frames_of(
    sequence_id: str, camera: str, files: Sequence[File], selection: FrameSelection
) -> Iterable[Footage]:
    where = (sequence_id, camera)
    for index, file in enumerate(files):
        version = (file.etag, file.size_bytes)
        if file.stream:
            time_ns, uri = file.timestamp_ns, file.uri
            yield StreamRef(*where, time_ns, uri, selection, *version, stream=file.stream)
        elif suffix_of(file.name) in VIDEO_SUFFIXES:
            yield VideoRef(*where, file.timestamp_ns, file.uri, selection, *version)
        elif index in selection:
            yield FrameRef(
                *where, index, file.timestamp_ns, file.uri, (0, 0), *version, problem=file.problem
            )


_MAGIC = re.compile(r"[*?\[]")


def is_pattern(source: str) -> bool:
    """Whether a source is a pattern, and not a file with such a name."""
    scheme, mark, rest = source.partition("://")
    path = rest.partition("/")[2] if mark and scheme.startswith("http") else source
    if not _MAGIC.search(path):
        return False
    return not storage.ask("open", source, lambda fs, path: fs.exists(path))


def expanded(sources: Iterable[str], passed_over: list[PassedOver] | None = None) -> dict[str, str]:
    """Replace each pattern by what fits it: folders, pictures and videos, in order.

    Args:
        sources: addresses and patterns.
        passed_over: what fits a pattern and is not read is added.

    Returns:
        Addresses, each with the pattern that it comes from, or "".

    Raises:
        AutolabelError: a pattern fits nothing of these.

    """
    found: dict[str, str] = {}
    for source in sources:
        if not is_pattern(source):
            found[source] = ""
            continue
        of_source = passed_over_in(
            storage.redact(source), [] if passed_over is None else passed_over
        )
        fitting = sorted(_fitting(source, of_source), key=natural_key)
        if not fitting:
            raise AutolabelError(
                f"{storage.redact(source)} fits no folder, picture or video; quote a pattern, so "
                "that it arrives here as it is"
            )
        for pattern in fitting:
            found.setdefault(pattern, source)
    return found


def beginning_of(pattern: str) -> str:
    """Return the folder before the first wildcard; "" for none below a machine or server."""
    parts = pattern.rstrip("/").split("/")
    wild = [position for position, part in enumerate(parts) if _MAGIC.search(part)]
    least = 2 if storage.is_local(pattern) else 3
    if not wild or wild[0] < least or "**" in parts:
        return ""
    return "/".join(parts[: wild[0]])


def _fitting(pattern: str, passed_over: PassedOver) -> Iterator[str]:
    fs, _ = storage.filesystem(pattern)
    entries = storage.ask("list", pattern, lambda fs, path: fs.glob(path, detail=True))
    for name, info in entries.items():
        last = name.rstrip("/").rpartition("/")[2]
        media = suffix_of(last) in IMAGE_SUFFIXES | VIDEO_SUFFIXES | CONTAINER_SUFFIXES
        is_folder = info["type"] == "directory"
        if is_read(last, passed_over, is_folder=is_folder) and (media or is_folder):
            yield name if storage.is_local(pattern) else str(fs.unstrip_protocol(name))


def distinct(sources: Mapping[str, str]) -> dict[str, str]:
    """Return the sources with their patterns, each folder or file once.

    Raises:
        AutolabelError: one is inside another one.

    """
    addresses: dict[str, str] = {}
    for source in sources:
        addresses.setdefault(f"{plain_address(source)}/", source)
    around = ""
    for address in sorted(addresses):
        if around and address.startswith(around):
            raise AutolabelError(
                f"source {storage.redact(addresses[address])} is inside source "
                f"{storage.redact(addresses[around])}: its frames would be labeled twice; name one"
            )
        around = address
    return {source: sources[source] for source in addresses.values()}


def pictures_among(sources: Sequence[str]) -> dict[str, File]:
    """Return those sources that are pictures, looked at several at a time.

    Raises:
        NotFoundError: one of them is not there.

    """
    named = [source for source in sources if suffix_of(source) in IMAGE_SUFFIXES]
    files = storage.at_once(stat_file, named)
    return {name: file for name, file in zip(named, files, strict=True) if file is not None}


def by_sequence(
    pictures: Iterable[File],
) -> tuple[str, dict[tuple[str, ...], dict[str, list[File]]]]:
    """Sort pictures into sequences as if the folders that they lie in had been listed.

    Returns:
        The folder around all of them, and by the names that lead from there to a sequence its
        pictures by camera.

    Raises:
        AutolabelError: pictures lie beside folders of cameras.

    """
    of_folder: dict[str, list[File]] = {}
    for file in pictures:
        of_folder.setdefault(file.uri.rpartition("/")[0], []).append(file)
    around = shared_beginning([folder.split("/") for folder in of_folder])
    root = "/".join(around) or "/"
    below = {tuple(folder.split("/")[len(around) :]): files for folder, files in of_folder.items()}
    inner_first = sorted(below.items(), reverse=True)
    return root, {group.names: group.cameras for group in groups(root, inner_first, [])}


def refuse_output_inside(out_uri: str, sources: Iterable[str], option: str = "--out") -> None:
    """Refuse an output that would lie where frames, or labels, are looked for.

    Raises:
        AutolabelError: the output is a source or in one.

    """
    out = PurePosixPath(plain_address(out_uri) or "/")
    for source in sources:
        address = plain_address(source) or "/"
        fits = [
            folder
            for folder in (out, *out.parents)
            if str(folder) == address or folder.match(address)
        ]
        if fits:
            where = "is" if fits[0] == out else "is inside"
            raise AutolabelError(
                f"{option} {storage.redact(out_uri)} {where} the source {storage.redact(source)}, "
                "which later runs and exports read; choose a folder beside it"
            )


def plain_address(source: str) -> str:
    """Return the one spelling of all addresses of a folder or file, without a "/" at its end."""
    if storage.is_local(source):
        return str(storage.local_path(source).resolve()).rstrip("/")
    fs, path = storage.filesystem(source)
    return f"{type(fs).__name__}://{path.rstrip('/')}"
