"""Files in the cache: each has a digest of its content in its name, and is checked by it when read.

So a bit that a disk flips, or a file that somebody cut, is no answer: it is made again. Frames that
were taken out of a video or a recording lie in a folder whose name holds what decoded them: another
version of the code or of a library never gets the pixels of this one.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import re
from pathlib import Path

from sam2_core.cache import cache_folder
from tasks.frames.decisive_code import decoding_digest
from tasks.store import storage

_NAMED = re.compile(r"-([0-9a-f]{16})(?:\.\w+)?$")


class CacheError(storage.StorageError):
    """The cache folder cannot be written: every file would fail."""


def name_of(stem: str, content: bytes | Path, suffix: str) -> str:
    """Return the name of a file with this content, or with that of a file."""
    return f"{stem}-{_digest(content)}{suffix}"


def write(path: Path, data: bytes) -> None:
    """Write a file.

    Raises:
        CacheError: it cannot be written.

    """
    try:
        storage.write_bytes(str(path), data)
    except storage.StorageError as error:
        raise CacheError(str(error)) from error


def find(folder: Path, stem: str) -> Path | None:
    """Return the file of this stem, whatever its content, if it is there."""
    try:
        return next((one for one in folder.iterdir() if one.name.startswith(f"{stem}-")), None)
    except OSError:
        return None


def is_cached(path: Path) -> bool:
    """Whether a path is that of a file in the cache, with its digest in its name."""
    return path.is_relative_to(cache_folder()) and _NAMED.search(path.name) is not None


def is_intact(path: Path, data: bytes) -> bool:
    """Whether the content of a file in the cache is that of its name."""
    named = _NAMED.search(path.name)
    return named is not None and named[1] == _digest(data)


def is_intact_file(path: Path) -> bool:
    """Whether the content of a large file in the cache is that of its name; it is read once."""
    named, stat = _NAMED.search(path.name), path.stat()
    return named is not None and named[1] == _known_digest(path, stat.st_size, stat.st_mtime_ns)


def take_intact(path: Path) -> bool:
    """Whether a file of the cache is there and as it came; a damaged one is removed.

    For those who use files that nobody decodes, such as exports: what is removed is made again.

    Raises:
        CacheError: it can be neither read nor removed.

    """
    try:
        if is_intact_file(path):
            return True
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise CacheError(f"{path}: {error.strerror}") from error
    return False


@functools.lru_cache(maxsize=256)
def _known_digest(path: Path, _size_bytes: int, _changed_ns: int) -> str:
    return _digest(path)


def _digest(content: bytes | Path) -> str:
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
        write(self.folder / name, data)
        return name

    def write_record(self, name: str, rows: list[Row], count: int) -> None:
        """Remember what an extraction found: rows, and how many frames there are."""
        record = {"count": count, "frames": rows}
        write(self.folder / f"{name}.json", json.dumps(record).encode())

    def read_record(self, name: str) -> tuple[list[Row], int] | None:
        """Return what an earlier extraction found, if all its files are still there."""
        try:
            found = json.loads((self.folder / f"{name}.json").read_text())
            rows: list[Row] = [(n, f, (h, w), *rest) for n, f, (h, w), *rest in found["frames"]]
            sizes = {path.name: path.stat().st_size for path in self.folder.iterdir()}
            whole = all(not file or sizes.get(file) == size for _, file, _, size, _, _ in rows)
            return (rows, int(found["count"])) if whole else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
