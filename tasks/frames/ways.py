"""Ways from one address down to another, however each of them is spelled."""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from tasks.frames.patterns import CONTAINER_SUFFIXES, IMAGE_SUFFIXES, VIDEO_SUFFIXES, suffix_of
from tasks.store import storage
from tasks.store.roots import Root

Way = tuple[str, ...]  # names of folders, from the outer one down
_FILES = IMAGE_SUFFIXES | VIDEO_SUFFIXES | CONTAINER_SUFFIXES


def spellings(address: str) -> tuple[Way, ...]:
    """Names that lead to a place: as it is written, and where links on the way lead."""
    if storage.is_local(address):
        path = storage.local_path(address)
        return path.parts, path.resolve().parts
    scheme, _, rest = storage.canonical(address).partition("://")
    return ((scheme, *parts_of(rest, address)),)


def parts_of(path: str, address: str) -> Way:
    """Names that a path of an address is made of; those of web servers are quoted."""
    parts = (one for one in path.split("/") if one)
    return tuple(map(unquote, parts) if address.startswith(("http://", "https://")) else parts)


def way_between(outer: Iterable[Way], inner: Sequence[Way]) -> Way | None:
    """Names that lead from one place down to another, () where they are one; None if none do."""
    for one in outer:
        for other in inner:
            if other[: len(one)] == one:
                return other[len(one) :]
    return None


class Places:
    """Recorded roots by where they are, found without looking at each of them."""

    def __init__(self, addressed: Iterable[tuple[str, Root]]) -> None:
        self._at: dict[Way, list[tuple[int, Root]]] = {}
        for age, (address, root) in enumerate(addressed):
            for way in dict.fromkeys(spellings(address)):
                self._at.setdefault(way, []).append((age, root))
        self._sorted = sorted(self._at)

    def around(self, places: Sequence[Way]) -> list[tuple[int, Root, Way]]:
        """Roots that are or contain a place, oldest first, each with its age and the way down."""
        found = {
            (age, root): way[depth:]
            for way in reversed(places)
            for depth in range(len(way) + 1)
            for age, root in self._at.get(way[:depth], ())
        }
        return sorted(((age, root, way) for (age, root), way in found.items()), key=_age)

    def inside(self, places: Sequence[Way]) -> list[tuple[int, Root, Way]]:
        """Roots that are a place or lie in it, oldest first, each with its age and the way down."""
        found: dict[tuple[int, Root], Way] = {}
        for way in reversed(places):
            for at in range(bisect_left(self._sorted, way), len(self._sorted)):
                other = self._sorted[at]
                if other[: len(way)] != way:
                    break
                found |= dict.fromkeys(self._at[other], other[len(way) :])
        return sorted(((age, root, way) for (age, root), way in found.items()), key=_age)


def _age(found: tuple[int, Root, Way]) -> int:
    return found[0]


def overlap(one: str, other: str) -> bool:
    """Whether one of two addresses lies in the other, or they are one place."""
    both = spellings(one), spellings(other)
    return way_between(*both) is not None or way_between(*both[::-1]) is not None


def without_suffix(way: Way) -> Way:
    """Return the way to a sequence that is a file, as its names have it."""
    if way and is_file(way[-1]):
        return (*way[:-1], posixpath.splitext(way[-1])[0])
    return way


def is_file(name: str) -> bool:
    """Whether it is called like a picture, a video or a file that holds pictures."""
    return suffix_of(name) in _FILES
