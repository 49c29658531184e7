"""Sequences that are refused for their names, and what is said then.

Frames that have another name would be labeled twice; the labels of a second drive of one name would
take the place of the first one's.
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from sam2_core.types import AutolabelError
from tasks.frames.addresses import split_address
from tasks.frames.readers.choice import FOLDERS
from tasks.frames.source_names import safe_name, sequence_id_of
from tasks.frames.ways import Way, is_file, overlap, without_suffix
from tasks.store import storage
from tasks.store.roots import Root
from tasks.types import SequenceRef

if TYPE_CHECKING:
    from tasks.frames.naming import Names


class NamedOtherwiseError(AutolabelError):
    """Frames that are labeled already would be labeled once more, under another name."""


def refuse_other_name(sequence: SequenceRef, known: str, wanted: str) -> None:
    """Refuse a name for a sequence that has another one.

    Raises:
        NamedOtherwiseError: it has.

    """
    if wanted and known != wanted:
        where = storage.redact(split_address(sequence.frames_uri)[0])
        raise NamedOtherwiseError(
            f"--sequence {wanted}: {where} is called {known} in this --out, and its frames would "
            "be labeled twice; leave --sequence out, or choose another --out"
        )


def refused(source: str, why: str, advice: str) -> NamedOtherwiseError:
    """Return the error for a source whose frames have names by now that it cannot give."""
    return NamedOtherwiseError(
        storage.redact(
            f"source {source} {why}: its frames would be labeled a second time, under another "
            f"name; {advice}, or choose another --out"
        )
    )


def instead(root: Root, way: Way) -> str:
    """Say which source gives the names that are known, of what lies there on a way from a root."""
    words = f"give {root.address} as the source, as before"
    if len(way) > 1:
        glob = sequence_id_of(root.address, way[:-1])
        words += f" (backfill and nightly take a part of it with --sequences '{glob}*')"
    return words


def shown(root: Root) -> str:
    """Say which frames have a name of their own."""
    what = "pictures in it" if root.apart == "pictures" else split_address(root.address)[0]
    return f"{what}, labeled by itself as {root.name}"


_BETWEEN = safe_name("/")
# So many names whose earlier drives are gone from where they were: all of them have moved.
_MOVED = 8


class Namesakes:
    """Refuses a sequence of a new source that is called as another drive is.

    Args:
        names: of the plan.
        labeled: names of the sequences that have labels in the storage, or soon will.

    """

    def __init__(self, names: Names, labeled: Collection[str]) -> None:
        self._names, self._labeled, self._gone = names, labeled, 0
        self._listed = functools.lru_cache(maxsize=64)(storage.list_all)

    def refuse(self, sequence: SequenceRef) -> None:
        """Refuse a sequence if the drive that has its name is another one, and still there.

        A drive that is not where it was may have moved: then these are its frames.

        Raises:
            AutolabelError: it is; says which source tells the two apart.

        """
        name, place = sequence.sequence_id, split_address(sequence.frames_uri)[0]
        if name not in self._labeled or self._gone >= _MOVED:
            return
        if not any(overlap(root.address, place) for root in self._names.new):
            return
        for root in self._names.recorded.roots:
            other = self._place_of(root, name)
            if other and not overlap(other, place):
                raise AutolabelError(storage.redact(_told(name, place, other)))
        self._gone += 1

    def _place_of(self, root: Root, name: str) -> str:
        """Where a root has a sequence of a name now, or ""."""
        address = split_address(root.address)[0].rstrip("/")
        own = root.name or (_own_name(address) if root.format == FOLDERS.name else "")
        if own == name and (_is_there(address) if is_file(address) else self._listed(address)):
            return address
        if root.name or root.format != FOLDERS.name or is_file(address):
            return ""
        return next(self._below(address, name), "")

    def _below(self, folder: str, name: str) -> Iterator[str]:
        for entry, is_folder in self._listed(folder).items():
            called = safe_name(entry if is_folder else without_suffix((entry,))[0])
            if called == name and (is_folder or is_file(entry)):
                yield storage.join(folder, entry)
            elif is_folder and name.startswith(called + _BETWEEN):
                rest = name.removeprefix(called + _BETWEEN)
                yield from self._below(storage.join(folder, entry), rest)


def _own_name(address: str) -> str:
    """Return what a source is called that is one sequence itself."""
    return sequence_id_of("/".join(without_suffix(tuple(address.split("/")))), ())


def _is_there(address: str) -> bool:
    folder, _, name = address.rpartition("/")
    return name in storage.list_names(folder)


def _told(name: str, place: str, other: str) -> str:
    folder, way = _around(place, other)
    advice = ""
    if way:
        called = sequence_id_of(folder, without_suffix(way))
        glob = sequence_id_of(folder, way[:-1]) if len(way) > 1 else called
        advice = (
            f"give the folder around both, {folder}, as the source, which calls this one {called} "
            f"(backfill and nightly take a part of it with --sequences '{glob}*'), or "
        )
    return (
        f"{place} would be labeled as {name}, which {other} is in this --out, and its labels would "
        f"take the place of that drive's: {advice}choose another --out"
    )


def _around(place: str, other: str) -> tuple[str, Way]:
    """Return the folder around two places and the way to the first one; "" and () for none."""
    scheme, mark, here = place.rpartition("://")
    other_scheme, _, there = other.rpartition("://")
    both = posixpath.commonpath([here, there]) if scheme == other_scheme else ""
    if not both.strip("/"):
        return "", ()
    return f"{scheme}{mark}{both}", tuple(posixpath.relpath(here, both).split("/"))
