"""Names of sequences: one drive has one name in a storage.

A sequence is named by its path below the root of the storage. The first command records the root:
`--root`, else the folder around its sources (of a pattern, the folder before the wildcard; of a
single source that is a drive itself, the folder that it lies in). What does not lie below the root,
or is read in another format, would get a second name, and is refused.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import unquote

from sam2_core.types import AutolabelError
from tasks.frames.identity import (
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    is_camera_name,
    is_wrapper,
    safe_name,
    sequence_id_of,
    suffix_of,
)
from tasks.frames.listing import ListedSequence
from tasks.frames.readers.choice import BY_SUFFIX, FOLDERS
from tasks.store import storage
from tasks.store.roots import Root

Way = tuple[str, ...]  # names of folders, from the outer one down
# Files whose sequences are named as from the folder around: a walk through it finds them, too.
_MEDIA = IMAGE_SUFFIXES | VIDEO_SUFFIXES | {".tar", ".mcap"}
_FOLDERS_TOO = frozenset({"tar", "mcap"})


class NamedOtherwiseError(AutolabelError):
    """Frames that may have a name already would be labeled once more, under another one."""


def _way_below(address: str, root: str) -> Way | None:
    """Return the names of folders from a root down to an address; None where it is not below."""
    way, around = _names_in(address), _names_in(root)
    return way[len(around) :] if way[: len(around)] == around else None


def _names_in(address: str) -> Way:
    scheme, _, rest = storage.canonical(address).rpartition("://")
    names = filter(None, rest.split("/"))
    return (scheme, *(map(unquote, names) if storage.is_web(address) else names))


def folder_of(source: str) -> str:
    """Return the folder from which the sequences of a source are named; a list of frames itself."""
    return posixpath.dirname(source.rstrip("/")) if suffix_of(source) in _MEDIA else source


def _folder_around(folders: Sequence[str]) -> str:
    """Return the folder around folders; of one, itself.

    Raises:
        AutolabelError: there is none.

    """
    ways = [storage.canonical(folder).rpartition("://") for folder in folders]
    scheme, mark, _ = ways[0]
    is_one_place = all(way[0] == scheme for way in ways)
    around = posixpath.commonpath([way[2] for way in ways]) if is_one_place else ""
    if len(folders) > 1 and not around.strip("/"):
        raise AutolabelError(
            f"{storage.redact(folders[0])} and {storage.redact(folders[-1])} have no folder in "
            "common to name sequences from: give each an --out of its own"
        )
    return f"{scheme}{mark}{around}" or "/"


class Names:
    """Names of the sequences of a plan.

    Attributes:
        known: the root that the storage has recorded; None before its first command.
        root: that of this plan, which is to be recorded before anything is labeled; without an
            address until a source was looked at.

    """

    def __init__(self, known: Root | None = None, asked: str | None = None) -> None:
        """Begin with the root that is recorded, if any, and the one that is asked for, if any.

        Raises:
            NamedOtherwiseError: the recorded root is another one, and is still there.

        """
        self.known, self.root, self._asked = known, known or Root(""), asked
        self._may_rise = False  # to the folder around, if the first sequence is all of the root
        if known and asked and _way_below(asked, known.address) != ():
            if storage.ask("open", known.address, lambda fs, path: fs.exists(path)):
                raise _refused(f"--root {asked}", f"is not {known.address}", "leave --root out")
            self.root = replace(known, address=storage.canonical(asked))

    def check_source(
        self,
        source: str,
        format_: str,
        folders: Sequence[str] = (),
        name: str = "",
        *,
        is_walked: bool = True,
    ) -> None:
        """Look at a source before it is listed.

        Args:
            source: a folder or file, no pattern.
            format_: name of its reader.
            folders: those that all sources of the plan are named from.
            name: that the user asks for, of the only sequence; "" for none.
            is_walked: all that is in a folder is labeled, not some pictures.

        Raises:
            NamedOtherwiseError: its sequences have names that this source cannot give, or may have.

        """
        format_ = FOLDERS.name if format_ in _FOLDERS_TOO else format_
        if not self.root.address:
            address = self._asked or (source if name else _folder_around(folders or [source]))
            self._may_rise = not (self._asked or name or suffix_of(address) in BY_SUFFIX)
            self.root = Root(storage.canonical(address), format_, name)
        root = self.root
        way = _way_below(source, root.address)
        if way is None or (root.name and way):
            where = f"is not {'' if root.name else 'below '}{root.address}"
            moved = "if what is there has moved, say with --root where it is now"
            both = ""
            with contextlib.suppress(AutolabelError):
                both = _folder_around([source, root.address])
            raise _refused(f"source {source}", where, moved if self.known else "", both)
        if format_ != root.format and not self.known:
            root = self.root = replace(root, format="")
        if root.format not in {"", format_}:
            why = f"is read as --layout {format_}, and {root.address} as {root.format}"
            raise _refused(f"source {source}", why, f"give --layout {root.format}")
        is_wider = not root.source or _way_below(root.source, source) is not None
        if is_walked and is_wider and suffix_of(source) not in {*_MEDIA, *BY_SUFFIX}:
            self.root = replace(root, source=storage.canonical(source))

    def name_of(
        self, source: str, listed: ListedSequence, asked: str = ""
    ) -> tuple[str, tuple[str, ...]]:
        """Return the name of a sequence, and names under which its frames may have labels, too.

        Those are the names of its cameras as sources of their own; and where it is such a camera,
        the name of the whole sequence.

        Args:
            source: where it was found; `check_source` has seen it.
            listed: the sequence.
            asked: the name that the user asks for, or "".

        Raises:
            NamedOtherwiseError: another name is asked for than it has in the storage.

        """
        way = self._way_to(source, listed)
        if self._may_rise and all(map(is_wrapper, way)):
            self.root = replace(self.root, address=_folder_around_drive(self.root.address))
            way = self._way_to(source, listed)
        self._may_rise = False
        name = self.root.name or self._called(way, in_full=listed.is_called_in_full)
        if asked and asked != name:
            raise NamedOtherwiseError(
                f"--sequence {asked}: {storage.redact(source)} is called {name} in this --out, and "
                "its frames would be labeled twice; leave --sequence out, or choose another --out"
            )
        others = [(*way, camera) for camera in listed.cameras if camera]
        is_whole = listed.address.rstrip("/") == source.rstrip("/")
        if is_whole and not others and way and is_camera_name(way[-1]):
            others = [way[:-1]]
        return name, tuple(map(self._called, others))

    def _way_to(self, source: str, listed: ListedSequence) -> Way:
        """Return the names from the root down to a sequence."""
        way = _way_below(source, self.root.address) or ()
        stem, suffix = posixpath.splitext(way[-1]) if way else ("", "")
        if suffix.lower() in {*BY_SUFFIX, *VIDEO_SUFFIXES}:
            # Of a video, an archive or a recording the names begin with its own.
            way = way[:-1] if listed.names[:1] == (stem,) else (*way[:-1], stem)
        return (*way, *listed.names)

    def _called(self, way: Way, *, in_full: bool = False) -> str:
        if way and in_full:
            return safe_name("/".join(way))
        stem, suffix = posixpath.splitext(self.root.address)
        return sequence_id_of(stem if suffix.lower() in BY_SUFFIX else self.root.address, way)


def _refused(what: str, why: str, advice: str, both: str = "") -> NamedOtherwiseError:
    return NamedOtherwiseError(
        storage.redact(
            f"{what} {why}, from which this --out names its sequences: frames might be labeled a "
            f"second time, under other names; {advice}{advice and ', or '}choose another --out"
            + (f" (for both with --root {both})" if both else "")
        )
    )


def _folder_around_drive(address: str) -> str:
    """Return the folder around the folder of a drive; a bucket has none."""
    scheme, mark, path = address.rpartition("://")
    folders = path.rstrip("/").split("/")
    while len(folders) > 1 and is_wrapper(folders.pop()):
        pass
    return f"{scheme}{mark}{'/'.join(folders)}" or "/"
