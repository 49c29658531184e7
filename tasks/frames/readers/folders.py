"""Folders of pictures and videos, and the trees that benchmarks publish.

A plain source is a folder of images, a folder of camera folders, a video, or a folder of these.

KITTI raw: DATE/DRIVE/image_02/data/0000000005.png and image_02/timestamps.txt beside them. A
sequence is a drive, a camera one of its folders `image_NN`. Line n of `timestamps.txt` is when
picture n was taken, in UTC: `2011-09-26 13:02:25.964389445`.

KITTI tracking: image_02/0000/000005.png. A sequence is the folder of a number, in each camera's
folder.

Cityscapes: leftImg8bit/SPLIT/CITY/CITY_000000_000019_leftImg8bit.png. A sequence is a city. Only
pictures are listed, never the labels and disparities beside them, which are PNG files as well. With
rightImg8bit there are two cameras.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from sam2_core.types import AutolabelError
from tasks.frames.identity import (
    CAMERA_BYTES,
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    address_of,
    is_camera_name,
    safe_name,
    suffix_of,
    timestamp_ns,
)
from tasks.frames.listing import (
    File,
    Folder,
    ListedSequence,
    Reader,
    by_camera,
    count_elsewhere,
    folder_below,
    natural_key,
    pictures,
    stat_file,
    stem,
    walk,
)
from tasks.frames.readers.containers import Mcap, Tar, list_archive, list_recording
from tasks.passed_over import PassedOver
from tasks.store import storage

# What a run leaves for people beside its reports: labels are drawn into it.
_DRAWN = re.compile(r"(^|/)reports/[0-9a-f]{20}/overlays(/|$)")

log = logging.getLogger(__name__)


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


class Folders(Reader):
    """Whatever has pictures and videos in folders; every source that is of no other format."""

    name = "folders"

    def fits(self, _folder: Folder) -> bool:
        """Any folder."""
        return True

    def sequences(
        self, source: str, passed_over: PassedOver, part: str = ""
    ) -> Iterator[ListedSequence]:
        """List sequences: a picture or video is one, and so is every folder of pictures."""
        if suffix_of(source) in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
            file = stat_file(source)
            if file is not None:
                yield ListedSequence((stem(file),), source, {"": pictures([file])})
                return
        archives: list[Archive] = []
        for group in groups(source, walk(source, passed_over, _refuse_camera_link), archives):
            uri = folder_below(source, group.names) if group.names else source
            files = group.cameras.get("", [])
            if len(group.cameras) == 1 and files and suffix_of(files[0].name) in VIDEO_SUFFIXES:
                uri = files[0].uri
            yield ListedSequence(group.names, uri, by_camera(group.cameras))
        for archive in archives:
            yield from _of_archive(source, passed_over, *archive)


# Names of the folders down to an archive or recording, its files, and whether the folder is the
# recording, as of rosbag2.
Archive = tuple[tuple[str, ...], list[File], bool]


def _of_archive(
    source: str,
    passed_over: PassedOver,
    folder: tuple[str, ...],
    files: list[File],
    is_bag: bool,
) -> Iterator[ListedSequence]:
    """List an archive or a recording among folders: a damaged one costs its own sequence only."""
    first, tar = files[0], suffix_of(files[0].name) == ".tar"
    found_at = folder_below(source, folder) if is_bag and folder else first.uri
    names = folder if is_bag else (*folder, stem(first))
    try:
        if tar:
            yield from list_archive(first, folder, passed_over)
        else:
            yield list_recording(files, names, found_at)
    except AutolabelError as error:
        broken = File(first.name, first.uri, 0, "", problem=str(error))
        address = address_of(found_at, Tar.name if tar else Mcap.name, "")
        yield ListedSequence(names, address, {"": [broken]})


def _archives(names: tuple[str, ...], files: list[File]) -> list[Archive]:
    """Find archives in a folder; the recordings of a rosbag2 folder are one."""
    tars = [file for file in files if suffix_of(file.name) == ".tar"]
    recordings = [file for file in files if suffix_of(file.name) == ".mcap"]
    is_bag = bool(recordings) and any(file.name == "metadata.yaml" for file in files)
    alone = sorted(
        tars if is_bag else [*tars, *recordings], key=lambda file: natural_key(file.name)
    )
    bag: list[Archive] = [(names, recordings, True)] if is_bag else []
    return [*bag, *((names, [file], False) for file in alone)]


def groups(
    root: str, folders: Iterable[tuple[tuple[str, ...], list[File]]], archives: list[Archive]
) -> Iterator[_Group]:
    """Sort folders, as `walk` yields them, into sequences: cameras wait for their parent folder.

    Archives that are met on the way are put aside, each with the names that lead to its folder.

    Raises:
        AutolabelError: pictures lie beside folders of cameras, or two cameras have one name.

    """
    waiting: dict[tuple[str, ...], _Group] = {}
    beside: dict[tuple[str, ...], str] = {}  # a sequence of its own, by the folder around
    with_warning = partial(_say_what_is_beside, root, beside)
    for names, files in folders:
        if _DRAWN.search("/".join(names)):
            log.info("%s: pictures that a run drew are no frames", "/".join(names))
            continue
        for parent in [p for p in waiting if p != names[: len(p)]]:
            yield with_warning(waiting.pop(parent))
        images = [file for file in files if suffix_of(file.name) in IMAGE_SUFFIXES]
        videos = [file for file in files if suffix_of(file.name) in VIDEO_SUFFIXES]
        archives += _archives(names, files)
        if images and names in waiting:
            cameras = ", ".join(sorted(waiting[names].cameras))
            raise AutolabelError(
                f"{storage.redact(storage.join(root, *names))} holds images ({images[0].name}) and "
                f"camera folders ({cameras}): move the images into a folder of their own"
            )
        if images and names and is_camera_name(names[-1]):
            waiting.setdefault(names[:-1], _Group(names[:-1])).add(names[-1], images)
        elif images:
            beside.setdefault(names[:-1], "".join(names[-1:]))
            yield _Group(names, {"": images})
        if videos and all(is_camera_name(stem(file)) for file in videos) and not images:
            group = waiting.setdefault(names, _Group(names))
            for file in videos:
                group.add(stem(file), [file])
        else:
            for file in sorted(videos, key=lambda video: natural_key(video.name)):
                yield _Group((*names, stem(file)), {"": [file]})
    yield from map(with_warning, waiting.values())


def _say_what_is_beside(root: str, beside: Mapping[tuple[str, ...], str], group: _Group) -> _Group:
    """Return cameras as they are; say so where a folder of pictures beside them is none."""
    other = beside.get(group.names)
    if other is not None:
        log.warning(
            "%s: %s is a camera by its name, and %s beside it a sequence of its own; cameras "
            "are named with words such as cam, front or left, and letters and numbers beside",
            storage.redact(storage.join(root, *group.names)), min(group.cameras), other,
        )  # fmt: skip
    return group


def _refuse_camera_link(folder: Path, target: Path) -> None:
    """Refuse a camera whose folder is below the source under another name, too.

    Listing its sequence alone would find the camera, and listing the source would not.
    """
    elsewhere = not target.is_relative_to(folder.parent.resolve())
    if not is_camera_name(folder.name) or not elsewhere:
        return
    if any(suffix_of(file.name) in IMAGE_SUFFIXES for file in target.iterdir()):
        raise AutolabelError(
            f"{folder} and {target} are one folder, and both are below the source: give as the "
            "source what holds one of them"
        )


CAMERA = re.compile(r"image_\d\d")
_DRIVE, _DATE = re.compile(r".*_drive_\d+.*"), re.compile(r"\d{4}_\d\d_\d\d")
_TIMES = "timestamps.txt"


Names = tuple[str, ...]  # of folders, from the source down
Found = dict[Names, dict[str, list[File]]]  # pictures by sequence and camera


def _images(files: list[File]) -> list[File]:
    return [file for file in files if suffix_of(file.name) in IMAGE_SUFFIXES]


def _in_order(found: Found) -> list[Names]:
    return sorted(found, key=lambda folders: natural_key("/".join(folders)))


class KittiRaw(Reader):
    """Reads drives of KITTI's raw data."""

    name = "kitti-raw"
    layout = "pictures in image_NN/data"

    def fits(self, folder: Folder) -> bool:
        """Whether it is a drive, a date's folder of drives, or a folder of dates."""
        cameras = [folder / name for name in folder.folders if CAMERA.fullmatch(name)]
        if any("data" in camera.folders for camera in cameras):
            return True
        below = [name for name in folder.folders if _DRIVE.fullmatch(name) or _DATE.fullmatch(name)]
        return bool(below) and self.fits(folder / below[0])

    def sequences(
        self, source: str, passed_over: PassedOver, part: str = ""
    ) -> Iterator[ListedSequence]:
        """List the drives."""
        found: Found = {}
        times: dict[Names, str] = {}  # address by camera's folder
        for names, files in walk(source, passed_over):
            images = _images(files)
            for file in files:
                if file.name == _TIMES:
                    times[names] = file.uri
            is_camera = names[-1:] == ("data",) and CAMERA.fullmatch("".join(names[-2:-1]))
            if images and is_camera:
                found.setdefault(names[:-2], {})[names[-2]] = images
            else:
                count_elsewhere(files, passed_over)
        for names in _in_order(found):
            folder = folder_below(source, names) if names else source
            cameras = {
                camera: _timed(files, times.get((*names, camera), ""))
                for camera, files in sorted(found[names].items())
            }
            yield ListedSequence(names, address_of(folder, self.name, ""), cameras)


def _timed(files: list[File], times_uri: str) -> list[File]:
    """Put the pictures of a camera in order, with the times of a file's lines: of all or none."""
    ordered = sorted(files, key=lambda file: natural_key(file.name))
    if not times_uri:
        return ordered
    lines: list[str] = []
    try:
        lines = storage.text_of(storage.read_bytes(times_uri)).splitlines()
    except storage.StorageError as error:
        log.warning("%s", error)
    times = dict(enumerate(timestamp_ns(line.strip().replace(" ", "_")) for line in lines))
    numbers = [int(stem(name)) if stem(name).isdecimal() else at for at, name in enumerate(ordered)]
    found = [times.get(number) for number in numbers]
    if None in found:
        where, missing = storage.redact(times_uri), ordered[found.index(None)].name
        log.warning("%s tells no time of %s: this camera has none", where, missing)
        return ordered
    return [replace(file, timestamp_ns=at) for file, at in zip(ordered, found, strict=True)]


_SEQUENCE = re.compile(r"\d{4}")
_SPLITS = ("training", "testing", "train", "val", "test")


class KittiTracking(Reader):
    """Reads the tracking benchmark; a camera is a folder `image_NN`."""

    name = "kitti-tracking"
    layout = "pictures in image_NN/0000, image_NN/0001, ..."

    def fits(self, folder: Folder) -> bool:
        """Whether it, or a split in it, has a folder of a camera with numbered folders."""
        inside = [folder, *(folder / name for name in folder.folders if name in _SPLITS)]
        return any(
            bool(numbered) and all(map(_SEQUENCE.fullmatch, numbered))
            for drive in inside
            for name in drive.folders
            if CAMERA.fullmatch(name)
            for numbered in [(drive / name).folders]
        )

    def sequences(
        self, source: str, passed_over: PassedOver, part: str = ""
    ) -> Iterator[ListedSequence]:
        """List the sequences; each may have pictures in every camera's folder."""
        found: Found = {}
        for names, files in walk(source, passed_over):
            images = _images(files)
            inside = len(names) >= 2 and CAMERA.fullmatch(names[-2])
            if inside and images and _SEQUENCE.fullmatch(names[-1]):
                found.setdefault((*names[:-2], names[-1]), {})[names[-2]] = images
            else:
                count_elsewhere(files, passed_over)
        for names in _in_order(found):
            folder = folder_below(source, names[:-1]) if names[:-1] else source
            yield ListedSequence(
                names, address_of(folder, self.name, names[-1]), by_camera(found[names])
            )


_PICTURES = ("leftImg8bit", "leftImg8bit_sequence", "rightImg8bit", "rightImg8bit_sequence")


class Cityscapes(Reader):
    """Reads Cityscapes and what is laid out like it."""

    name = "cityscapes"
    layout = "pictures in leftImg8bit/CITY or leftImg8bit/SPLIT/CITY"

    def fits(self, folder: Folder) -> bool:
        """Whether it has the folder of the left camera's pictures."""
        return bool({*_PICTURES[:2]} & {*folder.folders})

    def sequences(
        self, source: str, passed_over: PassedOver, part: str = ""
    ) -> Iterator[ListedSequence]:
        """List the cities of every split."""
        found: Found = {}
        there = [name for name in _PICTURES if name in Folder(source).folders]
        for folder in there:
            for names, files in walk(storage.join(source, folder), passed_over):
                images = _images(files)
                camera = "" if len(there) == 1 else folder
                if images:
                    found.setdefault(names or (folder,), {})[camera] = images
        for names in _in_order(found):
            address = address_of(source, self.name, "/".join(names))
            yield ListedSequence(names, address, by_camera(found[names]))
