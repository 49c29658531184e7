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
from dataclasses import replace

from tasks.frames.identity import IMAGE_SUFFIXES, address_of, suffix_of, timestamp_ns
from tasks.frames.listing import (
    File,
    Folder,
    ListedSequence,
    Reader,
    folder_below,
    natural_key,
    walk,
)
from tasks.frames.readers.folders import by_camera, stem
from tasks.store import storage

CAMERA = re.compile(r"image_\d\d")
_DRIVE, _DATE = re.compile(r".*_drive_\d+.*"), re.compile(r"\d{4}_\d\d_\d\d")
_TIMES = "timestamps.txt"

log = logging.getLogger(__name__)


Names = tuple[str, ...]  # of folders, from the source down
Found = dict[Names, dict[str, list[File]]]  # pictures by sequence and camera


def _images(files: list[File]) -> list[File]:
    return [file for file in files if suffix_of(file.name) in IMAGE_SUFFIXES]


def _in_order(found: Found) -> list[Names]:
    return sorted(found, key=lambda one: natural_key("/".join(one)))


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

    def sequences(self, source: str) -> Iterator[ListedSequence]:
        """List the drives."""
        found: Found = {}
        times: dict[Names, str] = {}  # address by camera's folder
        for names, files in walk(source):
            images = _images(files)
            for file in files:
                if file.name == _TIMES:
                    times[names] = file.uri
            is_camera = names[-1:] == ("data",) and CAMERA.fullmatch("".join(names[-2:-1]))
            if images and is_camera:
                found.setdefault(names[:-2], {})[names[-2]] = images
        for names in _in_order(found):
            folder = folder_below(source, names) if names else source
            cameras = {
                camera: _pictures(files, times.get((*names, camera), ""))
                for camera, files in sorted(found[names].items())
            }
            yield ListedSequence(names, address_of(folder, self.name, ""), cameras)


def _pictures(files: list[File], times_uri: str) -> list[File]:
    """Put the pictures of a camera in order, with the times of a file's lines: of all or none."""
    ordered = sorted(files, key=lambda file: natural_key(file.name))
    text = ""
    try:
        text = storage.read_bytes(times_uri).decode("utf-8", "replace") if times_uri else ""
    except storage.StorageError as error:
        log.warning("%s", error)
    lines = text.splitlines()
    times = [timestamp_ns(line.strip().replace(" ", "_")) for line in lines]
    found: list[int | None] = []
    for position, file in enumerate(ordered):
        number = int(stem(file)) if stem(file).isdecimal() else position
        found.append(times[number] if number < len(times) else None)
    if None in found:
        where, missing = storage.redact(times_uri), ordered[found.index(None)].name
        if times_uri:
            log.warning("%s tells no time of %s: this camera has none", where, missing)
        found = [None] * len(ordered)
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
            for one in inside
            for name in one.folders
            if CAMERA.fullmatch(name)
            for numbered in [(one / name).folders]
        )

    def sequences(self, source: str) -> Iterator[ListedSequence]:
        """List the sequences; each may have pictures in every camera's folder."""
        found: Found = {}
        for names, files in walk(source):
            images = _images(files)
            inside = len(names) >= 2 and CAMERA.fullmatch(names[-2])
            if inside and images and _SEQUENCE.fullmatch(names[-1]):
                found.setdefault((*names[:-2], names[-1]), {})[names[-2]] = images
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

    def sequences(self, source: str) -> Iterator[ListedSequence]:
        """List the cities of every split."""
        found: Found = {}
        there = [name for name in _PICTURES if name in Folder(source).folders]
        for folder in there:
            for names, files in walk(storage.join(source, folder)):
                images = _images(files)
                camera = "" if len(there) == 1 else folder
                if images:
                    found.setdefault(names or (folder,), {})[camera] = images
        for names in _in_order(found):
            address = address_of(source, self.name, "/".join(names))
            yield ListedSequence(names, address, by_camera(found[names]))
