"""Files that hold many pictures: tar archives, WebDataset shards, and MCAP recordings.

An archive is a folder for its members: folders named like cameras are cameras, others sequences.
WebDataset's members `KEY.CAMERA.jpg` are cameras, too, where the middle is named like one. Only
plain tar: out of a compressed one nothing can be read without all that is before it.

A recording is a sequence, and topics with pictures are its cameras; a rosbag2 folder
(`metadata.yaml` beside its files) is one, too, whose files follow each other. A camera has the name
of the part of its topic that tells it from others.
"""

import logging
import posixpath
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from sam2_core.types import AutolabelError
from tasks.frames.download import fetch
from tasks.frames.identity import IMAGE_SUFFIXES, address_of, is_camera_name, suffix_of
from tasks.frames.listing import (
    File,
    Folder,
    ListedSequence,
    Reader,
    by_camera,
    count_elsewhere,
    natural_key,
    stat_file,
    walk,
)
from tasks.frames.mcap_pictures import COMPRESSED, KINDS, RAW, VIDEO, require_mcap, topics_of
from tasks.frames.unread import is_footage, is_path_read
from tasks.passed_over import PassedOver
from tasks.store import storage

TAR = ".tar"
_BESIDE = "other"  # camera of pictures beside those of named cameras
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00")
_NO_PICTURE = "video or recording in an archive", "videos or recordings in an archive"
_DANGLING = "link in an archive to no picture of it", "links in an archive to no picture of it"
_ENDS = "the archive ends before this member does"

log = logging.getLogger(__name__)


class Tar(Reader):
    """Reads archives; those that are not on this machine are brought here to be listed."""

    name = "tar"

    def sequences(
        self, source: str, passed_over: PassedOver, part: str = ""
    ) -> Iterator[ListedSequence]:
        """List the sequences of an archive."""
        file = stat_file(source)
        if file is None:
            raise AutolabelError(f"{storage.redact(source)} is a folder and no archive")
        found = list(list_archive(file, (), passed_over))
        if not found:
            told = f"; {passed_over.text}" if passed_over.text else ""
            raise AutolabelError(f"{storage.redact(source)} holds no pictures{told}")
        yield from found


def list_archive(
    archive: File, names: tuple[str, ...], passed_over: PassedOver
) -> Iterator[ListedSequence]:
    """List the sequences of an archive that lies in the folder `names` of a source.

    Raises:
        AutolabelError: it cannot be had, or is no archive.

    """
    members, broken = _members(archive, passed_over)
    own = archive.name.rpartition(".")[0]
    for inner, cameras in sorted(_sorted(members).items()):
        listed = by_camera(cameras)
        for shots in listed.values():  # what ends it is a frame of the camera that it follows
            if broken and any(shot.uri == members[-1].uri for shot in shots):
                shots.append(replace(broken, timestamp_ns=shots[-1].timestamp_ns))
        address = address_of(archive.uri, Tar.name, "/".join(inner))
        yield ListedSequence((*names, own, *inner), address, listed)


def _sorted(members: list[File]) -> dict[tuple[str, ...], dict[str, list[File]]]:
    """Sort members by sequence and camera, as the folders and names that they have say."""
    found: dict[tuple[str, ...], dict[str, list[File]]] = {}
    for member in members:
        *folders, name = _path(member).split("/")
        camera, middle = "", name.split(".")[1:-1]
        if middle and is_camera_name(middle[-1]):
            camera = middle[-1]
        elif folders and is_camera_name(folders[-1]):
            camera = folders.pop()
        found.setdefault(tuple(folders), {}).setdefault(camera, []).append(member)
    for cameras in found.values():
        if "" in cameras and len(cameras) > 1:
            cameras[_BESIDE] = cameras.pop("")
    return found


def _path(member: File) -> str:
    return member.uri.partition(f"{TAR}#")[2].rpartition("#at=")[0]


def _members(archive: File, passed_over: PassedOver) -> tuple[list[File], File | None]:
    """Return the pictures in an archive, and what ends it before its end."""
    path, where = fetch(archive.uri, archive.etag, archive.size_bytes), storage.redact(archive.uri)
    size = path.stat().st_size
    found: list[File] = []
    links: dict[str, str] = {}
    passed_folders = set[str]()
    end, damage = 0, ""
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                end = member.offset_data + member.size
                name = member.name.removeprefix("./").lstrip("/")  # as tar itself does
                if member.isdir() or not is_path_read(name, passed_over, passed_folders):
                    continue
                if suffix_of(name) not in IMAGE_SUFFIXES:
                    if is_footage(name):
                        passed_over.add(*_NO_PICTURE, example=name)
                    continue
                if not member.isfile():
                    folder = posixpath.dirname(name) if member.issym() else ""
                    links[name] = posixpath.normpath(posixpath.join(folder, member.linkname))
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
    by_path = {_path(member): member for member in found}
    for name, target in links.items():
        if target in by_path:
            by_path[name] = _linked(by_path[target], name)
            found.insert(0, by_path[name])  # the last one stays the last of the archive
        else:
            passed_over.add(*_DANGLING, example=name)
    whole = not any(shot.problem for shot in found)
    return found, _broken(found, where, end, damage) if whole else None


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


def _linked(target: File, name: str) -> File:
    """Return the picture that a link of an archive leads to, under the link's name."""
    beginning, _, offset = target.uri.rpartition("#at=")
    uri = f"{beginning.removesuffix(_path(target))}{name}#at={offset}"
    return replace(target, name=name.rpartition("/")[2], uri=uri)


MCAP, METADATA = ".mcap", "metadata.yaml"
# Ends of topics that say what is sent and not by whom.
_TOPIC_ENDS = frozenset(
    re.findall(
        r"\w+",
        """
        compressed compressed_video image image_raw image_rect image_rect_color image_color
        image_mono raw rect color video h264 h265 ffmpeg
        """,
    )
)
_NO_CAMERAS = ("depth", "disparity")
_ORDER = (COMPRESSED, VIDEO, RAW)
_SHOWN = 8


class Mcap(Reader):
    """Reads recordings."""

    name = "mcap"

    def fits(self, folder: Folder) -> bool:
        """Whether it is a rosbag2 folder."""
        return METADATA in folder.files and any(
            suffix_of(name) in {MCAP, ".db3"} for name in folder.files
        )

    def sequences(
        self, source: str, passed_over: PassedOver, part: str = ""
    ) -> Iterator[ListedSequence]:
        """List a recording, or a rosbag2 folder, as one sequence; of other folders each file."""
        require_mcap()
        file = stat_file(source)
        if file is not None:
            yield list_recording([file], (file.name.rpartition(".")[0],), source)
            return
        found = dict(walk(source, passed_over))
        files = found.get((), [])
        parts = [file for file in files if suffix_of(file.name) == MCAP]
        others = (file for file in chain(*found.values()) if file not in parts)
        count_elsewhere(others, passed_over)
        if not parts:
            raise AutolabelError(
                f"{storage.redact(source)} holds no .mcap file; `ros2 bag convert` makes them of "
                "rosbag2's other storages"
            )
        if any(file.name == METADATA for file in files):
            _tell_of_missing(source, {part.name for part in parts})
            yield list_recording(parts, (), source)
            return
        for recording in sorted(parts, key=lambda part: natural_key(part.name)):
            name = recording.name.rpartition(".")[0]
            yield list_recording([recording], (name,), recording.uri)


def _tell_of_missing(folder: str, there: set[str]) -> None:
    """Tell of the files of a rosbag2 recording that are not beside its metadata."""
    uri = storage.join(folder, METADATA)
    text = storage.text_of(storage.read_bytes(uri))
    named = re.findall(r"[^][,'\"/\s]+\.mcap\b", text)
    gone = [name for name in dict.fromkeys(named) if name not in there]
    if gone:
        log.warning("%s names %s, not there", storage.redact(uri), " and ".join(gone[:3]))


def list_recording(files: Sequence[File], names: tuple[str, ...], folder: str) -> ListedSequence:
    """List a recording in one or several files.

    Raises:
        AutolabelError: it cannot be read, or has no pictures; names its topics.

    """
    ordered = sorted(files, key=lambda file: natural_key(file.name))
    of_file = {
        file.uri: topics_of(file.uri, partial(fetch, file.uri, file.etag, file.size_bytes))
        for file in ordered
    }
    schemas = {topic: name for topics in of_file.values() for topic, name in topics.items()}
    cameras = cameras_of(schemas, storage.redact(ordered[0].uri))
    if not cameras:
        some = [f"{topic} ({name})" for topic, name in sorted(schemas.items())[:_SHOWN]]
        raise AutolabelError(
            f"{storage.redact(ordered[0].uri)} holds no topic with pictures, only: "
            + ", ".join(some) + (", ..." if len(schemas) > _SHOWN else "")
        )  # fmt: skip
    pictures = {
        camera: [
            replace(file, stream=topic) for file in ordered if topic in of_file[file.uri]
        ]
        for camera, topic in sorted(cameras.items(), key=lambda pair: natural_key(pair[0]))
    }  # fmt: skip
    return ListedSequence(names, address_of(folder, Mcap.name, ""), pictures)


def cameras_of(schemas: Mapping[str, str], where: str = "") -> dict[str, str]:
    """Choose a topic for each camera: compressed pictures before video before raw ones.

    Args:
        schemas: of the topics.
        where: the recording, for the log.

    """
    ways: dict[tuple[str, ...], dict[str, str]] = {}
    for topic, name in sorted(schemas.items()):
        if name in KINDS and not any(word in topic.lower() for word in _NO_CAMERAS):
            way = [part for part in topic.split("/") if part]
            while len(way) > 1 and way[-1] in _TOPIC_ENDS:
                way.pop()
            ways.setdefault(tuple(way), {}).setdefault(KINDS[name], topic)
    last = [parts[-1] for parts in ways]
    cameras = {}
    for parts, topics in ways.items():
        camera = parts[-1] if last.count(parts[-1]) == 1 else "_".join(parts)
        cameras[camera] = next(topics[kind] for kind in _ORDER if kind in topics)
        unused = sorted({*topics.values()} - {cameras[camera]})
        if unused:
            log.info("%s: camera %s: %s, not %s", where, camera, cameras[camera], ", ".join(unused))
    return cameras
