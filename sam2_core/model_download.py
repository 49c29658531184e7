"""Large files over HTTP, checkpoints above all: resumed when cut, verified, put in place whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sam2_core.cache import cache_folder, file_sha256, only_one, write_whole
from sam2_core.checkpoints import is_hugging_face
from sam2_core.presets import PRESETS, Preset
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    import httpx

Progress = Callable[[int, int], object]  # bytes there, bytes in all (0 when unknown)

SOURCES = ("meta", "hugging-face")
_LONGEST_HEADER = 100_000_000  # bytes, as in the safetensors library
_ATTEMPTS = 5  # in a row without a byte of progress
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 20.0
_PERMANENT = {400, 401, 403, 404, 405, 410, 451}
_ELSEWHERE = "name another cache folder in AUTOLABEL_CACHE"


class _UnreachableError(Exception):
    """An attempt failed in a way that may pass."""


def _by_hand(url: str, path: Path, sha256: str = "") -> str:
    """Say how to do without a download."""
    checked = f" (sha256 {sha256})" if sha256 else ""
    return f"Without network access, fetch {url} elsewhere and place it as {path}{checked}"


def _attempt(client: httpx.Client, url: str, part: Path, progress: Progress) -> None:
    """Fetch what `part` lacks; `_UnreachableError` when the server or the connection fails."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with client.stream("GET", url, headers=headers) as response:
        status = response.status_code
        if status in _PERMANENT:
            raise AutolabelError(f"{url} answered {status}")
        if status == 416:  # more is here than there
            part.unlink(missing_ok=True)
        if status not in (200, 206):
            raise _UnreachableError(f"the server answered {status}")
        done = start if status == 206 else 0
        total = int(response.headers.get("content-length", -done)) + done
        with part.open("ab" if done else "wb") as file:
            for block in response.iter_raw():
                file.write(block)
                done += len(block)
                progress(done, total)


def _fetch(url: str, part: Path, progress: Progress) -> None:
    """Attempt until all is there; gives up after several attempts without progress."""
    import httpx

    failures = 0
    timeout = httpx.Timeout(30.0, connect=15.0)
    with httpx.Client(follow_redirects=True, timeout=timeout) as client:
        while True:
            before = part.stat().st_size if part.exists() else 0
            try:
                return _attempt(client, url, part, progress)
            except (_UnreachableError, httpx.HTTPError) as error:
                further = part.exists() and part.stat().st_size > before
                failures = 0 if further else failures + 1
                if failures == _ATTEMPTS:
                    why = str(error) or type(error).__name__
                    raise AutolabelError(f"cannot fetch {url}: {why}") from error
            time.sleep(min(_FIRST_PAUSE_S * 2**failures, _LONGEST_PAUSE_S))


def download(
    url: str, path: Path, *, sha256: str = "", progress: Progress = lambda *_: None
) -> str:
    """Fetch a file unless it is there.

    Cut connections are resumed (HTTP Range) and retried with growing pauses; what an earlier
    process left is resumed where a sha256 tells whether the whole is right. Two processes that want
    the same file fetch it once.

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
    try:
        with only_one(path.with_name(f".{path.name}.lock")):
            if path.exists():
                return ""
            if not sha256:
                part.unlink(missing_ok=True)
            _fetch(url, part, progress)
            with part.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if sha256 and found != sha256:
                part.unlink()
                raise AutolabelError(
                    f"{url} has sha256 {found} instead of {sha256}: it is damaged or not what it "
                    "was; it has been discarded"
                )
            part.replace(path)
    except AutolabelError as error:
        raise AutolabelError(f"{error}. {_by_hand(url, path, sha256)}") from error
    except OSError as error:
        todo = "Free some space" if error.errno == errno.ENOSPC else "Check the folder"
        raise AutolabelError(
            f"cannot write {path}: {error.strerror}. {todo} or {_ELSEWHERE}"
        ) from error
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


def _recorded(path: Path) -> str:
    """Return the sha256 that `record` left beside a checkpoint, "" where it left none."""
    try:
        return _pin(path).read_text().split()[0]
    except (OSError, IndexError):
        return ""


def _pin(path: Path) -> Path:
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
    expected = pinned or _recorded(path)
    if expected and found != expected:
        raise AutolabelError(
            f"{path} has sha256 {found}, not the "
            f"{'published' if pinned else f'one recorded in {_pin(path)},'} {expected}: it is "
            "damaged or has been replaced, and is not used. Remove it and fetch it again"
        )
    return found


def record(path: Path, sha256: str) -> None:
    """Leave the sha256 of a checkpoint beside it, so that another one in its place is noticed.

    Only of one that was fetched whole or has been loaded: a damaged file must not be held to what
    it is, or the sound one that replaces it would be refused.
    """
    if not _pin(path).exists():
        with contextlib.suppress(OSError):  # a read-only folder: nothing can be recorded
            write_whole(_pin(path), f"{sha256}  {path.name}\n")


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
    url, pinned = preset.meta_url, preset.checkpoint_sha256
    if source != "meta":
        url, pinned = preset.hugging_face_url, _recorded(path)
    fetched = download(url, path, sha256=pinned, progress=progress)
    try:
        if path.suffix == ".safetensors":
            _refuse_unless_weights(path, fetched=bool(fetched))
        sha256 = verify(path, pinned if source == "meta" else "", cache)
    except AutolabelError as error:
        raise AutolabelError(f"{error}. {_by_hand(url, path, pinned)}") from error
    record(path, sha256)
    return path, sha256


def _refuse_unless_weights(path: Path, *, fetched: bool) -> None:
    """Refuse what is no whole safetensors file of SAM 2's weights, by its header and size.

    Args:
        path: the file.
        fetched: just now (from a login page, say), so it may be removed.

    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length < _LONGEST_HEADER else {}
        header.pop("__metadata__", None)
        size = 8 + length + max(facts["data_offsets"][1] for facts in header.values())
        sound = path.stat().st_size == size and is_hugging_face(header)
    except (OSError, ValueError, AttributeError, KeyError, TypeError, IndexError):
        sound = False
    if not sound:
        what = "no safetensors file of SAM 2's weights, or not all of one"
        if not fetched:
            raise AutolabelError(f"{path} is {what}. Remove it")
        path.unlink()
        raise AutolabelError(f"what was fetched is not used: it is {what}")
