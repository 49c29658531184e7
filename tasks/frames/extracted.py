"""Frames that were taken out of a video or a recording: a folder of the cache for each.

The folder's name holds what decoded them, so that another version of the code or of a library never
gets the pixels of this one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from sam2_core.cache import cache_folder
from tasks.frames import cached
from tasks.frames.decoding import decoding_digest
from tasks.frames.download import CacheError
from tasks.store import storage

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
        return {int(path.name[:6]): path for path in self.folder.glob("??????-*")}

    def keep(self, number: int, data: bytes, suffix: str) -> str:
        """Write the file of a frame; returns its name.

        Raises:
            CacheError: it cannot be written.

        """
        name = cached.name_of(f"{number:06d}", data, suffix)
        self._write(name, data)
        return name

    def write_record(self, name: str, rows: list[Row], count: int) -> None:
        """Remember what an extraction found: rows, and how many frames there are."""
        self._write(f"{name}.json", json.dumps({"count": count, "frames": rows}).encode())

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

    def _write(self, name: str, data: bytes) -> None:
        try:
            storage.write_bytes(str(self.folder / name), data)
        except storage.StorageError as error:
            raise CacheError(str(error)) from error
