"""What there is to label: sequences and their frames below one or more sources.

A source is a folder of images, a video file, a folder of camera folders (or of one video a
camera), or a folder of any of these, at any depth, under any fsspec URL. A folder holds cameras
when its subfolders are named like cameras (CAM_FRONT, camera_05, ring_side_left, image_02); other
subfolders are sequences of their own. Patterns (`drives/2026-*`) are sources, too, and so are
pictures named one by one: those of a folder are a sequence, called after it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sam2_core.types import AutolabelError
from tasks.frames.listing import File, natural_key, stat_file, walk
from tasks.frames.patterns import (
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    by_sequence,
    distinct,
    expanded,
    pictures_among,
    suffix_of,
)
from tasks.frames.source_names import CAMERA_BYTES, is_camera_name, safe_name, sequence_id_of
from tasks.frames.timestamps import timestamps_ns
from tasks.store import storage
from tasks.store.artifacts import content_key
from tasks.types import (
    ALL_FRAMES,
    Footage,
    FrameRef,
    FrameSelection,
    NothingToLabelError,
    SequenceRef,
    VideoRef,
)


@dataclass(frozen=True)
class Discovered:
    """A sequence with its selected frames, camera by camera, in order.

    A video is one VideoRef until `tasks.frames.video.expand_videos` has opened it.

    Attributes:
        sequence: which.
        frames: its frames.
        picked: they were named one by one, so that listing the sequence anew may find others.

    """

    sequence: SequenceRef
    frames: tuple[Footage, ...]
    picked: bool = False

    @property
    def content_key(self) -> str:
        """Key of the content, from addresses and etags alone."""
        return content_key(self.frames)


@dataclass
class _Group:
    """A sequence while the files below its folder are read; cameras by their safe names."""

    names: tuple[str, ...]
    cameras: dict[str, list[File]] = field(default_factory=dict)

    def add(self, camera: str, files: list[File]) -> None:
        """Add a camera.

        Raises:
            AutolabelError: there is one of this name.

        """
        name = safe_name(camera, CAMERA_BYTES)
        if name in self.cameras:
            raise AutolabelError(
                f"two cameras are both called {name}: that of "
                f"{storage.redact(self.cameras[name][0].uri)} and that of "
                f"{storage.redact(files[0].uri)}; rename one of them"
            )
        self.cameras[name] = files


def discover(
    sources: Sequence[str], selection: FrameSelection = ALL_FRAMES, name: str = ""
) -> Iterator[Discovered]:
    """Every sequence of the sources with its frames, one listing per source, as a stream.

    Args:
        sources: fsspec URLs, or patterns of them; one that is named twice counts once.
        selection: which frames of each camera; indices keep counting over all frames.
        name: what the one sequence of the sources is to be called; by default after its folder.

    Raises:
        AutolabelError: a source is missing, has no images or videos, or is inside another one, or
            a link joins two; a folder can be read in two ways; two sequences or cameras would have
            the same name, or several the one that was given.
        NothingToLabelError: there are frames, and the selection takes none of them.

    """
    if not sources:
        raise AutolabelError("no source: name a folder, a video file or a bucket to label")
    seen: dict[str, tuple[str, str]] = {}
    owners: dict[str, str] = {}
    selected = False
    pattern_of = distinct(expanded(sources))
    for source, one in _found(pattern_of, selection):
        if len(pattern_of) > 1 and storage.is_local(source):
            _refuse_same_places(one, source, owners)
        named = _named(one, name) if name else one
        _refuse_same_id(named.sequence, source, seen, name)
        if one.frames:
            selected = True
            yield named
    if not selected:
        raise NothingToLabelError(
            f"--frames {selection} takes no frame: no camera has more than {selection.start}"
        )


def _found(
    pattern_of: Mapping[str, str], selection: FrameSelection
) -> Iterator[tuple[str, Discovered]]:
    """Sequences as they are called by themselves, each with its source."""
    pictures = pictures_among(list(pattern_of))
    if len(pictures) == 1 and not any(pattern_of[one] for one in pictures):
        pictures = {}  # a sequence of one frame, called after it
    fitting: dict[str, int] = {}
    for source, pattern in pattern_of.items():
        if source in pictures:
            continue
        found = 0
        for one in _discover_source(source, selection):
            found += 1
            yield source, one
        if not found and not pattern:
            raise _no_media(source)
        fitting[pattern] = fitting.get(pattern, 0) + found
    if pictures:
        root, sequences = by_sequence(pictures.values())
        for names, cameras in sequences.items():
            sequence = SequenceRef(sequence_id_of(root, names), storage.join(root, *names))
            yield (
                sequence.frames_uri,
                replace(_discovered(sequence, cameras, selection), picked=True),
            )
    for pattern in (one for one, found in fitting.items() if not found and not pictures):
        raise _no_media(pattern)


def _no_media(source: str) -> AutolabelError:
    return AutolabelError(
        f"{storage.redact(source)} holds no images or videos "
        f"({', '.join(sorted(IMAGE_SUFFIXES | VIDEO_SUFFIXES))})"
    )


def _named(one: Discovered, name: str) -> Discovered:
    """Call a sequence otherwise.

    Raises:
        AutolabelError: that cannot be a name.

    """
    if safe_name(name) != name:
        raise AutolabelError(f"--sequence {name!r}: call it {safe_name(name)!r}, say")
    frames = tuple(replace(frame, sequence_id=name) for frame in one.frames)
    return replace(one, sequence=replace(one.sequence, sequence_id=name), frames=frames)


def _refuse_same_places(one: Discovered, source: str, owners: dict[str, str]) -> None:
    """Refuse a folder or video to which links lead from two sources: each walks by itself."""
    uri = one.sequence.frames_uri
    whole = {frame.uri for frame in one.frames if isinstance(frame, VideoRef) or frame.uri == uri}
    folders = {frame.uri.rpartition("/")[0] for frame in one.frames if frame.uri not in whole}
    for place in map(os.path.realpath, sorted(whole | folders)):
        other = owners.setdefault(place, source)
        if other != source:
            raise AutolabelError(
                f"{place} is part of source {other} and of source {source}, by a link: its frames "
                "would be labeled twice; name one"
            )


def _refuse_same_id(
    sequence: SequenceRef, source: str, seen: dict[str, tuple[str, str]], name: str
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
    advice = "rename one of them"
    if known[1] != source:
        advice = "give the folder that holds both as the source"
    raise AutolabelError(
        f"two sequences are both called {sequence.sequence_id}: {storage.redact(known[0])} and "
        f"{storage.redact(sequence.frames_uri)}; {advice}"
    )


def list_frames(sequence: SequenceRef, selection: FrameSelection = ALL_FRAMES) -> list[Footage]:
    """Frames of one sequence, listed anew; equal to `Discovered.frames`.

    Raises:
        AutolabelError: it is gone.

    """
    for one in _discover_source(sequence.frames_uri, selection):
        if one.sequence.frames_uri.rstrip("/") == sequence.frames_uri.rstrip("/"):
            return [replace(frame, sequence_id=sequence.sequence_id) for frame in one.frames]
    raise AutolabelError(
        f"sequence {sequence.sequence_id}: no frames below {storage.redact(sequence.frames_uri)}"
    )


def _discover_source(source: str, selection: FrameSelection) -> Iterator[Discovered]:
    root = str(storage.local_path(source)) if storage.is_local(source) else source.rstrip("/")
    if suffix_of(root) in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
        file = stat_file(root)
        if file is not None:
            yield _discovered(SequenceRef(safe_name(_stem(file)), root), {"": [file]}, selection)
            return
    for group in _groups(root):
        uri = storage.join(root, *group.names) if group.names else root
        if set(group.cameras) == {""} and suffix_of(group.cameras[""][0].name) in VIDEO_SUFFIXES:
            uri = group.cameras[""][0].uri
        yield _discovered(
            SequenceRef(sequence_id_of(root, group.names), uri), group.cameras, selection
        )


def _groups(root: str) -> Iterator[_Group]:
    """Sort folders into sequences: cameras wait until their parent folder has been read."""
    waiting: dict[tuple[str, ...], _Group] = {}
    for names, files in walk(root, _refuse_camera_link):
        for parent in [p for p in waiting if p != names[: len(p)]]:
            yield waiting.pop(parent)
        images = [file for file in files if suffix_of(file.name) in IMAGE_SUFFIXES]
        videos = [file for file in files if suffix_of(file.name) in VIDEO_SUFFIXES]
        if images and names in waiting:
            cameras = ", ".join(sorted(waiting[names].cameras))
            raise AutolabelError(
                f"{storage.redact(storage.join(root, *names))} holds images ({images[0].name}) and "
                f"camera folders ({cameras}): move the images into a folder of their own"
            )
        if images and names and is_camera_name(names[-1]):
            waiting.setdefault(names[:-1], _Group(names[:-1])).add(names[-1], images)
        elif images:
            yield _Group(names, {"": images})
        if videos and all(is_camera_name(_stem(file)) for file in videos) and not images:
            group = waiting.setdefault(names, _Group(names))
            for file in videos:
                group.add(_stem(file), [file])
        else:
            for file in sorted(videos, key=lambda one: natural_key(one.name)):
                yield _Group((*names, _stem(file)), {"": [file]})
    yield from waiting.values()


def _refuse_camera_link(folder: Path, target: Path) -> None:
    """Refuse a camera whose folder is below the source under another name, too.

    Listing its sequence alone would find the camera, and listing the source would not.
    """
    elsewhere = not target.is_relative_to(folder.parent.resolve())
    if is_camera_name(folder.name) and elsewhere and _holds_images(target):
        raise AutolabelError(
            f"{folder} and {target} are one folder, and both are below the source: give as the "
            "source what holds one of them"
        )


def _holds_images(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(suffix_of(entry.name) in IMAGE_SUFFIXES for entry in entries)


def _discovered(
    sequence: SequenceRef, cameras: dict[str, list[File]], selection: FrameSelection
) -> Discovered:
    frames: list[Footage] = []
    for camera in sorted(cameras, key=natural_key):
        files = sorted(cameras[camera], key=lambda file: natural_key(file.name))
        frames += _frames_of(sequence.sequence_id, camera, files, selection)
    return Discovered(sequence, tuple(frames))


def _frames_of(
    sequence_id: str, camera: str, files: Sequence[File], selection: FrameSelection
) -> Iterable[Footage]:
    times = timestamps_ns([_stem(file) for file in files])
    for index, (file, time_ns) in enumerate(zip(files, times, strict=True)):
        where, version = (sequence_id, camera), (file.etag, file.size_bytes)
        if suffix_of(file.name) in VIDEO_SUFFIXES:
            yield VideoRef(*where, time_ns, file.uri, selection, *version)
        elif index in selection:
            yield FrameRef(*where, index, time_ns, file.uri, (0, 0), *version)


def _stem(file: File) -> str:
    return file.name.rpartition(".")[0] or file.name
