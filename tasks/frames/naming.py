"""Names of sequences: one drive has one name in a storage.

A sequence is named by its path below a root: the oldest root in the storage that contains it, else
`--root`, else its source, which then becomes a root. A sequence that was named by itself keeps that
name. What would get a second name is refused.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from sam2_core.types import AutolabelError
from tasks.frames.identity import (
    VIDEO_SUFFIXES,
    is_camera_name,
    safe_name,
    sequence_id_of,
    split_address,
    suffix_of,
)
from tasks.frames.listing import ListedSequence
from tasks.frames.readers.choice import BY_SUFFIX, FOLDERS
from tasks.store import storage
from tasks.store.roots import Root

Way = tuple[str, ...]  # names of folders, from the outer one down
# Files that a walk through folders finds: a sequence in one is named as from the folder around.
_MEDIA = VIDEO_SUFFIXES | {".tar", ".mcap"}
_FOLDERS_TOO = frozenset({FOLDERS.name, "tar", "mcap"})


class NamedOtherwiseError(AutolabelError):
    """Frames that have a name already would be labeled once more, under another one."""


def spellings(address: str) -> tuple[Way, ...]:
    """Return an address as names of folders: as written, and with links resolved."""
    if storage.is_local(address):
        path = storage.local_path(address)
        return tuple(dict.fromkeys((path.parts, path.resolve().parts)))
    scheme, _, rest = storage.canonical(address).partition("://")
    parts = (one for one in rest.split("/") if one)
    return ((scheme, *(map(unquote, parts) if scheme.startswith("http") else parts)),)


def overlap(one: str, other: str) -> bool:
    """Whether one of two addresses lies in the other, or they are the same."""
    return any(
        way[: len(around)] == around or around[: len(way)] == way
        for way in spellings(one)
        for around in spellings(other)
    )


def _is_same(one: str, other: str) -> bool:
    return not set(spellings(one)).isdisjoint(spellings(other))


def _without_suffix(way: Way) -> Way:
    if suffix_of(way[-1]) in _MEDIA:
        return (*way[:-1], posixpath.splitext(way[-1])[0])
    return way


class Names:
    """Names of the sequences of a plan.

    Args:
        recorded: the roots in the storage, the oldest first.
        root: the one to use where none of these contains a source, "" for each source itself.

    Attributes:
        known: the recorded roots.
        new: those of this plan.

    """

    def __init__(self, recorded: Sequence[Root] = (), root: str = "") -> None:
        self.root = root
        self.new: dict[Root, None] = {}  # to be recorded before anything is labeled
        self.known = frozenset(recorded)
        self._ages: dict[Root, int] = {}
        self._roots: dict[Way, list[Root]] = {}
        self._named: dict[Way, Root] = {}
        for one in recorded:
            self._add(one)
        self._root_ways = sorted(self._roots)

    def _add(self, root: Root) -> None:
        if root in self._ages:
            return
        self._ages[root] = len(self._ages)
        if root.name:
            for way in _sequence_spellings(root.address):
                self._named.setdefault(way, root)
            return
        for way in spellings(root.address):
            self._roots.setdefault(_without_suffix(way), []).append(root)

    def note(self, root: Root) -> None:
        """Remember a root to record before anything is labeled."""
        self._add(root)
        self.new[root] = None

    def named(self, address: str) -> Root | None:
        """Return the record of a sequence that was named by itself."""
        found = _sequence_spellings(address) if self._named else ()
        return next((self._named[one] for one in found if one in self._named), None)

    def around(self, ways: Iterable[Way], format_: str) -> tuple[Root, Way] | None:
        """Return the oldest root of a format that is or contains an address, and the way down."""
        found = [
            (self._ages[root], root, way[depth:])
            for way in ways
            for depth in range(1, len(way) + 1)
            for root in self._roots.get(way[:depth], ())
            if root.format == format_
        ]
        return min(found, key=lambda one: one[0])[1:] if found else None

    def of(self, source: str, format_: str, base: str = "") -> SourceNames:
        """Return the names of a source's sequences.

        Args:
            source: a folder or file, no pattern.
            format_: name of its reader.
            base: folder that is to be the root where there is no other, "" for the source itself.

        Raises:
            NamedOtherwiseError: they have names that this source cannot give.
            AutolabelError: the root that was asked for does not contain the source.

        """
        format_ = FOLDERS.name if format_ in _FOLDERS_TOO else format_
        ways = tuple(map(_without_suffix, spellings(source)))
        if self.around(ways, format_) is None:
            address = storage.absolute(storage.canonical(self.root or base or source))
            self._add(Root(address, format_))
        found = self.around(ways, format_)
        if found is None:
            raise AutolabelError(
                f"--root {storage.redact(self.root)} does not contain the source "
                f"{storage.redact(source)}"
            )
        root = found[0]
        self._refuse_other_reading(source, ways, root, self.root or base or source)
        if self.root and not _is_same(root.address, self.root):
            why = f"was named below {root.address}, and not below --root {self.root}"
            raise refused(source, why, "leave --root out")
        return SourceNames(self, source, format_, root, ways)

    def _refuse_other_reading(
        self, source: str, ways: Sequence[Way], root: Root, base: str
    ) -> None:
        """Refuse what was read in another format, and a dataset of tokens by itself or in a folder.

        Its scenes have other names by itself than in a folder of datasets.
        """
        others = list(self._inside(ways))
        if root not in self.known:
            for around in (way[:depth] for way in ways for depth in range(len(way))):
                others += self._roots.get(around, ())
        elif not _is_same(root.address, base):
            others.append(root)
        for other in others:
            is_apart = other.format == root.format == "nuscenes" and not _is_same(
                other.address, source
            )
            if other in self.known and (other.format != root.format or is_apart):
                read = other.format if is_apart else f"{other.format}, not {root.format}"
                why = f"lies in {other.address}, or holds it, which was named as of --format {read}"
                raise refused(source, why, "give that one, as before")

    def _inside(self, ways: Iterable[Way]) -> Iterator[Root]:
        for way in ways:
            for inner in self._root_ways[bisect_left(self._root_ways, way) :]:
                if inner[: len(way)] != way:
                    break
                yield from self._roots[inner]


def _sequence_spellings(address: str) -> list[Way]:
    """Return the spellings of a sequence's address."""
    folder, reader, part = split_address(address)
    return [(*way, f"#{reader}={part}") if reader else way for way in spellings(folder)]


@dataclass
class SourceNames:
    """Names of the sequences of one source.

    Attributes:
        names: of the whole plan.
        given: the source.
        format: name of its reader, or that of folders.
        root: the one that contains it.
        ways: spellings of the source, without the ending of a file.

    """

    names: Names
    given: str
    format: str
    root: Root
    ways: tuple[Way, ...]

    @property
    def source(self) -> str:
        """The source, spelled as its root: its frames then have the same addresses as before."""
        if not storage.is_local(self.given):
            return self.given
        path, root = storage.local_path(self.given), storage.local_path(self.root.address)
        if path.is_relative_to(root) or not path.resolve().is_relative_to(root.resolve()):
            return self.given
        return str(root / path.resolve().relative_to(root.resolve()))

    def name_of(self, listed: ListedSequence, wanted: str = "", *, picked: bool = False) -> str:
        """Return the name of a sequence of the source, and note a new root.

        Args:
            listed: the sequence.
            wanted: the name that the user asks for, or "".
            picked: its pictures were named one by one, so that there may be more.

        Raises:
            NamedOtherwiseError: its frames have another name, which the source cannot give.

        """
        known = self.names.named(listed.address)
        root, way = self._below_root(listed)
        camera = not known and self._is_camera(listed)
        is_known = root in self.names.known
        if camera:
            around = posixpath.dirname(listed.address.rstrip("/"))
            whole = self.names.named(around) or (root if is_known and way else None)
            if whole:
                why = f"is a camera of what {whole.address} names"
                raise refused(self.given, why, self._instead(whole, way))
        self._refuse_named_cameras(listed)
        name = known.name if known else _id(root, way, in_full=listed.is_called_in_full)
        if wanted and wanted != name and (known or is_known):
            where = storage.redact(split_address(listed.address)[0])
            raise NamedOtherwiseError(
                f"--sequence {wanted}: {where} is called {name} in this --out, and its frames "
                "would be labeled twice; leave --sequence out, or choose another --out"
            )
        if not known and not is_known:
            by_itself = wanted or camera or picked
            own = Root(listed.address, self.format, wanted or name)
            self.names.note(own if by_itself else root)
        return wanted or name

    def _below_root(self, listed: ListedSequence) -> tuple[Root, Way]:
        """Return the oldest root that contains a sequence, and the way down to it."""
        own = listed.names[:1] == self.ways[0][-1:] and self.format == FOLDERS.name
        includes_file = own and suffix_of(self.given.rstrip("/")) in _MEDIA
        around = [way[:-1] if includes_file else way for way in self.ways]
        found = self.names.around([(*way, *listed.names) for way in around], self.format)
        root, way = found or (self.root, listed.names)
        if suffix_of(root.address) in _MEDIA and listed.names:
            way = listed.names[len(listed.names) - len(way) - 1 :]
        return root, way

    def _is_camera(self, listed: ListedSequence) -> bool:
        """Whether the source is one camera of the sequence in the folder around it."""
        is_whole = listed.address.rstrip("/") == self.source.rstrip("/")
        is_one = is_whole and set(listed.cameras) == {""} and self.format == FOLDERS.name
        return is_one and is_camera_name(self.ways[0][-1])

    def _refuse_named_cameras(self, listed: ListedSequence) -> None:
        for camera, pictures in listed.cameras.items():
            file = pictures[0]
            address = file.uri
            if suffix_of(file.name) not in VIDEO_SUFFIXES:
                address = file.uri.rpartition("/")[0]
            other = self.names.named(address) if camera else None
            if other and other.address != listed.address:
                why = f"holds {other.address}, labeled by itself as {other.name}"
                raise refused(self.given, why, "give what else is in it")

    def _instead(self, root: Root, way: Way) -> str:
        words = f"give {root.address} as the source, as before"
        if len(way) > 1:
            glob = sequence_id_of(root.address, way[:-1])
            words += f" (backfill and nightly take a part of it with --sequences '{glob}*')"
        return words


def refused(source: str, why: str, advice: str) -> NamedOtherwiseError:
    """Return the error for a source whose frames have names that it cannot give."""
    return NamedOtherwiseError(
        storage.redact(
            f"source {source} {why}: its frames would be labeled a second time, under another "
            f"name; {advice}, or choose another --out"
        )
    )


def _id(root: Root, way: Way, *, in_full: bool) -> str:
    suffix = suffix_of(root.address)
    if way and (in_full or (suffix in _MEDIA and len(way) == 1)):
        return safe_name("/".join(way))
    is_file = suffix in _MEDIA or suffix in BY_SUFFIX
    return sequence_id_of(posixpath.splitext(root.address)[0] if is_file else root.address, way)


def root_of_both(one: str, other: str) -> str:
    """Return the folder around two addresses, "" for none."""
    scheme, mark, here = one.rpartition("://")
    other_scheme, _, there = other.rpartition("://")
    both = posixpath.commonpath([here, there]) if scheme == other_scheme else ""
    return f"{scheme}{mark}{both}" if both.strip("/") else ""
