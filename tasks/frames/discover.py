"""What there is to label: sequences and their frames below one or more sources.

A source is a folder of images, a video file, a folder of camera folders (or of one video a
camera), or a folder of any of these, at any depth, under any fsspec URL. A folder holds cameras
when its subfolders are named like cameras (CAM_FRONT, camera_05, ring_side_left, image_02); other
subfolders are sequences of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sam2_core.types import AutolabelError
from tasks.frames.listing import File, natural_key, stat_file, walk
from tasks.frames.selection import ALL_FRAMES, FrameSelection
from tasks.frames.timestamps import timestamps_ns
from tasks.store import storage
from tasks.store.artifacts import content_key
from tasks.types import Footage, FrameRef, SequenceRef, VideoRef

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2"}
)
VIDEO_SUFFIXES = frozenset({".mp4", ".avi", ".mov", ".mkv", ".m4v", ".webm", ".mpg", ".mpeg"})

_CAMERA_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        cam camera cameras image img rgb color colour mono gray grey front back rear side left right
        center centre forward backward middle main wide narrow near far tele fisheye surround ring
        stereo pinhole fov traffic light up down top bottom svc
        """,
    )
)
# Words that alone, or with a number, are a part of an image's way and not a camera.
_NOT_ALONE = frozenset({"image", "img", "rgb", "color", "colour", "main", "light", "gray", "grey"})
# Folders that only say what is in them: the sequence is called after the folder around.
_WRAPPERS = frozenset({"images", "image", "imgs", "img", "frames", "data", "rgb", "color"})


@dataclass(frozen=True)
class Discovered:
    """A sequence with its selected frames, camera by camera, in order.

    A video is one VideoRef until `tasks.frames.video.expand_videos` has opened it.
    """

    sequence: SequenceRef
    frames: tuple[Footage, ...]

    @property
    def content_key(self) -> str:
        """Key of the content, from addresses and etags alone."""
        return content_key(self.frames)


@dataclass
class _Group:
    """A sequence while the files below its folder are read."""

    names: tuple[str, ...]
    cameras: dict[str, list[File]] = field(default_factory=dict)


def discover(
    sources: Sequence[str], selection: FrameSelection = ALL_FRAMES
) -> Iterator[Discovered]:
    """Every sequence of the sources with its frames, one listing a source, as a stream.

    Args:
        sources: fsspec URLs.
        selection: which frames of each camera; indices keep counting over all frames.

    Raises:
        AutolabelError: a source is missing, has no images or videos, or two sequences would have
            the same name.

    """
    if not sources:
        raise AutolabelError("no source: name a folder, a video file or a bucket to label")
    seen: dict[str, str] = {}
    for source in sources:
        found = False
        for one in _discover_source(source, selection):
            found = True
            sequence = one.sequence
            other = seen.setdefault(sequence.sequence_id, sequence.frames_uri)
            if other != sequence.frames_uri:
                raise AutolabelError(
                    f"two sequences are both called {sequence.sequence_id}: {other} and "
                    f"{sequence.frames_uri}; give the folder that holds both as the source"
                )
            if one.frames:
                yield one
        if not found:
            raise AutolabelError(
                f"{storage.redact(source)} holds no images or videos "
                f"({', '.join(sorted(IMAGE_SUFFIXES | VIDEO_SUFFIXES))})"
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
    if root.startswith("http") and "?" in root:
        raise AutolabelError(
            f"{storage.redact(source)}: addresses are stored with the labels, and what follows the "
            "? may be a secret; download the file, or give an address without"
        )
    if _suffix(root) in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
        file = stat_file(root)
        if file is not None:
            yield _discovered(SequenceRef(safe_name(_stem(file)), root), {"": [file]}, selection)
            return
    for group in _groups(root):
        uri = storage.join(root, *group.names) if group.names else root
        if set(group.cameras) == {""} and _suffix(group.cameras[""][0].name) in VIDEO_SUFFIXES:
            uri = group.cameras[""][0].uri
        yield _discovered(
            SequenceRef(_sequence_id(root, group.names), uri), group.cameras, selection
        )


def _groups(root: str) -> Iterator[_Group]:
    """Sort folders into sequences: cameras wait until their parent folder has been read."""
    waiting: dict[tuple[str, ...], _Group] = {}
    for names, files in walk(root):
        for parent in [p for p in waiting if p != names[: len(p)]]:
            yield waiting.pop(parent)
        images = [file for file in files if _suffix(file.name) in IMAGE_SUFFIXES]
        videos = [file for file in files if _suffix(file.name) in VIDEO_SUFFIXES]
        if images and names and is_camera_name(names[-1]):
            waiting.setdefault(names[:-1], _Group(names[:-1])).cameras[names[-1]] = images
        elif images:
            yield _Group(names, {"": images})
        if videos and all(is_camera_name(_stem(file)) for file in videos) and not images:
            group = waiting.setdefault(names, _Group(names))
            group.cameras |= {_stem(file): [file] for file in videos}
        else:
            for file in sorted(videos, key=lambda one: natural_key(one.name)):
                yield _Group((*names, _stem(file)), {"": [file]})
    yield from waiting.values()


def _discovered(
    sequence: SequenceRef, cameras: dict[str, list[File]], selection: FrameSelection
) -> Discovered:
    frames: list[Footage] = []
    for camera in sorted(cameras, key=natural_key):
        files = sorted(cameras[camera], key=lambda file: natural_key(file.name))
        frames += _frames_of(sequence.sequence_id, safe_name(camera), files, selection)
    return Discovered(sequence, tuple(frames))


def _frames_of(
    sequence_id: str, camera: str, files: Sequence[File], selection: FrameSelection
) -> Iterable[Footage]:
    times = timestamps_ns([_stem(file) for file in files])
    for index, (file, time_ns) in enumerate(zip(files, times, strict=True)):
        where, version = (sequence_id, camera), (file.etag, file.size_bytes)
        if _suffix(file.name) in VIDEO_SUFFIXES:
            yield VideoRef(*where, time_ns, file.uri, selection, *version)
        elif index in selection:
            yield FrameRef(*where, index, time_ns, file.uri, (0, 0), *version)


def is_camera_name(name: str) -> bool:
    """Whether a folder is named like a camera: only camera words, letters' cases and numbers."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    lower = [word.lower() for word in words]
    if not lower or not set(lower) <= _CAMERA_WORDS:
        return False
    return len(lower) > 1 or lower[0] not in _NOT_ALONE or bool(re.search(r"_0\d$", name))


def safe_name(path: str) -> str:
    """Name of a sequence or camera as part of file names: "/" is "__", odd characters are "_"."""
    return re.sub(r"[^\w.+=@,~-]", "_", path.replace("/", "__")).lstrip(".")


def _sequence_id(root: str, names: tuple[str, ...]) -> str:
    while names and names[-1].lower() in _WRAPPERS:
        names = names[:-1]
    if names:
        return safe_name("/".join(names))
    around = [part for part in root.rpartition("://")[2].split("/") if part]
    while len(around) > 1 and around[-1].lower() in _WRAPPERS:
        around.pop()
    return safe_name(around[-1]) if around else "sequence"


def _suffix(name: str) -> str:
    dot = name.rfind(".")
    return name[dot:].lower() if dot > 0 else ""


def _stem(file: File) -> str:
    return file.name.rpartition(".")[0] or file.name
