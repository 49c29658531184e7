"""Files in the cache: each has a digest of its content in its name, and is checked by it when read.

So a bit that a disk flips, or a file that somebody cut, is no answer: it is made again.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

from sam2_core.cache import cache_folder

_NAMED = re.compile(r"-([0-9a-f]{16})(?:\.\w+)?$")


def name_of(stem: str, data: bytes, suffix: str) -> str:
    """Return the name of a file with this content."""
    return f"{stem}-{_digest(data)}{suffix}"


def name_of_file(stem: str, path: Path, suffix: str) -> str:
    """Return the name that a file with the content of this one has."""
    return f"{stem}-{_digest_of_file(path)}{suffix}"


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


@functools.lru_cache(maxsize=256)
def _known_digest(path: Path, _size_bytes: int, _changed_ns: int) -> str:
    return _digest_of_file(path)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
