"""Every object below an S3 prefix in the order of keys, by several listings at once.

A server lists a thousand objects per request, and each request needs the previous answer. So a
large prefix is cut at the names of folders in it, and the parts are listed side by side: cutting at
every folder would take a request for each, however few objects it has.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tasks.store import storage
from tasks.store.retry import with_retries

LISTINGS = 16
# Small prefixes are listed as they are.
FIRST_PAGES = 4
PART_OBJECTS = 4000
_LEVELS = 4


@dataclass(frozen=True, slots=True)
class Found:
    """An object as listed."""

    key: str
    size_bytes: int
    etag: str


@dataclass(frozen=True)
class Prefix:
    """What is to be listed, and with what."""

    fs: Any
    bucket: str
    prefix: str

    def pages(self, **options: str) -> Iterator[dict[str, Any]]:
        """Answers of the server, one after another.

        Raises:
            StorageError: it refuses, or does not answer.

        """
        page: dict[str, Any] = {}
        where = f"s3://{self.bucket}/{self.prefix}"
        wanted = {"Bucket": self.bucket, "Prefix": self.prefix} | options
        while True:
            token = page.get("NextContinuationToken")
            more = {"ContinuationToken": token} if token else {}

            def call(more: dict[str, str] = more) -> dict[str, Any]:
                answer: dict[str, Any] = self.fs.call_s3("list_objects_v2", **wanted, **more)
                return answer

            with storage.explained("list", where):
                page = with_retries(call, f"listing {where}")
            yield page
            if not page.get("IsTruncated"):
                return

    def folders(self) -> list[str]:
        """Prefixes of the folders directly below, sorted."""
        found = self.pages(Delimiter="/")
        return sorted(one["Prefix"] for page in found for one in page.get("CommonPrefixes", ()))

    def part(self, after: str, until: str | None) -> list[Found]:
        """Objects with after < key <= until, in order."""
        found: list[Found] = []
        for page in self.pages(**({"StartAfter": after} if after else {})):
            for one in _found(page):
                if until is not None and one.key > until:
                    return found
                found.append(one)
        return found


def _found(page: dict[str, Any]) -> Iterator[Found]:
    for entry in page.get("Contents", ()):
        yield Found(entry["Key"], entry["Size"], entry["ETag"].strip('"'))


def list_objects(fs: Any, bucket: str, prefix: str) -> Iterator[Found]:
    """Every object below a prefix, in the order of keys.

    Args:
        fs: an s3fs filesystem.
        bucket: name.
        prefix: "" or ending in "/".

    Raises:
        StorageError: the server refuses, or does not answer.

    """
    whole = Prefix(fs, bucket, prefix)
    last, seen, page = "", 0, {}
    for page in itertools.islice(whole.pages(), FIRST_PAGES):
        for one in _found(page):
            yield one
            last, seen = one.key, seen + 1
    if page.get("IsTruncated"):
        with ThreadPoolExecutor(LISTINGS, "list-s3") as pool:
            yield from _side_by_side(pool, whole, last, seen)


def _side_by_side(pool: ThreadPoolExecutor, whole: Prefix, last: str, seen: int) -> Iterator[Found]:
    borders = _borders(pool, whole)
    passed = sum(border <= last for border in borders)
    step = max(round(PART_OBJECTS * passed / seen), 1)
    cuts = [last, *borders[passed + step :: step]]
    pending: deque[Future[list[Found]]] = deque()
    for after, until in itertools.zip_longest(cuts, cuts[1:]):
        pending.append(pool.submit(whole.part, after, until))
        if len(pending) > LISTINGS:
            yield from pending.popleft().result()
    while pending:
        yield from pending.popleft().result()


def _borders(pool: ThreadPoolExecutor, whole: Prefix) -> list[str]:
    """Prefixes of folders, sorted, from the first level at which there are many of them."""
    level = [whole.prefix]
    for _ in range(_LEVELS):
        below = pool.map(lambda one: Prefix(whole.fs, whole.bucket, one).folders(), level)
        deeper = [
            one for folder, found in zip(level, below, strict=True) for one in found or [folder]
        ]
        if deeper == level:
            break
        level = deeper
        if len(level) >= 4 * LISTINGS:
            break
    return level
