"""KITTI tracking and MOTS: SPLIT/image_02/0000/000000.png, one sequence a folder."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tasks.frames.addresses import address_of
from tasks.frames.listing import File, natural_key, walk
from tasks.frames.patterns import IMAGE_SUFFIXES, suffix_of
from tasks.frames.readers.folders import by_camera
from tasks.frames.readers.kitti_raw import CAMERA
from tasks.frames.readers.protocol import Listed, Place, Reader
from tasks.store import storage

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
            images = [file for file in files if suffix_of(file.name) in IMAGE_SUFFIXES]
            inside = len(names) >= 2 and CAMERA.fullmatch(names[-2])
            if inside and images and _SEQUENCE.fullmatch(names[-1]):
                found.setdefault((*names[:-2], names[-1]), {})[names[-2]] = images
        for names in sorted(found, key=lambda one: natural_key("/".join(one))):
            folder = storage.join(source, *names[:-1]) if names[:-1] else source
            yield Listed(
                names, address_of(folder, KittiTracking.name, names[-1]), by_camera(found[names])
            )
