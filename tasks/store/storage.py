"""Bytes behind a URL: read, write whole or not at all, list; errors that a user can act on.

Any fsspec URL: a local path, s3://, http(s)://, memory://. Credentials come from the environment
(AWS_* for S3, AWS_ENDPOINT_URL for another S3 server), never from a URL.
"""

import asyncio
import codecs
import contextlib
import errno
import functools
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import fsspec

from sam2_core import redaction
from sam2_core.machine import NumberVariable
from sam2_core.machine_errors import causes
from sam2_core.types import AutolabelError
from tasks.processes import WORKER_VARIABLE
from tasks.store.addresses import is_private, without_credentials
from tasks.store.retry import http_status, with_retries

TIMEOUT_S = NumberVariable("AUTOLABEL_STORAGE_TIMEOUT_S", "whole seconds above 0", 1)
_NO_FILE = {errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
# Packages whose errors derive from Exception alone.
_CLIENTS = {"botocore", "aiobotocore", "aiohttp", "urllib3"}
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp", re.DOTALL)
_TIMES = ("mtime", "LastModified", "Last-Modified", "updated", "last_modified", "created")
# Content encodings; aws-chunked is how objects in some stores were once uploaded.
_UNCOMPRESSED = {"", "identity", "aws-chunked"}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
_NEW_ONES = (
    "the credentials have expired (AWS_SESSION_TOKEN): get new ones, as with `aws sso login`, and "
    "run again, what is labeled stays"
)
_NO_CREDENTIALS = (
    "no credentials here: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or "
    "FSSPEC_S3_ANON=true for a public bucket"
)
# What a worker and a command in a shell say: either may have them where the other has none.
_IN_WORKER = (
    "; a worker has those of the shell where it was started: `autolabel down`, then `autolabel up` "
    "in one that has them, or the same with its `autolabel worker`"
)
_IN_SHELL = "; workers have those of the shell that started them"
_WEB_IPV6 = re.compile(r"https?://\[[\da-fA-F:.]*::[\da-fA-F:.]*\]")

redact = redaction.redact
CONNECTIONS = 16
MOST_BYTES = 1 << 30  # of a file that is read whole
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class StorageError(AutolabelError):
    """Storage said no: what was tried, where, why."""


class NotFoundError(StorageError):
    """There is nothing under this address."""


def is_local(uri: str) -> bool:
    """Whether the address is a path of this machine."""
    return "://" not in uri or uri.startswith(("file://", "local://"))


def is_s3(uri: str) -> bool:
    """Whether the address is an object of an S3 server."""
    return uri.startswith(("s3://", "s3a://"))


def is_web(uri: str) -> bool:
    """Whether the address is one of a web server, where names are quoted."""
    return uri.startswith(("http://", "https://"))


def local_path(uri: str) -> Path:
    """Path of a local address, absolute and without "..".

    Raises:
        AutolabelError: it begins with the home of a user that this machine does not know.

    """
    path = Path(re.sub(r"^(file|local)://", "", uri))
    try:
        path = path.expanduser().absolute()
    except RuntimeError as error:
        raise AutolabelError(f"{path}: there is no such user (./{path} is a folder)") from error
    # Links on the way keep their names; only with ".." it has to be known where they lead.
    return path.resolve() if ".." in path.parts else path


def absolute(uri: str) -> str:
    """Address that means the same wherever a process is started; a URL as it is."""
    return str(local_path(uri)) if is_local(uri) else uri


def canonical(uri: str) -> str:
    """Return the one spelling under which a storage is remembered."""
    if is_local(uri):
        return absolute(uri)
    scheme, _, rest = uri.partition("://")
    return f"{'s3' if scheme == 's3a' else scheme}://{rest.rstrip('/')}"


def join(base_uri: str, *parts: str) -> str:
    """Address below a base; parts may hold "/"."""
    return "/".join([base_uri.rstrip("/") or "/", *parts])


def filesystem(uri: str) -> tuple[Any, str]:
    """Return the filesystem and the path on it. Listings are never cached: others write too."""
    without_credentials(uri)
    if is_local(uri):
        return fsspec.filesystem("file", auto_mkdir=True), str(local_path(uri))
    if _WEB_IPV6.match(uri):  # where fsspec takes the "::" for a chain
        options = _client_options(uri)
        return fsspec.filesystem("http", use_listings_cache=False, **options), uri
    try:
        fs, path = fsspec.core.url_to_fs(uri, use_listings_cache=False, **_client_options(uri))
    except (ValueError, ImportError) as error:
        raise AutolabelError(f"cannot open {redact(uri)}: {error}") from error
    if is_s3(uri):
        fs.retries = 1  # else s3fs tries 5 times inside each of our attempts
    return fs, path


def _client_options(uri: str) -> dict[str, Any]:
    """Timeouts for a connection and for silence in it; a whole download may take longer."""
    timeout_s = TIMEOUT_S.read() or 30
    if is_s3(uri):
        retries = {"mode": "standard", "total_max_attempts": 1}  # `with_retries` does it
        return {
            "config_kwargs": {
                "connect_timeout": timeout_s, "read_timeout": timeout_s, "retries": retries
            },
            "session": _s3_session(_aws_environment()),
        }  # fmt: skip
    if is_web(uri):
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s)
        # trust_env: proxies and the passwords in ~/.netrc.
        more = {"headers": {"Accept-Encoding": "identity"}, "trace_configs": [_web_guard()]}
        return {"client_kwargs": {"timeout": timeout, "trust_env": True} | more}
    return {}


@functools.cache  # fsspec knows a filesystem again by the identity of its options
def _web_guard() -> Any:
    """Return aiohttp's trace that ends requests with a StorageError.

    At a redirect from a public to a private address; a server that is itself private may redirect
    within private networks. And at a body that is compressed without having been asked for: it may
    become very large.
    """
    import aiohttp
    from yarl import URL

    async def refuse_redirect(_session: Any, _context: Any, redirect: Any) -> None:
        headers = redirect.response.headers
        target = redirect.url.join(URL(headers.get("Location") or headers.get("URI") or ""))

        def leads_inside() -> bool:
            return is_private(target.host or "") and not is_private(redirect.url.host or "")

        if target.host and await asyncio.get_running_loop().run_in_executor(None, leads_inside):
            raise StorageError(
                f"{redirect.url.host} redirects to {target.host}, which is a private address: "
                "name the address itself if you trust it"
            )

    async def refuse_compressed(_session: Any, _context: Any, request: Any) -> None:
        told = request.response.headers.get("Content-Encoding", "").lower()
        if {part.strip() for part in told.split(",")} - _UNCOMPRESSED:
            raise StorageError(
                f"{request.url.host} sends it compressed (Content-Encoding), so that nobody knows "
                "how large it becomes: let the server send it as it is"
            )

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse_redirect)
    trace.on_request_end.append(refuse_compressed)
    return trace


@functools.lru_cache(maxsize=4)
def _s3_session(_environment: int) -> Any:
    """Session that reads the times of a listing quickly: otherwise they are most of its cost.

    A session keeps the credentials that it has found: others in the environment need another one.
    """
    from aiobotocore.session import AioSession

    session = AioSession()
    factory = session.get_component("response_parser_factory")
    factory.set_parser_defaults(timestamp_parser=_timestamp)
    return session


def _aws_environment() -> int:
    return hash(frozenset(item for item in os.environ.items() if item[0].startswith("AWS_")))


def _timestamp(text: Any) -> datetime:
    """Read a time as an S3 server writes it; what is no ISO 8601 is left to botocore."""
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        from botocore.utils import parse_timestamp

        return parse_timestamp(text)


@contextlib.contextmanager
def explained(action: str, uri: str) -> Iterator[None]:
    """Turn what storage raises into a StorageError that names the file and the way out."""
    try:
        yield
    except AutolabelError:
        raise
    except Exception as error:
        where, status = f"cannot {action} {redact(uri)}", http_status(error)
        of_workers = _IN_WORKER if WORKER_VARIABLE in os.environ else _IN_SHELL
        ours = [cause for cause in causes(error) if isinstance(cause, StorageError)]
        if ours:  # fsspec has made "not found" of it
            raise ours[0] from error
        if "InvalidObjectState" in _told_by_s3(error):
            why = "archived: restore it first, as with `aws s3api restore-object`"
        elif isinstance(error, PermissionError) or status in {401, 403}:
            expired = _told_by_s3(error) & _EXPIRED
            why = (
                _NEW_ONES + of_workers
                if expired
                else "access denied; check permissions or credentials"
            )
        elif type(error).__name__ == "NoCredentialsError":
            why = _NO_CREDENTIALS + of_workers
        elif status == 404 or (isinstance(error, FileNotFoundError) and status is None):
            missing = "its bucket" if "NoSuchBucket" in _told_by_s3(error) else "it"
            raise NotFoundError(f"{where}: {missing} does not exist") from error
        elif isinstance(error, OSError) and error.errno in NO_SPACE:
            why = "no space left; free some or use another place"
        elif isinstance(error, OSError) or type(error).__module__.split(".")[0] in _CLIENTS:
            why = redact(getattr(error, "strerror", None) or str(error) or type(error).__name__)
        else:
            raise
        raise StorageError(f"{where}: {why}") from error


def ask(action: str, uri: str, call: Callable[[Any, str], Answer]) -> Answer:
    """Call with an address's filesystem and path, again where that helps.

    Args:
        action: a verb, for messages: "cannot read ...".
        uri: the address.
        call: does the work; must be safe to repeat.

    Raises:
        NotFoundError: there is nothing.
        StorageError: it failed; names the address and the way out.

    """
    fs, path = filesystem(uri)
    with explained(action, uri):
        return with_retries(lambda: call(fs, path), f"cannot {action} {redact(uri)}")


def at_once(call: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
    """Call with each item, several at a time, as requests wait for their servers; in order."""
    with ThreadPoolExecutor(CONNECTIONS, "requests") as pool:
        return list(pool.map(call, items))


def _told_by_s3(error: BaseException) -> set[str]:
    answers = (getattr(cause, "response", None) for cause in causes(error))  # of botocore
    return {
        str(answer.get("Error", {}).get("Code")) for answer in answers if isinstance(answer, dict)
    }


def write_bytes(uri: str, data: bytes) -> None:
    """Write a file whole or not at all; the last of several writers wins.

    Local files go to a temporary name in the same folder and are renamed; object stores get a
    single PUT (s3fs: multipart, equally atomic, above 100 MB).

    Raises:
        StorageError: no space, no permission, no connection; names the file.

    """
    if is_local(uri):
        with explained("write", uri):
            _write_local(local_path(uri), data)
    else:
        ask("write", uri, lambda fs, path: fs.pipe_file(path, data))


def temporary_beside(path: Path) -> Path:
    """Return a new name for what is being written, hidden and in the same folder."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def is_temporary(name: str) -> bool:
    """Whether a file has a name that `temporary_beside` makes."""
    return bool(_TEMPORARY.fullmatch(name))


def _write_local(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(path)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_bytes(uri: str) -> bytes:
    """Read a whole file.

    Raises:
        NotFoundError: there is none, or on this machine a pipe, a device, a folder, more than
            `MOST_BYTES`.
        StorageError: it cannot be read.

    """
    if is_local(uri):
        return ask("read", uri, lambda _, path: _read_local(path))
    # Without this s3fs asks for the size first, to read large files in parts: a request more.
    at_once = {"max_concurrency": 1} if is_s3(uri) else {}
    return ask("read", uri, lambda fs, path: fs.cat_file(path, **at_once))


def _read_local(path: str) -> bytes:
    # Anyone may have put it there: a pipe is opened without waiting for a writer.
    none = NotFoundError(f"cannot read {path}: it is no file of at most {MOST_BYTES:,} bytes")
    try:
        with open(path, "rb", opener=lambda at, how: os.open(at, how | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
                raise none
            return file.read(MOST_BYTES)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise none from error
        raise


def text_of(data: bytes) -> str:
    """Text of a file: UTF-8, or UTF-16 as Windows writes it; what is neither is replaced."""
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if is_utf16 else "utf-8-sig", "replace")


def delete(uri: str) -> None:
    """Remove a file; one that is gone already is fine.

    Raises:
        StorageError: no permission, no connection.

    """
    with contextlib.suppress(NotFoundError):
        ask("remove", uri, lambda fs, path: fs.rm_file(path))


def s3_prefix(uri: str) -> tuple[str, str]:
    """Bucket of an address, and the prefix of what lies below it: "" or ending in "/"."""
    bucket, _, prefix = filesystem(uri)[1].partition("/")
    return bucket, prefix.strip("/") + "/" if prefix.strip("/") else ""


def s3_pages(uri: str, **options: str) -> Iterator[dict[str, Any]]:
    """Answers of an S3 server to `list_objects_v2` of a prefix, one after another.

    From the second on, the next one is asked for while the caller works on this one.

    Raises:
        StorageError: it refuses, or does not answer.

    """
    bucket, prefix = s3_prefix(uri)

    def page_at(**place: str) -> dict[str, Any]:
        wanted = {"Bucket": bucket, "Prefix": prefix} | options | place
        return ask("list", uri, lambda fs, _: fs.call_s3("list_objects_v2", **wanted))

    page = page_at()
    yield page  # a caller that wants the first one alone makes one request
    with ThreadPoolExecutor(1, "listing") as ahead:

        def after(page: dict[str, Any]) -> Future[dict[str, Any]] | None:
            token = page.get("IsTruncated") and page["NextContinuationToken"]
            return ahead.submit(page_at, ContinuationToken=token) if token else None

        following = after(page)
        while following:
            page = following.result()
            following = after(page)
            yield page


def list_folders(folder_uri: str) -> list[str]:
    """Names of the folders directly in a folder, sorted; empty when there is no folder."""
    return sorted(name for name, is_folder, *_ in entries(folder_uri) if is_folder)


def list_names(folder_uri: str) -> dict[str, int]:
    """Names and sizes in bytes of the files directly in a folder; empty when there is no folder."""
    return {name: size for name, size, _ in each_file(folder_uri)}


def each_file(folder_uri: str) -> Iterator[tuple[str, int, float]]:
    """Yield name, size in bytes and time of the files directly in a folder, as `entries` does."""
    for name, is_folder, size, written in entries(folder_uri):
        if not is_folder:
            yield name, size, written


def entries(folder_uri: str) -> Iterator[tuple[str, bool, int, float]]:
    """Yield what is directly in a folder, from S3 as it comes: a million need not fit at once.

    Yields:
        Name, whether it is a folder, size in bytes, and when it was written in seconds since 1970;
        0 where storage does not tell. Nothing when there is no folder.

    Raises:
        StorageError: it cannot be listed, as where there is no such bucket.

    """
    with contextlib.suppress(*(() if is_s3(folder_uri) else (NotFoundError,))):
        if is_local(folder_uri):
            for entry, status in scan(local_path(folder_uri)):
                if status:
                    is_folder = stat.S_ISDIR(status.st_mode)
                    yield entry.name, is_folder, status.st_size, status.st_mtime
            return
        for told in _entries_there(folder_uri):
            path = unquote(told["name"]) if is_web(folder_uri) else told["name"]
            name, is_folder = path.rstrip("/").rsplit("/", 1)[-1], told["type"] == "directory"
            yield name, is_folder, int(told["size"] or 0), written_s(told)


def scan(folder: Path) -> list[tuple[os.DirEntry[str], os.stat_result | None]]:
    """Look at everything in a folder of this machine; None for links that lead nowhere.

    Raises:
        StorageError: it cannot be listed, or something in it not be looked at.

    """
    found: list[tuple[os.DirEntry[str], os.stat_result | None]] = []
    with (
        explained("list", str(folder)),
        contextlib.suppress(NotADirectoryError),
        os.scandir(folder) as here,
    ):
        for path in here:
            try:
                found.append((path, path.stat()))
            except OSError as error:
                if error.errno not in {errno.ENOENT, errno.ELOOP}:
                    raise
                found += [(path, None)] if path.is_symlink() else []  # else it was removed since
    return found


def _entries_there(folder_uri: str) -> Iterator[dict[str, Any]]:
    """Yield everything directly in a folder of a server, as fsspec describes it."""
    if not is_s3(folder_uri):
        yield from ask("list", folder_uri, lambda fs, path: fs.ls(path, detail=True))
        return
    for page in s3_pages(folder_uri, Delimiter="/"):
        for prefix in page.get("CommonPrefixes", ()):
            yield {"name": prefix["Prefix"], "type": "directory", "size": 0}
        for item in page.get("Contents", ()):
            if not item["Key"].endswith("/"):
                yield item | {"name": item["Key"], "type": "file", "size": item["Size"]}


def modified_time(info: Mapping[str, Any]) -> Any:
    """When a file was written, by its listing: seconds since 1970, or a text, or ""."""
    told = next((info[name] for name in _TIMES if info.get(name)), "")
    return told.timestamp() if isinstance(told, datetime) else told


def written_s(info: Mapping[str, Any]) -> float:
    """When a file was written, in seconds since 1970; 0 where storage does not tell."""
    told = modified_time(info)
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(told).timestamp() if isinstance(told, str) else float(told)
    return 0.0
