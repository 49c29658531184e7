"""Where this machine may read the frames that labels name.

Labels name their frames by address, and who may write into a storage can write any address into
them: a key of the user who exports, or a server that only this machine reaches. So a frame is read
only below what was labeled on this machine, or what a command names as a source. Both are
remembered in the cache, out of reach of who writes labels.
"""

import functools
import hashlib
from collections.abc import Collection, Iterable
from pathlib import Path

from sam2_core.cache import cache_folder, cannot_write, write_whole
from sam2_core.types import AutolabelError
from tasks.frames.discover import beginning_of, is_pattern
from tasks.frames.identity import part_of, plain_spelling
from tasks.store import storage
from tasks.store.addresses import checked
from tasks.types import Footage


class UnknownSourceError(AutolabelError):
    """Labels name frames that lie below no source that this machine knows: nothing was read."""


def remember_sources(sources: Iterable[str]) -> None:
    """Remember that frames may be read below these.

    Args:
        sources: folders and files as a user names them, patterns too.

    Raises:
        AutolabelError: one holds a password, or the cache cannot be written.

    """
    for source in map(checked, sources):
        whole = (beginning_of(source) if is_pattern(source) else "") or source
        _remember(plain_spelling(storage.canonical(whole)).rstrip("/"))


def remember_frames(frames: Iterable[Footage]) -> None:
    """Remember the folders of frames that are labeled on this machine.

    Raises:
        AutolabelError: the cache cannot be written.

    """
    for folder in {_file_uri(frame.uri).rpartition("/")[0] for frame in frames}:
        if not _mark(folder).exists():
            _remember(folder)


def _remember(address: str) -> None:
    mark = _mark(address)
    try:
        write_whole(mark, address)
    except OSError as error:
        raise cannot_write(mark, error) from error


def _mark(address: str) -> Path:
    return cache_folder() / "sources" / hashlib.sha256(address.encode()).hexdigest()[:40]


def _file_uri(uri: str) -> str:
    """Address of the file that a frame is, or is in."""
    part = part_of(uri)
    return plain_spelling(part.file_uri if part else uri)


def refuse_unknown(frames: Iterable[Footage], known: Collection[str] = ()) -> None:
    """Refuse frames that may not be read here.

    Args:
        frames: as labels name them.
        known: addresses of frames that are known from elsewhere.

    Raises:
        UnknownSourceError: one lies below no source.

    """

    @functools.cache
    def is_source(address: str) -> bool:
        return _mark(address).exists()

    for frame in frames:
        names = _file_uri(frame.uri).split("/")
        around = range(len(names), 0, -1)
        if frame.uri not in known and not any(
            is_source("/".join(names[:depth]))
            for depth in around
            if not _leads_away(frame.uri, names[depth:])
        ):
            folder = storage.redact("/".join(names[:-1]))
            raise UnknownSourceError(
                f"its frames are said to be in {folder}, and this machine has labeled nothing from "
                "there: nothing was read; where they are, name that folder with --source"
            )


def _leads_away(uri: str, names: list[str]) -> bool:
    """Whether the way below a source leads out of it: up, or by fsspec's "::" to another server."""
    return ".." in names or (not storage.is_local(uri) and "::" in "/".join(names))
