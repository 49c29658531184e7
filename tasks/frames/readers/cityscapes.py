"""Trees like Cityscapes': leftImg8bit/SPLIT/CITY/CITY_000000_000019_leftImg8bit.png.

A sequence is a city. Only pictures are listed, never the labels and disparities beside them, which
are PNG files as well. With rightImg8bit there are two cameras.
"""

from __future__ import annotations

from collections.abc import Iterator

from tasks.frames.addresses import address_of
from tasks.frames.listing import File, natural_key, walk
from tasks.frames.patterns import IMAGE_SUFFIXES, suffix_of
from tasks.frames.readers.folders import by_camera
from tasks.frames.readers.protocol import Listed, Place, Reader
from tasks.store import storage

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
                images = [file for file in files if suffix_of(file.name) in IMAGE_SUFFIXES]
                camera = "" if len(there) == 1 else folder
                if images:
                    found.setdefault(names or (folder,), {})[camera] = images
        for names in sorted(found, key=lambda one: natural_key("/".join(one))):
            address = address_of(source, Cityscapes.name, "/".join(names))
            yield Listed(names, address, by_camera(found[names]))
