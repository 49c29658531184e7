"""Large files over HTTP: resumed when cut, verified, and put in place whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from sam2_core.cache import only_one
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    import httpx

Progress = Callable[[int, int], object]  # bytes there, bytes in all (0 when unknown)

_BLOCK = 1 << 20
_ATTEMPTS = 5  # in a row without a byte of progress
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 20.0
_PERMANENT = {400, 401, 403, 404, 405, 410, 451}


class _UnreachableError(Exception):
    """An attempt failed in a way that may pass."""


def sha256_of(path: Path, progress: Progress = lambda *_: None) -> str:
    """Hash a file in blocks."""
    total, done = path.stat().st_size, 0
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            done += len(block)
            progress(done, total)
    return digest.hexdigest()


def by_hand(url: str, path: Path, sha256: str = "") -> str:
    """Say how to do without a download."""
    checked = f" (sha256 {sha256})" if sha256 else ""
    return f"Without network access, fetch {url} elsewhere and place it as {path}{checked}"


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Let one process at a time fetch a file; the others wait and then find it there."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(only_one(path.with_name(f".{path.name}.lock")))
        except OSError as error:
            raise AutolabelError(
                f"cannot write to {path.parent}: {error.strerror}. Choose another cache folder "
                "with --cache or AUTOLABEL_CACHE"
            ) from error
        yield


def _total(response: httpx.Response, start: int) -> int:
    """Size of the whole file as the response tells it, 0 when it does not."""
    tail = response.headers.get("content-range", "").rpartition("/")[2]
    if tail.isdigit():
        return int(tail)
    length = response.headers.get("content-length", "")
    return start + int(length) if length.isdigit() else 0


def _starts_at(response: httpx.Response, start: int) -> bool:
    found = re.match(r"bytes (\d+)-", response.headers.get("content-range", ""))
    return bool(found) and int(found[1]) == start  # type: ignore[index]


def _attempt(client: httpx.Client, url: str, part: Path, progress: Progress) -> None:
    """Fetch what `part` lacks; `_UnreachableError` when the server or the connection fails."""
    import httpx

    tag = part.with_suffix(".etag")
    start = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}
    if start and tag.exists():
        # The rest of the same version only: a changed file is sent from its beginning.
        headers |= {"Range": f"bytes={start}-", "If-Range": tag.read_text()}
    try:
        with client.stream("GET", url, headers=headers) as response:
            if response.status_code == 416:  # nothing after `start`: ours is longer than theirs
                part.unlink()
                raise _UnreachableError("the server has less than what was fetched before")
            if response.status_code in _PERMANENT:
                raise AutolabelError(f"{url} answered {response.status_code}")
            if response.status_code not in (200, 206):
                raise _UnreachableError(f"the server answered {response.status_code}")
            resumed = response.status_code == 206
            if resumed and not _starts_at(response, start):
                part.unlink(missing_ok=True)
                raise _UnreachableError("the server sent another part than was asked for")
            start = start if resumed else 0
            total = _total(response, start)
            validator = response.headers.get("etag", "")
            # Weak or absent: nothing that a resumed download could be held to.
            tag.write_text("" if validator.startswith("W/") else validator)
            if not tag.read_text():
                tag.unlink()
            done = start
            with part.open("ab" if resumed else "wb") as file:
                for block in response.iter_raw():
                    file.write(block)
                    done += len(block)
                    progress(done, total)
            if total and done < total:
                raise _UnreachableError(f"the connection ended after {done} of {total} bytes")
    except httpx.HTTPError as error:
        raise _UnreachableError(str(error) or type(error).__name__) from error


def _fetch(url: str, part: Path, progress: Progress) -> None:
    """Attempt until all is there; gives up after several attempts without progress."""
    import httpx

    retrying = Retrying(
        retry=retry_if_exception_type(_UnreachableError),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        reraise=True,
    )
    timeout = httpx.Timeout(30.0, connect=15.0)
    try:
        with httpx.Client(follow_redirects=True, timeout=timeout) as client:
            while not retrying(_further, client, url, part, progress):
                time.sleep(_FIRST_PAUSE_S)
    except _UnreachableError as error:
        raise AutolabelError(f"cannot fetch {url}: {error}") from error


def _further(client: httpx.Client, url: str, part: Path, progress: Progress) -> bool:
    """Attempt once; True when all is there, False when it was cut with more of it than before."""
    before = part.stat().st_size if part.exists() else 0
    try:
        _attempt(client, url, part, progress)
    except _UnreachableError:
        if part.exists() and part.stat().st_size > before:
            return False
        raise
    return True


def download(
    url: str, path: Path, *, sha256: str = "", progress: Progress = lambda *_: None
) -> str:
    """Fetch a file unless it is there.

    Cut connections are resumed (HTTP Range, held to the ETag) and retried with growing pauses.
    Two processes that want the same file fetch it once.

    Args:
        url: http or https.
        path: where it belongs.
        sha256: what it must hash to, "" when unknown.
        progress: called with bytes there and bytes in all (0: unknown).

    Returns:
        The file's sha256 if it was fetched now, "" if it was there already (nothing was checked).

    Raises:
        AutolabelError: unreachable, absent, a different sha256, or a folder that cannot be
            written; says how to place the file by hand.

    """
    if path.exists():
        return ""
    part = path.with_name(f".{path.name}.part")
    with _only_one(path):
        if path.exists():
            return ""
        try:
            _fetch(url, part, progress)
            found = sha256_of(part)
            if sha256 and found != sha256:
                part.unlink()
                part.with_suffix(".etag").unlink(missing_ok=True)
                raise AutolabelError(
                    f"{url} has sha256 {found} instead of {sha256}: it is damaged or not what it "
                    "was; it has been discarded"
                )
            part.replace(path)
        except AutolabelError as error:
            raise AutolabelError(f"{error}. {by_hand(url, path, sha256)}") from error
        except OSError as error:
            full = error.errno == errno.ENOSPC
            raise AutolabelError(
                f"cannot write {path}: {error.strerror}. "
                + ("Free some space" if full else "Check the folder's permissions")
                + " or choose another cache folder with --cache or AUTOLABEL_CACHE"
            ) from error
        part.with_suffix(".etag").unlink(missing_ok=True)
    return found
