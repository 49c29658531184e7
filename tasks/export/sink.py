"""Where an export is written: any folder or URL, with the hash of every file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Literal

from sam2_core.cache import cache_folder
from sam2_core.types import AutolabelError
from tasks.store import storage

INDEX, CLAIM = "export.json", "UNFINISHED"
ImageMode = Literal["copy", "link", "none"]
_CONNECTIONS = 8


class Lines:
    """Texts of any number: in a file of this machine until they are a part of another one."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile("w+", dir=folder)  # noqa: SIM115 - `copy_to` closes it
        self.count = 0

    def write(self, text: str) -> None:
        """Add a text as it is."""
        self._file.write(text)

    def add(self, value: Any) -> None:
        """Add a JSON value to a list of them."""
        self.write((",\n" if self.count else "") + json.dumps(value))
        self.count += 1

    def copy_to(self, file: IO[str]) -> None:
        """Write the texts."""
        with self._file:
            self._file.seek(0)
            shutil.copyfileobj(self._file, file)

    def write_to(self, file: IO[str]) -> None:
        """Write the list, a value a line."""
        file.write("[\n")
        self.copy_to(file)
        file.write("\n]")


def _claimed(uri: str) -> str:
    """Take an empty folder for one export; returns the address of the mark that says so.

    Raises:
        AutolabelError: another export took it at the same moment.

    """
    # Not every store can refuse to replace a file: of several marks none is the first.
    claim = storage.join(uri, f"{CLAIM}-{secrets.token_hex(8)}")
    storage.write_bytes(claim, b"")
    if len(storage.list_names(uri)) > 1:
        storage.delete(claim)
        raise AutolabelError(f"another export is being written to {uri}: name another folder")
    return claim


class Sink:
    """An export's folder. Files are under way a few at a time; a context manager waits for them.

    Args:
        uri: folder or URL; nothing may be there yet.
        images: copy pictures, link to local ones, or leave them out.

    Raises:
        AutolabelError: something is there already, or is being written; or links are wanted
            elsewhere than here.

    """

    def __init__(self, uri: str, images: ImageMode = "copy") -> None:
        self.uri, self.images = uri, images
        if images == "link" and not storage.is_local(uri):
            raise AutolabelError(f"links to pictures need a folder of this machine, not {uri}")
        if storage.is_local(uri) and storage.local_path(uri).is_file():
            raise AutolabelError(f"{uri} is a file: name a folder that is empty or not there yet")
        if storage.list_names(uri) or storage.list_folders(uri):
            raise AutolabelError(
                f"{uri} is not empty: name another folder, or remove what is there"
            )
        self._claim = _claimed(uri)
        self._pool = ThreadPoolExecutor(_CONNECTIONS, "export")
        self._pending: deque[Future[dict[str, Any]]] = deque()
        self._scratch = tempfile.TemporaryDirectory(prefix="autolabel-export-")
        self.folder = Path(self._scratch.name)
        self._files = self.lines()

    def write(self, path: str, data: bytes) -> None:
        """Write a file, soon."""
        self._submit(self._pool.submit(self._write, path, data))

    def image(self, path: str, source: Path | None) -> bool:
        """Bring a picture, soon; False where pictures are not wanted or this one is not here."""
        if self.images == "none" or source is None:
            return False
        self._submit(self._pool.submit(self._bring, path, source))
        return True

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[IO[str]]:
        """Write a text of any length: it lies on this machine until it is whole."""
        with tempfile.NamedTemporaryFile("w+", dir=self.folder, delete=False) as file:
            yield file
        self.upload(path, Path(file.name))

    def lines(self) -> Lines:
        """Return texts to be written later."""
        return Lines(self.folder)

    def upload(self, path: str, file: Path) -> None:
        """Move a finished file of this machine to its place."""
        self._submit(self._pool.submit(self._upload, path, file))

    def close(self, report: Mapping[str, Any]) -> None:
        """Wait for everything, then write the index with every file's hash: the export is whole."""
        self._wait(0)
        index = self.folder / INDEX
        with index.open("w") as file:
            head = json.dumps(report, indent=1)
            file.write(f'{head.rstrip("}").rstrip()},\n "files": ')
            self._files.write_to(file)
            file.write("}\n")
        self._upload(INDEX, index)

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_error: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._scratch.cleanup()
        storage.delete(self._claim)

    def _submit(self, future: Future[dict[str, Any]]) -> None:
        self._pending.append(future)
        self._wait(4 * _CONNECTIONS)

    def _wait(self, most: int) -> None:
        """Wait until no more than so many files are under way."""
        while len(self._pending) > most:
            self._files.add(self._pending.popleft().result())

    def _write(self, path: str, data: bytes) -> dict[str, Any]:
        storage.write_bytes(storage.join(self.uri, path), data)
        return {"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def _bring(self, path: str, source: Path) -> dict[str, Any]:
        # What lies in our cache may go at any time: frames of videos and of containers, downloads.
        if self.images != "link" or source.is_relative_to(cache_folder()):
            return self._write(path, source.read_bytes())
        target = storage.local_path(storage.join(self.uri, path))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source.resolve())
        return {"path": path, "link": str(source.resolve())}

    def _upload(self, path: str, file: Path) -> dict[str, Any]:
        uri, size = storage.join(self.uri, path), file.stat().st_size
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if storage.is_local(uri):
            target = storage.local_path(uri)
            hidden = target.with_name(f".{target.name}.tmp")
            with storage.explained("write", uri):
                hidden.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, hidden)
                hidden.replace(target)
        else:
            storage.ask("write", uri, lambda fs, target: fs.put_file(str(file), target))
        file.unlink()
        return {"path": path, "bytes": size, "sha256": digest}
