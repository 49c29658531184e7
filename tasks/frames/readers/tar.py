"""Tar archives and WebDataset shards: pictures are read out of them one by one.

The archive is a folder for its members: folders named like cameras are cameras, others sequences.
WebDataset's members `KEY.CAMERA.jpg` are cameras, too, where the middle is named like one.
Only plain tar: out of a compressed one nothing can be read without all that is before it.
"""

from __future__ import annotations

import logging
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sam2_core.types import AutolabelError
from tasks.frames.identity import IMAGE_SUFFIXES, address_of, is_camera_name, suffix_of
from tasks.frames.listing import File, ListedSequence, Reader, is_hidden, stat_file
from tasks.frames.readers.folders import by_camera
from tasks.store import storage
from tasks.wording import counted

SUFFIX = ".tar"
_BESIDE = "other"  # camera of pictures beside those of named cameras
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00")
_ENDS = "the archive ends before this member does"

log = logging.getLogger(__name__)


class Tar(Reader):
    """Reads archives; those that are not on this machine are brought here to be listed."""

    name = "tar"

    def sequences(self, source: str) -> Iterator[ListedSequence]:
        """List the sequences of an archive."""
        file = stat_file(source)
        if file is None:
            raise AutolabelError(f"{storage.redact(source)} is a folder and no archive")
        found = list(list_archive(file, ()))
        if not found:
            raise AutolabelError(f"{storage.redact(source)} holds no pictures")
        yield from found


def list_archive(archive: File, names: tuple[str, ...]) -> Iterator[ListedSequence]:
    """List the sequences of an archive that lies in the folder `names` of a source.

    Raises:
        AutolabelError: it cannot be had, or is no archive.

    """
    members, broken = _members(archive)
    own = archive.name.rpartition(".")[0]
    for inner, cameras in sorted(_sorted(members).items()):
        listed = by_camera(cameras)
        for shots in listed.values():  # what ends it is a frame of the camera that it follows
            if broken and any(one.uri == members[-1].uri for one in shots):
                shots.append(replace(broken, timestamp_ns=shots[-1].timestamp_ns))
        address = address_of(archive.uri, Tar.name, "/".join(inner))
        yield ListedSequence((*names, own, *inner), address, listed)


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


def _members(archive: File) -> tuple[list[File], File | None]:
    """Return the pictures in an archive, and what ends it before its end."""
    from tasks.frames.download import fetch

    path, where = fetch(archive.uri, archive.etag, archive.size_bytes), storage.redact(archive.uri)
    size = path.stat().st_size
    found: list[File] = []
    refused: list[str] = []
    end, damage = 0, ""
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                end = member.offset_data + member.size
                name = _name(member)
                if not _is_wanted(name) or not member.isfile():
                    continue
                if _leads_out(name):
                    refused.append(name)
                    continue
                uri = f"{archive.uri}#{name}#at={member.offset_data}"
                problem = f"{where}, member {name}: {_ENDS} (at byte {size} of {end})"
                file = File(name.rpartition("/")[2], uri, member.size, archive.etag)
                found.append(replace(file, problem=problem if end > size else ""))
            end = tar.offset
            # To tarfile any header that it cannot read ends an archive; zeros do, or nothing.
            damage = "what is there is no header of a member" if _is_more(path, end) else ""
    except (tarfile.TarError, EOFError) as error:
        if not found:
            raise AutolabelError(
                f"{where} is no plain tar archive, or is damaged at byte {end}: {error}"
                + (" (it is compressed: unpack it first)" if _is_compressed(path) else "")
            ) from error
        damage = str(error)
    _tell(where, found, refused)
    whole = not any(one.problem for one in found)
    return found, _broken(found, where, end, damage) if whole else None


def _name(member: tarfile.TarInfo) -> str:
    """Name of a member below the archive; as tar itself does, without a slash at its beginning."""
    return member.name.removeprefix("./").lstrip("/")


def _is_compressed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6).startswith(_COMPRESSED)


def _is_more(path: Path, at: int) -> bool:
    with path.open("rb") as file:
        file.seek(at)
        return any(file.read(tarfile.BLOCKSIZE))


def _broken(found: list[File], where: str, end: int, damage: str) -> File | None:
    """Return what stands for all members behind a damaged byte; None where there is none."""
    if not damage or not found:
        return None
    last, name = found[-1], f"behind-byte-{end}"
    folder = last.uri.rpartition("#at=")[0].rpartition(last.name)[0]
    uri = f"{folder}{name}#at={end}"
    problem = f"{where} is damaged behind its byte {end}: {damage}"
    return replace(last, name=name, uri=uri, size_bytes=0, problem=problem)


def _tell(where: str, found: list[File], refused: list[str]) -> None:
    """Tell of names that lead elsewhere, and of keys with several pictures.

    Raises:
        AutolabelError: all names lead elsewhere.

    """
    if refused:
        told = f"{counted(len(refused), 'picture')} with a name that leads out of it"
        told += f" or is not UTF-8: {refused[0]!r}"
        if not found:
            raise AutolabelError(f"{where} holds only {told}")
        log.warning("%s: %s left out", where, told)
    pictures_of: dict[str, list[str]] = {}
    for one in found:
        member = _path(one)
        pictures_of.setdefault(member.rpartition(".")[0], []).append(member)
    several = {tuple(names) for names in pictures_of.values() if len(set(names)) > 1}
    if several:
        log.warning(
            "%s: %s several pictures, and each is a frame: %s", where,
            counted(len(several), "key has", "keys have"), " and ".join(min(several)),
        )  # fmt: skip


def _leads_out(name: str) -> bool:
    """Whether a name leads out of the archive, or is none that a table can hold."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return True
    return ".." in name.split("/") or not name.isprintable()


def _is_wanted(name: str) -> bool:
    parts = name.split("/")
    if any(part == "" or (is_hidden(part) and part != "..") for part in parts):
        return False
    return suffix_of(parts[-1]) in IMAGE_SUFFIXES
