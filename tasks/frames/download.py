"""Frames and videos into the local cache: bounded, retried, checked, whole or not at all.

The cache is addressed by content (address and etag), so that a file in it never grows stale, and
two processes that fetch the same file write the same bytes to the same name. Names end with a
digest of the bytes. Local files are used where they lie.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from sam2_core.cache import cache_folder
from sam2_core.machine_errors import as_machine_error, is_host_full, is_machine_error
from tasks.frames import cached
from tasks.frames.cached import CacheError
from tasks.frames.identity import CHANGED_SINCE_LISTED, Part, part_of, stat_version
from tasks.frames.listing import stat_file
from tasks.frames.transfer import transfer
from tasks.store import storage
from tasks.store.retry import CutBodyError, is_transient, with_retries
from tasks.types import FrameFailure, FrameRef

CONNECTIONS = 16


class ChangedError(storage.StorageError):
    """A file is no longer the one that was listed: its labels would be kept under its old name."""

    def __init__(self, uri: str) -> None:
        super().__init__(f"{storage.redact(uri)}: {CHANGED_SINCE_LISTED}")


def download(
    frames: Iterable[FrameRef],
    on_frame: Callable[[FrameRef | FrameFailure], object] = lambda _: None,
) -> list[FrameRef | FrameFailure]:
    """Fetch frames, several at once.

    Args:
        frames: as `list_frames` or `expand_videos` gave them.
        on_frame: called with each outcome, in order.

    Returns:
        In the order given, each frame with `local_path`, or why it could not be had.

    Raises:
        StorageError: the cache itself cannot be written (no space, no permission).
        MachineError: a disk of this machine fails, or memory or file handles are at an end.

    """
    outcomes = []
    with ThreadPoolExecutor(CONNECTIONS, "download") as pool:
        for outcome in pool.map(fetch_frame, frames):
            on_frame(outcome)
            outcomes.append(outcome)
    return outcomes


def fetch_frame(frame: FrameRef) -> FrameRef | FrameFailure:
    """Fetch one frame, as `download`."""
    if frame.problem:
        return FrameFailure.of(frame, "list", frame.problem)
    if frame.local_path:
        return frame
    part = part_of(frame.uri)
    try:
        if part is not None and part.is_member:
            return replace(frame, local_path=str(_member(frame, part)))
        path = fetch(frame.uri, frame.etag, frame.size_bytes)
        return replace(frame, local_path=str(path), size_bytes=path.stat().st_size)
    except CacheError:
        raise
    except (storage.StorageError, OSError, MemoryError) as error:
        # What a server says of one file is that file's; a disk of this machine fails them all.
        of_machine = is_machine_error if storage.is_local(frame.uri) else is_host_full
        if of_machine(error):
            raise as_machine_error(error, f"fetching {storage.redact(frame.uri)}") from error
        told = isinstance(error, storage.StorageError)
        return FrameFailure.of(
            frame, "download", str(error) if told else f"cannot read it: {error}",
            busy=is_transient(error),
        )  # fmt: skip


def _member(frame: FrameRef, part: Part) -> Path:
    """Take a picture out of its archive: the bytes at which its address points."""
    path = find_cached(frame.uri, frame.etag)
    if path and path.stat().st_size == frame.size_bytes:
        return path
    archive = fetch(part.file_uri, frame.etag, intact=True)
    with storage.explained("read", part.file_uri), archive.open("rb") as file:
        file.seek(part.number)
        data = file.read(frame.size_bytes)
        version = stat_version(os.fstat(file.fileno()))
    if storage.is_local(part.file_uri) and frame.etag not in {"", version}:
        raise ChangedError(part.file_uri)
    if len(data) < frame.size_bytes:
        raise CutBodyError(f"{part.stream}: {len(data)} bytes are there of {frame.size_bytes}")
    return keep_cached(frame.uri, frame.etag, data)


def keep_cached(uri: str, etag: str, data: bytes) -> Path:
    """Write what is at an address into the cache; returns its path.

    Raises:
        CacheError: it cannot be written.

    """
    folder, stem, suffix = _place(uri, etag)
    path = folder / cached.name_of(stem, data, suffix)
    try:
        storage.write_bytes(str(path), data)
    except storage.StorageError as error:
        raise CacheError(str(error)) from error
    return path


def find_cached(uri: str, etag: str) -> Path | None:
    """Return where the content of an address lies in the cache, if it does."""
    folder, stem, _ = _place(uri, etag)
    return cached.find(folder, stem)


def _place(uri: str, etag: str) -> tuple[Path, str, str]:
    """Folder, beginning and end of the name of a file in the cache; the extension is kept."""
    digest = hashlib.sha256(f"{uri}\n{etag}".encode()).hexdigest()
    part = part_of(uri)
    uri = part.path if part else uri
    path = uri.partition("?")[0] if uri.startswith(("http://", "https://")) else uri
    name = path.rsplit("/", 1)[-1]
    suffix = Path(name).suffix.lower() if len(Path(name).suffix) <= 6 else ""
    return cache_folder() / "frames" / digest[:3], digest[3:40], suffix


def fetch(uri: str, etag: str, size_bytes: int = 0, *, intact: bool = False) -> Path:
    """Return a local path with the content of an address; a cached file costs no request.

    Args:
        uri: fsspec URL of a file.
        etag: its version, as listed; "" for whatever is there.
        size_bytes: its size as listed, 0 when unknown; other sizes are refused.
        intact: read a cached file to see that it is as it came, else fetch it again. Pictures are
            checked where they are decoded (`tasks.frames.images`).

    Raises:
        StorageError: it cannot be had (after retries where they help).
        ChangedError: another version is there by now.
        CacheError: the cache cannot be written.

    """
    if storage.is_local(uri):
        path = storage.local_path(uri)
        with storage.explained("read", uri):
            if etag not in {"", stat_version(path.stat())}:
                raise ChangedError(uri)
        return path
    known = find_cached(uri, etag)
    as_listed = known and size_bytes in {0, known.stat().st_size}
    if known and as_listed and (not intact or cached.is_intact_file(known)):
        return known
    folder, stem, suffix = _place(uri, etag)
    temporary = storage.temporary_beside(folder / stem)
    try:
        _prepare(temporary)
        with storage.explained("download", uri):
            what = f"downloading {storage.redact(uri)}"
            told = with_retries(lambda: _get(uri, temporary, etag, size_bytes), what)
        if etag and not told:
            now = stat_file(uri)
            if now is None or now.etag != etag:
                raise ChangedError(uri)
        if known:
            known.unlink(missing_ok=True)
        path = folder / cached.name_of_file(stem, temporary, suffix)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path


def _prepare(temporary: Path) -> None:
    try:
        with storage.explained("write", str(temporary)):
            temporary.parent.mkdir(parents=True, exist_ok=True)
            temporary.touch()
    except storage.StorageError as error:
        raise CacheError(f"{error} (AUTOLABEL_CACHE names another cache folder)") from error


def _get(uri: str, target: Path, etag: str, size_bytes: int) -> bool:
    """Bring a file; returns whether the server said that its version is the one listed."""
    try:
        versions = transfer(uri, target, size_bytes)
    except OSError as error:
        if error.errno not in storage.NO_SPACE:
            raise
        raise CacheError(
            f"cannot write {target}: no space left; free some or name another cache folder "
            "by AUTOLABEL_CACHE"
        ) from error
    if etag and versions and etag not in versions:
        raise ChangedError(uri)
    size = target.stat().st_size
    if size_bytes and size != size_bytes:
        raise CutBodyError(f"{size} bytes arrived of {size_bytes}")
    return bool(versions)
