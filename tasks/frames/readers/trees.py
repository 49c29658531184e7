"""Trees of pictures as benchmarks publish them: KITTI's raw data and tracking, Cityscapes.

KITTI raw: DATE/DRIVE/image_02/data/0000000005.png and image_02/timestamps.txt beside them. A
sequence is a drive, a camera one of its folders `image_NN`. Line n of `timestamps.txt` is when
picture n was taken, in UTC: `2011-09-26 13:02:25.964389445`.

KITTI tracking: image_02/0000/000005.png. A sequence is the folder of a number, in each camera's
folder.

Cityscapes: leftImg8bit/SPLIT/CITY/CITY_000000_000019_leftImg8bit.png. A sequence is a city. Only
pictures are listed, never the labels and disparities beside them, which are PNG files as well. With
rightImg8bit there are two cameras.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tasks.frames.addresses import address_of
from tasks.frames.listing import File, folder_below, natural_key, walk
from tasks.frames.patterns import IMAGE_SUFFIXES, suffix_of
from tasks.frames.readers.folders import by_camera, stem
from tasks.frames.readers.protocol import Listed, Picture, Place, Reader
from tasks.frames.source_names import timestamp_ns
from tasks.store import storage

CAMERA = re.compile(r"image_\d\d")
_DRIVE, _DATE = re.compile(r".*_drive_\d+.*"), re.compile(r"\d{4}_\d\d_\d\d")
_TIMES = "timestamps.txt"

log = logging.getLogger(__name__)


def _images(files: list[File]) -> list[File]:
    return [file for file in files if suffix_of(file.name) in IMAGE_SUFFIXES]


@dataclass
class _Drive:
    cameras: dict[str, list[File]] = field(default_factory=dict)
    times: dict[str, str] = field(default_factory=dict)  # addresses by camera


class KittiRaw(Reader):
    """Reads drives of KITTI's raw data."""

    name = "kitti-raw"
    layout = "pictures in image_NN/data"

    def fits(self, place: Place) -> bool:
        """Whether it is a drive, a date's folder of drives, or a folder of dates."""
        cameras = [place / name for name in place.folders if CAMERA.fullmatch(name)]
        if any("data" in camera.folders for camera in cameras):
            return True
        below = [name for name in place.folders if _DRIVE.fullmatch(name) or _DATE.fullmatch(name)]
        return bool(below) and self.fits(place / below[0])

    def sequences(self, source: str) -> Iterator[Listed]:
        """List the drives."""
        drives: dict[tuple[str, ...], _Drive] = {}
        for names, files in walk(source):
            for done in [one for one in drives if one != names[: len(one)]]:
                yield _listed(source, done, drives.pop(done))
            if len(names) >= 2 and names[-1] == "data" and CAMERA.fullmatch(names[-2]):
                images = _images(files)
                drive = drives.setdefault(names[:-2], _Drive())
                if images:
                    drive.cameras[names[-2]] = images
            elif names and CAMERA.fullmatch(names[-1]):
                times = [file.uri for file in files if file.name == _TIMES]
                if times:
                    drives.setdefault(names[:-1], _Drive()).times[names[-1]] = times[0]
        for names, drive in drives.items():
            yield _listed(source, names, drive)


def _listed(source: str, names: tuple[str, ...], drive: _Drive) -> Listed:
    folder = folder_below(source, names) if names else source
    return Listed(
        names,
        address_of(folder, KittiRaw.name, ""),
        {
            camera: _pictures(drive.cameras[camera], drive.times.get(camera, ""))
            for camera in sorted(drive.cameras, key=natural_key)
        },
    )


def _pictures(files: list[File], times_uri: str) -> list[Picture]:
    ordered = sorted(files, key=lambda file: natural_key(file.name))
    times = _times(times_uri) if times_uri else []
    found: list[int | None] = []
    for place, file in enumerate(ordered):
        number = int(stem(file)) if stem(file).isdecimal() else place
        found.append(times[number] if number < len(times) else None)
    if None in found and times_uri:
        missing = ordered[found.index(None)].name
        log.warning(
            "%s tells no time of %s: this camera has none", storage.redact(times_uri), missing
        )
    if None in found:
        found = [None] * len(ordered)
    return [Picture(file, time_ns) for file, time_ns in zip(ordered, found, strict=True)]


def _times(uri: str) -> list[int | None]:
    """Nanoseconds since 1970 of each line, None for one that is no time."""
    try:
        text = storage.read_bytes(uri).decode("utf-8", "replace")
    except storage.StorageError as error:
        log.warning("%s", error)
        return []
    return [timestamp_ns(line.strip().replace(" ", "_")) for line in text.splitlines()]


_SEQUENCE = re.compile(r"\d{4}")
_SPLITS = ("training", "testing", "train", "val", "test")


class KittiTracking(Reader):
    """Reads the tracking benchmark; a camera is a folder `image_NN`."""

    name = "kitti-tracking"
    layout = "pictures in image_NN/0000, image_NN/0001, ..."

    def fits(self, place: Place) -> bool:
        """Whether it, or a split in it, has a folder of a camera with numbered folders."""
        inside = [place, *(place / name for name in place.folders if name in _SPLITS)]
        return any(
            bool(numbered) and all(map(_SEQUENCE.fullmatch, numbered))
            for one in inside
            for name in one.folders
            if CAMERA.fullmatch(name)
            for numbered in [(one / name).folders]
        )

    def sequences(self, source: str) -> Iterator[Listed]:
        """List the sequences; each may have pictures in every camera's folder."""
        found: dict[tuple[str, ...], dict[str, list[File]]] = {}
        for names, files in walk(source):
            images = _images(files)
            inside = len(names) >= 2 and CAMERA.fullmatch(names[-2])
            if inside and images and _SEQUENCE.fullmatch(names[-1]):
                found.setdefault((*names[:-2], names[-1]), {})[names[-2]] = images
        for names in sorted(found, key=lambda one: natural_key("/".join(one))):
            folder = folder_below(source, names[:-1]) if names[:-1] else source
            yield Listed(
                names, address_of(folder, KittiTracking.name, names[-1]), by_camera(found[names])
            )


_PICTURES = ("leftImg8bit", "leftImg8bit_sequence", "rightImg8bit", "rightImg8bit_sequence")


class Cityscapes(Reader):
    """Reads Cityscapes and what is laid out like it."""

    name = "cityscapes"
    layout = "pictures in leftImg8bit/CITY or leftImg8bit/SPLIT/CITY"

    def fits(self, place: Place) -> bool:
        """Whether it has the folder of the left camera's pictures."""
        return bool({*_PICTURES[:2]} & {*place.folders})

    def sequences(self, source: str) -> Iterator[Listed]:
        """List the cities of every split."""
        found: dict[tuple[str, ...], dict[str, list[File]]] = {}
        there = [name for name in _PICTURES if name in Place(source).folders]
        for folder in there:
            for names, files in walk(storage.join(source, folder)):
                images = _images(files)
                camera = "" if len(there) == 1 else folder
                if images:
                    found.setdefault(names or (folder,), {})[camera] = images
        for names in sorted(found, key=lambda one: natural_key("/".join(one))):
            address = address_of(source, Cityscapes.name, "/".join(names))
            yield Listed(names, address, by_camera(found[names]))
