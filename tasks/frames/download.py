"""Frames and videos into the local cache: bounded, retried, checked, whole or not at all.

The cache is addressed by content (address and etag), so that a file in it never grows stale, and
two processes that fetch the same file write the same bytes to the same name. Names end with a
digest of the bytes, which is checked whenever a file is asked for: a bit that a disk flips, or a
file that somebody cut, is no answer; it is made again. Local files are used where they lie.

Frames that were taken out of a video or a recording lie in a folder whose name holds what decoded
them: another version of the code or of a library never gets the pixels of this one.
"""

import contextlib
import functools
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from fsspec.asyn import sync
from fsspec.callbacks import Callback

from sam2_core.cache import cache_folder
from sam2_core.machine_errors import as_machine_error, is_host_full, is_machine_error
from tasks.frames.decoding import decoding_digest
from tasks.frames.identity import CHANGED_SINCE_LISTED, Part, part_of, server_version, stat_version
from tasks.frames.listing import stat_file
from tasks.store import storage
from tasks.store.retry import CutBodyError, is_transient
from tasks.types import FrameFailure, FrameRef

_NAMED = re.compile(r"-([0-9a-f]{16})(?:\.\w+)?$")


class CacheError(storage.StorageError):
    """The cache folder cannot be written: every file would fail."""


def name_of(stem: str, content: bytes | Path, suffix: str) -> str:
    """Return the name of a file with this content, or with that of a file."""
    return f"{stem}-{_content_digest(content)}{suffix}"


def _write_file(path: Path, data: bytes) -> None:
    """Write a file into the cache.

    Raises:
        CacheError: it cannot be written.

    """
    try:
        storage.write_bytes(str(path), data)
    except storage.StorageError as error:
        raise CacheError(str(error)) from error


def take_intact(path: Path) -> bool:
    """Whether a file of the cache is there and as it came; a damaged one is removed.

    Raises:
        CacheError: it can be neither read nor removed.

    """
    named = _NAMED.search(path.name)
    try:
        stat = path.stat()
        if named and named[1] == _known_digest(path, stat.st_size, stat.st_mtime_ns):
            return True
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise CacheError(f"{path}: {error.strerror}") from error
    return False


@functools.lru_cache(maxsize=256)
def _known_digest(path: Path, _size_bytes: int, _changed_ns: int) -> str:
    return _content_digest(path)


def _content_digest(content: bytes | Path) -> str:
    with content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


# Number, name of its file ("" for none), (height, width) or (0, 0) where unknown, bytes, time in
# nanoseconds or None, why there is no picture.
Row = tuple[int, str, tuple[int, int], int, int | None, str]


class ExtractedFrames:
    """Frames of a video, or of a topic of a recording, in the cache.

    Args:
        uri: of the file.
        etag: its version.
        stream: the topic, "" for a video.

    """

    def __init__(self, uri: str, etag: str, stream: str = "") -> None:
        digest = hashlib.sha256(f"{uri}\n{stream}\n{etag}".encode()).hexdigest()
        self.folder = cache_folder() / "videos" / decoding_digest() / digest[:2] / digest[2:40]

    def files(self) -> dict[int, Path]:
        """Files of the frames that are there, by number."""
        found = (path for path in self.folder.glob("*") if _NAMED.search(path.name))
        return {int(path.name.partition("-")[0]): path for path in found}

    def keep(self, number: int, data: bytes, suffix: str) -> str:
        """Write the file of a frame; returns its name.

        Raises:
            CacheError: it cannot be written.

        """
        name = name_of(f"{number:06d}", data, suffix)
        _write_file(self.folder / name, data)
        return name

    def write_record(self, name: str, rows: list[Row], count: int) -> None:
        """Remember what an extraction found: rows, and how many frames there are."""
        record = {"count": count, "frames": rows}
        _write_file(self.folder / f"{name}.json", json.dumps(record).encode())

    def read_record(self, name: str) -> tuple[list[Row], int] | None:
        """Return what an earlier extraction found, if all its files are there and undamaged."""
        try:
            found = json.loads((self.folder / f"{name}.json").read_text())
            rows: list[Row] = [(n, f, (h, w), *rest) for n, f, (h, w), *rest in found["frames"]]
            whole = all(take_intact(self.folder / file) for _, file, *_ in rows if file)
            return (rows, int(found["count"])) if whole else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


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
    with ThreadPoolExecutor(storage.CONNECTIONS, "download") as pool:
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
    archive = fetch(part.file_uri, frame.etag)
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
    folder, stem, suffix = _cache_name(uri, etag)
    path = folder / name_of(stem, data, suffix)
    _write_file(path, data)
    return path


def find_cached(uri: str, etag: str) -> Path | None:
    """Return where the content of an address lies in the cache, if it does and is undamaged.

    Raises:
        CacheError: a damaged file cannot be removed.

    """
    folder, stem, _ = _cache_name(uri, etag)
    try:
        path = next((file for file in folder.iterdir() if file.name.startswith(f"{stem}-")), None)
    except OSError:
        return None
    return path if path and take_intact(path) else None


def _cache_name(uri: str, etag: str) -> tuple[Path, str, str]:
    """Folder, beginning and end of the name of a file in the cache; the extension is kept."""
    digest = hashlib.sha256(f"{uri}\n{etag}".encode()).hexdigest()
    part = part_of(uri)
    uri = part.path if part else uri
    path = uri.partition("?")[0] if uri.startswith(("http://", "https://")) else uri
    name = path.rsplit("/", 1)[-1]
    suffix = Path(name).suffix.lower() if len(Path(name).suffix) <= 6 else ""
    return cache_folder() / "frames" / digest[:3], digest[3:40], suffix


def fetch(uri: str, etag: str, size_bytes: int = 0) -> Path:
    """Return a local path with the content of an address; a cached file costs no request.

    Args:
        uri: fsspec URL of a file.
        etag: its version, as listed; "" for whatever is there.
        size_bytes: its size as listed, 0 when unknown; other sizes are refused.

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
    if known and size_bytes in {0, known.stat().st_size}:
        return known
    folder, stem, suffix = _cache_name(uri, etag)
    temporary = storage.temporary_beside(folder / stem)
    try:
        _prepare(temporary)
        is_sure = storage.ask("download", uri, lambda *_: _get(uri, temporary, etag, size_bytes))
        if etag and not is_sure:
            now = stat_file(uri)
            if now is None or now.etag != etag:
                raise ChangedError(uri)
        if known:
            known.unlink(missing_ok=True)
        path = folder / name_of(stem, temporary, suffix)
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


_PIECE_BYTES = 1 << 20
_MOST_UNLISTED_BYTES = 1 << 34  # of a file whose size no listing tells


def transfer(uri: str, target: Path, size_bytes: int) -> frozenset[str]:
    """Bring a file into a local one, by one request where that is sure to be of one version.

    Args:
        uri: fsspec URL of a file that is not on this machine.
        target: is overwritten.
        size_bytes: as listed, 0 when unknown; nothing beyond it is written.

    Returns:
        The versions, as listings tell them, that may stand for these bytes; empty where the server
        says nothing: then only a look at the file afterwards tells whether it has changed.

    Raises:
        StorageError: there are more bytes than listed.
        Whatever the filesystem raises.

    """
    limit = _Limit(uri, size_bytes)
    fs, path = storage.filesystem(uri)
    if uri.startswith(("http://", "https://")):
        return frozenset(sync(fs.loop, _transfer_http, fs, path, target, limit))
    if storage.is_s3(uri) and size_bytes <= fs.default_block_size:
        return frozenset(sync(fs.loop, _transfer_s3, fs, path, target, limit))
    # S3: a large file in several parts at a time.
    fs.get_file(path, str(target), callback=limit)
    return frozenset()


class _Limit(Callback):  # type: ignore[misc]
    """Counts the bytes that arrive, and ends the transfer when they are too many."""

    def __init__(self, uri: str, size_bytes: int) -> None:
        super().__init__()
        self._uri, self.listed = uri, size_bytes
        self._most = size_bytes or _MOST_UNLISTED_BYTES

    def set_size(self, size: int | None) -> None:
        """Hear how many bytes are announced."""
        if (size or 0) > self._most:
            listed = "that were listed" if self.listed else "that are taken without a listed size"
            raise storage.StorageError(
                f"cannot download {storage.redact(self._uri)}: it has more than the {self._most} "
                f"bytes {listed}"
            )

    def relative_update(self, inc: int = 1) -> None:
        """Hear of more bytes."""
        self.value += inc
        self.set_size(self.value)


async def _transfer_s3(fs: Any, path: str, target: Path, limit: _Limit) -> set[str]:
    bucket, key, _ = fs.split_path(path)
    answer = await fs._call_s3("get_object", Bucket=bucket, Key=key)
    try:
        with target.open("wb") as file:
            while piece := await answer["Body"].read(_PIECE_BYTES):
                limit.relative_update(len(piece))
                file.write(piece)
    finally:
        answer["Body"].close()
    return {server_version(answer, 0)} if answer.get("ETag") else set()


async def _transfer_http(fs: Any, path: str, target: Path, limit: _Limit) -> set[str]:
    session = await fs.set_session()
    async with session.get(fs.encode_url(path)) as answer:
        fs._raise_not_found_for_status(answer, path)
        with target.open("wb") as file:
            async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                limit.relative_update(len(piece))
                file.write(piece)
        told = {name: answer.headers.get(name) for name in ("ETag", "Last-Modified")}
    # The time as well: there are servers that tell the etag with the body alone.
    return {server_version({name: text}, limit.listed) for name, text in told.items() if text}
