"""Sources named by patterns (`drives/*/CAM_FRONT`), and pictures named one by one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath

from sam2_core.types import AutolabelError
from tasks.frames.listing import File, is_hidden, natural_key, stat_file
from tasks.frames.source_names import (
    CONTAINER_SUFFIXES,
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    is_camera_name,
    shared_beginning,
    suffix_of,
)
from tasks.store import storage

_MAGIC = re.compile(r"[*?\[]")
_LOOKERS = 16


def is_pattern(source: str) -> bool:
    """Whether a source is a pattern, and not a file with such a name."""
    scheme, mark, rest = source.partition("://")
    path = rest.partition("/")[2] if mark and scheme.startswith("http") else source
    if not _MAGIC.search(path):
        return False
    return not storage.ask("open", source, lambda fs, path: fs.exists(path))


def expanded(sources: Iterable[str]) -> dict[str, str]:
    """Replace each pattern by what fits it: folders, pictures and videos, in order.

    Returns:
        Addresses, each with the pattern that it comes from, or "".

    Raises:
        AutolabelError: a pattern fits nothing of these.

    """
    found: dict[str, str] = {}
    for source in sources:
        if not is_pattern(source):
            found[source] = ""
            continue
        fitting = sorted(_fitting(source), key=natural_key)
        if not fitting:
            raise AutolabelError(
                f"{storage.redact(source)} fits no folder, picture or video; quote a pattern, so "
                "that it arrives here as it is"
            )
        for one in fitting:
            found.setdefault(one, source)
    return found


def beginning_of(pattern: str) -> str:
    """Return the folder before the first wildcard; "" for none below a machine or server."""
    parts = pattern.rstrip("/").split("/")
    wild = [position for position, part in enumerate(parts) if _MAGIC.search(part)]
    least = 2 if storage.is_local(pattern) else 3
    if not wild or wild[0] < least or "**" in parts:
        return ""
    return "/".join(parts[: wild[0]])


def _fitting(pattern: str) -> Iterator[str]:
    fs, _ = storage.filesystem(pattern)
    entries = storage.ask("list", pattern, lambda fs, path: fs.glob(path, detail=True))
    for name, info in entries.items():
        last = name.rstrip("/").rpartition("/")[2]
        media = suffix_of(last) in IMAGE_SUFFIXES | VIDEO_SUFFIXES | CONTAINER_SUFFIXES
        if not is_hidden(last) and (media or info["type"] == "directory"):
            yield name if storage.is_local(pattern) else str(fs.unstrip_protocol(name))


def distinct(sources: Mapping[str, str]) -> dict[str, str]:
    """Return the sources with their patterns, each folder or file once.

    Raises:
        AutolabelError: one is inside another one.

    """
    addresses: dict[str, str] = {}
    for source in sources:
        addresses.setdefault(f"{plain_address(source)}/", source)
    around = ""
    for address in sorted(addresses):
        if around and address.startswith(around):
            raise AutolabelError(
                f"source {storage.redact(addresses[address])} is inside source "
                f"{storage.redact(addresses[around])}: its frames would be labeled twice; name one"
            )
        around = address
    return {source: sources[source] for source in addresses.values()}


def pictures_among(sources: Sequence[str]) -> dict[str, File]:
    """Return those sources that are pictures, looked at several at a time.

    Raises:
        NotFoundError: one of them is not there.

    """
    named = [one for one in sources if suffix_of(one) in IMAGE_SUFFIXES]
    with ThreadPoolExecutor(_LOOKERS, "look") as pool:
        files = pool.map(stat_file, named)
        return {one: file for one, file in zip(named, files, strict=True) if file is not None}


def by_sequence(
    pictures: Iterable[File],
) -> tuple[str, dict[tuple[str, ...], dict[str, list[File]]]]:
    """Sort pictures into sequences as if the folders that they lie in had been listed.

    Returns:
        The folder around all of them, and by the names that lead from there to a sequence its
        pictures by camera.

    Raises:
        AutolabelError: pictures lie beside folders of cameras.

    """
    folders: dict[str, list[File]] = {}
    for file in pictures:
        folders.setdefault(file.uri.rpartition("/")[0], []).append(file)
    ways = [folder.split("/") for folder in folders]
    root = shared_beginning(ways)
    found: dict[tuple[str, ...], dict[str, list[File]]] = {}
    for folder, files in folders.items():
        names = tuple(folder.split("/")[len(root) :])
        camera = names[-1] if names and is_camera_name(names[-1]) else ""
        found.setdefault(names[:-1] if camera else names, {})[camera] = files
    for cameras in found.values():
        if len(cameras) > 1 and "" in cameras:
            one = storage.redact(cameras[""][0].uri)
            raise AutolabelError(
                f"{one} lies beside folders of cameras ({', '.join(sorted(filter(None, cameras)))})"
                ": label it for itself"
            )
    return "/".join(root) or "/", found


def refuse_output_inside(out_uri: str, sources: Iterable[str]) -> None:
    """Refuse labels that would lie where the frames are looked for.

    Raises:
        AutolabelError: the output is a source or in one.

    """
    out = PurePosixPath(plain_address(out_uri) or "/")
    for source in sources:
        address = plain_address(source) or "/"
        fits = [one for one in (out, *out.parents) if str(one) == address or one.match(address)]
        if fits:
            where = "is" if fits[0] == out else "is inside"
            raise AutolabelError(
                f"--out {storage.redact(out_uri)} {where} the source {storage.redact(source)}: "
                "every run would look for frames among labels; choose a folder beside it"
            )


def plain_address(source: str) -> str:
    """Return the one spelling of all addresses of a folder or file, without a "/" at its end."""
    if storage.is_local(source):
        return str(storage.local_path(source).resolve()).rstrip("/")
    fs, path = storage.filesystem(source)
    return f"{type(fs).__name__}://{path.rstrip('/')}"
