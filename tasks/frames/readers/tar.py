"""Tar archives and WebDataset shards: pictures are read out of them one by one.

The archive is a folder for its members: folders named like cameras are cameras, others sequences.
WebDataset's members `KEY.CAMERA.jpg` are cameras, too, where the middle is named like one.
Only plain tar: out of a compressed one nothing can be read without all that is before it.
"""

from __future__ import annotations

import logging
import tarfile
from collections.abc import Iterator

from sam2_core.types import AutolabelError
from tasks.frames.addresses import address_of
from tasks.frames.listing import File, is_hidden, natural_key, stat_file
from tasks.frames.patterns import IMAGE_SUFFIXES, suffix_of
from tasks.frames.readers.folders import pictures
from tasks.frames.readers.protocol import Listed, Picture, Reader
from tasks.frames.source_names import is_camera_name
from tasks.store import storage

SUFFIX = ".tar"
_BESIDE = "other"  # camera of pictures beside those of named cameras
_ENDS = "the archive ends before this member does"

log = logging.getLogger(__name__)


class Tar(Reader):
    """Reads archives; those that are not on this machine are brought here to be listed."""

    name = "tar"

    def sequences(self, source: str) -> Iterator[Listed]:
        """List the sequences of an archive."""
        file = stat_file(source)
        if file is None:
            raise AutolabelError(f"{storage.redact(source)} is a folder and no archive")
        found = list(listed_archive(file, ()))
        if not found:
            raise AutolabelError(f"{storage.redact(source)} holds no pictures")
        yield from found


def listed_archive(archive: File, names: tuple[str, ...]) -> Iterator[Listed]:
    """List the sequences of an archive that lies in the folder `names` of a source.

    Raises:
        AutolabelError: it cannot be had, or is no archive.

    """
    members, problems = _members(archive)
    own = archive.name.rpartition(".")[0]
    for inner, cameras in sorted(_sorted(members).items()):
        listed = {
            camera: [
                Picture(one.file, one.timestamp_ns, problems.get(one.file.uri, ""))
                for one in pictures(cameras[camera])
            ]
            for camera in sorted(cameras, key=natural_key)
        }
        address = address_of(archive.uri, Tar.name, "/".join(inner))
        yield Listed((*names, own, *inner), address, listed)


def _sorted(members: list[File]) -> dict[tuple[str, ...], dict[str, list[File]]]:
    """Sort members by sequence and camera, as the folders and names that they have say."""
    found: dict[tuple[str, ...], dict[str, list[File]]] = {}
    for one in members:
        *folders, name = _path(one).split("/")
        camera, middle = "", name.split(".")[1:-1]
        if middle and is_camera_name(middle[-1]):
            camera = middle[-1]
        elif folders and is_camera_name(folders[-1]):
            camera = folders.pop()
        found.setdefault(tuple(folders), {}).setdefault(camera, []).append(one)
    for cameras in found.values():
        if "" in cameras and len(cameras) > 1:
            cameras[_BESIDE] = cameras.pop("")
    return found


def _path(member: File) -> str:
    return member.uri.partition(f"{SUFFIX}#")[2].rpartition("#at=")[0]


def _members(archive: File) -> tuple[list[File], dict[str, str]]:
    """Return the pictures in an archive, and by address why some cannot be read."""
    from tasks.frames.download import fetch

    path, where = fetch(archive.uri, archive.etag, archive.size_bytes), storage.redact(archive.uri)
    size = path.stat().st_size
    found: list[File] = []
    problems: dict[str, str] = {}
    end = 0
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                end = member.offset_data + member.size
                if not member.isfile() or not _is_wanted(member.name):
                    continue
                name = member.name.removeprefix("./")
                uri = f"{archive.uri}#{name}#at={member.offset_data}"
                found.append(File(name.rpartition("/")[2], uri, member.size, archive.etag))
                if end > size:
                    problems[uri] = f"{where}, member {name}: {_ENDS} (at byte {size} of {end})"
    except (tarfile.TarError, EOFError) as error:
        if not found:
            raise AutolabelError(
                f"{where} is no plain tar archive, or is damaged at byte {end}: {error}"
            ) from error
        log.warning("%s is damaged behind byte %d: %s", where, end, error)
    return found, problems


def _is_wanted(name: str) -> bool:
    parts = name.removeprefix("./").split("/")
    if any(part in {"", ".."} or is_hidden(part) for part in parts) or "\x00" in name:
        return False
    return suffix_of(parts[-1]) in IMAGE_SUFFIXES
