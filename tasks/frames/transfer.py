"""A remote file's bytes, with the version that the server told in the answer that brought them.

A file may be replaced between its listing and its download, and between two requests: only the
answer with the bytes says of which version they are. fsspec's `get_file` does not hand it on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fsspec.asyn import sync
from fsspec.callbacks import Callback

from tasks.frames.identity import told_version
from tasks.store import storage

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
    return {told_version(answer, 0)} if answer.get("ETag") else set()


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
    return {told_version({name: text}, limit.listed) for name, text in told.items() if text}
