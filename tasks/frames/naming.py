"""Names of sequences beside what was labeled before: one drive has one name in a storage.

A sequence is called by its way from the oldest recorded root that contains it
(`tasks.store.roots`), whatever source it is found through; where none does, by its way from its
source, which is a new root. What cannot be named so is refused.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from dataclasses import dataclass, field

from tasks.frames.addresses import split_address
from tasks.frames.patterns import IMAGE_SUFFIXES, VIDEO_SUFFIXES, suffix_of, wildcard_free
from tasks.frames.readers.choice import FOLDERS
from tasks.frames.readers.protocol import Listed
from tasks.frames.refused_names import instead, refuse_other_name, refused, shown
from tasks.frames.source_names import is_camera_name, sequence_id_of
from tasks.frames.ways import Places, Way, is_file, parts_of, spellings, way_between, without_suffix
from tasks.store import storage
from tasks.store.roots import NOTHING, Recorded, Root
from tasks.types import SequenceRef

# What a walk through folders finds, too, and names alike.
_ALSO_IN_FOLDERS = frozenset({FOLDERS.name, "tar", "mcap"})
CAMERA, PICTURE, PICTURES = "camera", "picture", "pictures"  # see `Root.apart`


class Names:
    """How the sequences of one plan are called.

    Args:
        recorded: what is known, the oldest first.

    """

    def __init__(self, recorded: Recorded = NOTHING) -> None:
        self.recorded = recorded
        roots = recorded.roots
        self._roots = Places((root.address, root) for root in roots if not root.name)
        self._pinned = Places((split_address(root.address)[0], root) for root in roots if root.name)
        self._known = frozenset(roots)
        self._new: dict[Root, None] = {}

    @property
    def new(self) -> list[Root]:
        """What is to be recorded before anything is labeled."""
        return [root for root in self._new if root not in self._known]

    def add(self, root: Root) -> None:
        """Note a place at which names are made now."""
        self._new[root] = None

    def of(self, source: str, format_: str) -> SourceNames:
        """Say how the sequences of a source are called.

        Args:
            source: a folder or file, no pattern.
            format_: name of its reader.

        Raises:
            NamedOtherwiseError: they have other names by now, which the source alone cannot give.

        """
        places = spellings(source)
        format_ = FOLDERS.name if format_ in _ALSO_IN_FOLDERS else format_
        all_around = self._roots.around(places)
        around = next((one for one in all_around if one[1].format == format_), None)
        found = SourceNames(self, source, format_, *(around[1:] if around else (None, ())))
        for age, root, way in self._roots.inside(places):
            if around and age >= around[0]:  # it is younger, and names nothing in it
                break
            if way:
                if root.format != format_:
                    why = f"holds {root.address}, labeled by itself as of --format {root.format}"
                    raise refused(source, why, "give what else is in it")
                found.inner.setdefault(without_suffix(way), root)
        self._pin(found, places)
        if not around and not found.pinned and all_around:
            _, root, way = all_around[0]
            why = f"lies in {root.address}" if way else "has been labeled before"
            why += f", and was named as of --format {root.format}, not {format_}"
            raise refused(source, why, instead(root, way))
        whole = found.root or found.pin_around
        if suffix_of(source) in IMAGE_SUFFIXES and whole and (found.way or found.pin_around):
            raise refused(source, f"is a picture of what {whole.address} names", instead(whole, ()))
        return found

    def _pin(self, found: SourceNames, places: tuple[Way, ...]) -> None:
        """Find the sequences with names of their own in a source, and the one around it."""
        for _, root, way in self._pinned.inside(places):
            part = root.address.removeprefix(split_address(root.address)[0])
            found.pinned[way, part] = root
            if root.apart and (way or root.apart == PICTURES):
                raise refused(found.given, f"holds {shown(root)}", "give what else is in it")
        for _, root, way in self._pinned.around(places):
            if way:
                found.pin_around = root

    def of_pictures(self, folder: str, own: str, wanted: str, cameras: Collection[str]) -> str:
        """Return what a sequence is called whose pictures were named one by one.

        Args:
            folder: of the sequence.
            own: how it is called by itself.
            wanted: what it is to be called, or ""; other pictures of the folder may be called
                otherwise.
            cameras: its cameras, "" for that of a folder without.

        Raises:
            NamedOtherwiseError: the folder's own sequence has them, under another name.

        """
        of_camera = set(cameras) == {""} and is_camera_name(folder.rpartition("/")[2])
        sequence = SequenceRef(wanted or own, folder)
        known = self._known_of_pictures(folder, wanted, of_camera=of_camera)
        if known:
            refuse_other_name(sequence, known, wanted)
            return known
        apart = PICTURES if wanted else CAMERA if of_camera else ""
        self.add(Root(folder, FOLDERS.name, sequence.sequence_id, apart))
        return own

    def _known_of_pictures(self, folder: str, wanted: str, *, of_camera: bool) -> str:
        places = spellings(folder)
        for root in (one for _, one, way in self._pinned.around(places) if not way):
            if root.apart != PICTURES:
                return root.name
            if not wanted:
                raise refused(folder, f"holds {shown(root)}", "name other pictures")
        around = self._roots.around(places)
        if not around:
            return ""
        _, root, way = around[0]
        if root.format != FOLDERS.name or (of_camera and way):
            raise refused(folder, f"is a part of what {root.address} names", instead(root, way))
        return sequence_id_of(root.address, way)


@dataclass
class SourceNames:
    """How the sequences of one source are called.

    Attributes:
        names: of the whole plan.
        given: the source.
        format: name of its reader, or that of folders.
        root: the recorded one that contains the source, None if none does.
        way: from there to the source.
        inner: recorded roots in the source that are older, by the way to each without its suffix.
        pinned: sequences in the source whose names are recorded, by way and part of the address.
        pin_around: a named sequence that the source is a part of.
        noted: whether the source itself is to be recorded.

    """

    names: Names
    given: str
    format: str
    root: Root | None = None
    way: Way = ()
    inner: dict[Way, Root] = field(default_factory=dict)
    pinned: dict[tuple[Way, str], Root] = field(default_factory=dict)
    pin_around: Root | None = None
    noted: bool = False

    @property
    def source(self) -> str:
        """The source, spelled as what was given before: its frames then have the same addresses."""
        if self.root is None or not storage.is_local(self.given):
            return self.given
        if way_between(spellings(self.root.address)[:1], spellings(self.given)[:1]) is not None:
            return self.given
        return storage.join(self.root.address, *self.way) if self.way else self.root.address

    def settled(self, pattern: str, wanted: str, listed: Listed, own: str) -> str:
        """Return what a sequence of the source is called, and note what is new.

        Args:
            pattern: that the source comes from, or "".
            wanted: what it is to be called, or "".
            listed: the sequence.
            own: how its source calls it.

        Raises:
            NamedOtherwiseError: its frames have another name, which the source cannot give.

        """
        known = self._known_name(listed, own)
        sequence = SequenceRef(wanted or own, listed.address)
        if known:
            refuse_other_name(sequence, known, wanted)
            return known
        self._note(sequence, pattern, named=bool(wanted), camera=self._is_camera(listed))
        return own

    def _known_name(self, listed: Listed, own: str) -> str:
        """Return what a sequence was called before, "" for a new one."""
        if self.pinned and (root := self.pinned.get(self._place(listed.address))):
            return root.name
        around = self.root or self.pin_around
        if around and (self.way or self.pin_around) and self._is_camera(listed):
            why = f"is a camera of what {around.address} names"
            raise refused(self.given, why, instead(around, self.way))
        for depth in range(1, len(listed.names) + 1) if self.inner else ():
            if inner := self.inner.get(listed.names[:depth]):
                called = listed.names[depth - 1 if is_file(inner.address) else depth :]
                return sequence_id_of(inner.address, called)
        return own if self.root else ""

    def _is_camera(self, listed: Listed) -> bool:
        """Whether the source is but one camera, for whoever lists the folder around it."""
        if len(listed.names) > 1 or self.format != FOLDERS.name:
            return False
        place, _, _ = split_address(listed.address)
        name = place.rstrip("/").rpartition("/")[2]
        if suffix_of(name) in VIDEO_SUFFIXES:
            name = posixpath.splitext(name)[0]
        whole = place.rstrip("/") == self.source.rstrip("/")
        return whole and set(listed.cameras) == {""} and is_camera_name(name)

    def _place(self, address: str) -> tuple[Way, str]:
        folder, _, _ = split_address(address)
        way = folder.removeprefix(self.source.rstrip("/"))
        return parts_of(way, self.source), address.removeprefix(folder)

    def _note(self, one: SequenceRef, pattern: str, *, named: bool, camera: bool) -> None:
        """Remember what is to be recorded of a sequence whose name is new.

        Args:
            one: which.
            pattern: that the source comes from, or "".
            named: it was named by whoever gave the source.
            camera: the source is a camera for whoever lists the folder around.

        """
        apart = CAMERA if camera else ""
        if suffix_of(self.given) in IMAGE_SUFFIXES:
            apart = PICTURE
        base = wildcard_free(pattern) if pattern else self.given
        if named or apart or not base or (pattern and self.format != FOLDERS.name):
            self.names.add(Root(one.frames_uri, self.format, one.sequence_id, apart))
        elif not self.noted:
            self.names.add(Root(storage.absolute(storage.canonical(base)), self.format))
            self.noted = True
