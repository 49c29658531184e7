"""Large files over HTTP, checkpoints above all: resumed when cut, verified, put in place whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from sam2_core.cache import cache_folder, file_sha256, only_one, write_whole
from sam2_core.checkpoints import is_hugging_face
from sam2_core.presets import PRESETS, Preset
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    import httpx

Progress = Callable[[int, int], object]  # bytes there, bytes in all (0 when unknown)

SOURCES = ("meta", "hugging-face")
_LONGEST_HEADER = 100_000_000  # bytes, as in the safetensors library
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


def checkpoint_path(preset: Preset, source: str = "meta", cache: Path | None = None) -> Path:
    """Return where a preset's checkpoint belongs; `AutolabelError` when none is published."""
    if source not in SOURCES:
        raise AutolabelError(f"unknown source {source!r}: one of {', '.join(SOURCES)}")
    if not preset.checkpoint:
        raise AutolabelError(
            f"{preset.name} comes with this package, graphs and all: nothing has to be downloaded "
            "or exported"
            if preset.name in PRESETS
            else f"no checkpoint of {preset.name} is published for download"
        )
    hub = preset.hugging_face.rpartition("/")[2] + ".safetensors"
    name = preset.checkpoint if source == "meta" else hub
    return cache_folder(cache) / "checkpoints" / name


def _pin(path: Path) -> Path:
    """Return the file beside a checkpoint that holds the sha256 it had when it was first seen."""
    return path.with_name(f"{path.name}.sha256")


def verify(path: Path, pinned: str = "", cache: Path | None = None) -> str:
    """Check a checkpoint's sha256 and return it.

    Args:
        path: the checkpoint.
        pinned: its published sha256, "" when none is known: then the sha256 that `record` left
            beside the file counts.
        cache: cache folder.

    Raises:
        AutolabelError: the file is not what it was or should be; it must not be used.

    """
    try:
        found = file_sha256(path, cache)
    except OSError as error:
        raise AutolabelError(f"cannot read {path}: {error.strerror}") from error
    recorded = _pin(path)
    expected, whose = pinned, "published"
    if not expected:
        with contextlib.suppress(OSError, IndexError):
            expected, whose = recorded.read_text().split()[0], f"recorded in {recorded}"
    if expected and found != expected:
        raise AutolabelError(
            f"{path} has sha256 {found}, not the {whose} {expected}: it is damaged or has been "
            "replaced, and is not used. Remove it and fetch it again"
        )
    return found


def record(path: Path, sha256: str) -> None:
    """Leave the sha256 of a checkpoint beside it, so that another one in its place is noticed.

    Only of one that was fetched whole or has been loaded: a damaged file must not be held to what
    it is, or the sound one that replaces it would be refused.
    """
    recorded = _pin(path)
    if not recorded.exists():
        with contextlib.suppress(OSError):  # a read-only folder: nothing can be recorded
            write_whole(recorded, f"{sha256}  {path.name}\n")


def fetch_checkpoint(
    preset: Preset,
    *,
    source: str = "meta",
    cache: Path | None = None,
    progress: Progress = lambda *_: None,
) -> tuple[Path, str]:
    """Return a preset's checkpoint and its sha256, downloading it when it is not there.

    Meta's files are held to their published sha256. For the Hugging Face files none is known here:
    it is recorded at the first download and held to ever after.

    Raises:
        AutolabelError: cannot be had; the message says which file to place where.

    """
    path = checkpoint_path(preset, source, cache)
    url = preset.meta_url if source == "meta" else preset.hugging_face_url
    pinned = preset.checkpoint_sha256 if source == "meta" else ""
    if not pinned and not path.exists() and _pin(path).exists():
        pinned = _pin(path).read_text().split()[0]  # it was here before: held to what it was
    fetched = download(url, path, sha256=pinned, progress=progress)
    try:
        if path.suffix == ".safetensors":
            _check_safetensors(path, remove=bool(fetched))
        sha256 = verify(path, pinned, cache)
    except AutolabelError as error:
        raise AutolabelError(f"{error}. {by_hand(url, path, pinned)}") from error
    record(path, sha256)
    return path, sha256


def _check_safetensors(path: Path, *, remove: bool) -> None:
    """Refuse what is no whole safetensors file of SAM 2's weights, by its header and size.

    Args:
        path: the file.
        remove: it was fetched just now (from a login page, say): nobody needs it.

    """
    try:
        _check_header(path)
    except AutolabelError as error:
        if not remove:
            raise AutolabelError(f"{error}. Remove it") from error
        path.unlink()
        raise AutolabelError(f"what was fetched is not used: {error}") from error


def _check_header(path: Path) -> None:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length < _LONGEST_HEADER else {}
        names = {name: facts for name, facts in header.items() if name != "__metadata__"}
        size = 8 + length + max(facts["data_offsets"][1] for facts in names.values())
    except (OSError, ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
        raise AutolabelError(f"{path} is no safetensors file") from error
    there = path.stat().st_size
    if there != size:
        raise AutolabelError(f"{path} has {there} bytes, and its header says {size}")
    if not is_hugging_face(names):
        raise AutolabelError(f"{path} holds no SAM 2 weights as Hugging Face has them")
