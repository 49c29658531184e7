"""Where models, engines and measurements are kept on this machine."""

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sam2_core.types import AutolabelError

CACHE_VARIABLE = "AUTOLABEL_CACHE"
# What names a folder of ours; one that may lie in another comes first.
PLACES = ("AUTOLABEL_DATABASE_DIR", "AUTOLABEL_MASK_DIR", CACHE_VARIABLE)

_MISREAD = frozenset("'\"`$%[]{}#;,:*?!<>|\\")


def cache_folder(explicit: str | Path | None = None) -> Path:
    """Return the cache folder: as given, else `$AUTOLABEL_CACHE`, else below the user's cache."""
    if explicit is not None:
        return Path(explicit).expanduser()
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "autolabel"


def absolute_places() -> None:
    """Have the variables that name our folders mean the same in processes that work elsewhere."""
    for variable in PLACES:
        if named := os.environ.get(variable):
            os.environ[variable] = str(Path(named).expanduser().absolute())


def refuse_unusable_places() -> None:
    """Refuse folders whose path a server's configuration, a shell or an address would misread.

    Raises:
        AutolabelError: naming the folder, the characters, and what to set.

    """
    places: dict[str, str | Path] = {
        "AUTOLABEL_DATABASE_DIR": os.environ.get("AUTOLABEL_DATABASE_DIR", ""),
        CACHE_VARIABLE: str(cache_folder()),
        "TMPDIR": tempfile.gettempdir(),
    }
    for variable, place in places.items():
        path = str(Path(place).absolute())
        if wrong := {
            character for character in path if character in _MISREAD or not character.isprintable()
        }:
            raise AutolabelError(
                f"{path!r} is no folder for the servers that work in it, for the "
                f"{' '.join(map(repr, sorted(wrong)))} in its path: set {variable} to another one"
            )


def variable_of(path: str | Path) -> str:
    """Return which variable names another place for a file or folder of ours; "" for others'."""
    whole = Path(path).absolute()
    for variable in PLACES:
        named = os.environ.get(variable)
        if named and whole.is_relative_to(Path(named).expanduser().absolute()):
            return variable
    return CACHE_VARIABLE if whole.is_relative_to(cache_folder().absolute()) else ""


def cannot_write(path: Path, error: OSError) -> AutolabelError:
    """Return the error of a folder or file of ours that cannot be written: what, why, what to do.

    Raise it from the other one, which tells whether the machine is at fault.
    """
    variable = variable_of(path)
    advice = f"; set {variable} to another folder" if variable else ""
    return AutolabelError(f"{path} cannot be made or written: {error.strerror or error}{advice}")


def make_folder(path: Path) -> Path:
    """Make a folder and those around it. A new cache is for this user alone; what is made in one
    that is there is open to whom that is.
    """  # noqa: D205
    if not path.is_dir():
        around, mode = make_folder(path.parent), 0o777
        cache = cache_folder()
        if path == cache:
            mode = 0o700
        elif path.is_relative_to(cache):
            mode = around.stat().st_mode & 0o777
        # "File exists" would not tell what is wrong. Another thread may have made it by now.
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        path.mkdir(mode=mode, exist_ok=True)
    return path


def write_whole(path: Path, content: str | bytes | memoryview) -> None:
    """Write a file so that a reader sees all of it or nothing."""
    make_folder(path.parent)
    data = content.encode() if isinstance(content, str) else content
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(data)
            file.flush()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def only_one(lock: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Let one process at a time do what is in the block; the lock goes with a process that dies.

    Args:
        lock: the lock's file.
        waiting: called where another process is at it, before waiting for that.

    """
    from filelock import FileLock, Timeout

    make_folder(lock.parent)
    held = FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout:
        waiting()
        held.acquire()
    try:
        yield
    finally:
        held.release()


FileIdentity = tuple[int, int, int, int]


def file_identity(path: Path) -> FileIdentity:
    """Return what changes whenever a file is rewritten or replaced: inode, size and times."""
    status = path.stat()
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def file_sha256(path: Path, cache: Path | None = None) -> str:
    """Return a file's sha256; it is hashed once as long as it is the same file.

    Args:
        path: the file.
        cache: cache folder that remembers hashes.

    """
    identity = file_identity(path)
    key = f"{path.resolve()}|{identity}"
    remembered = (
        cache_folder(cache) / "hashes" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
    )
    try:
        known = json.loads(remembered.read_text())
        if known["key"] == key:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError):
        pass  # not there, or damaged: hash again
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if file_identity(path) != identity:
        raise AutolabelError(f"{path} was rewritten while it was being read: try again")
    with contextlib.suppress(OSError):  # a read-only cache only costs the time
        write_whole(remembered, json.dumps({"key": key, "sha256": digest}))
    return digest
