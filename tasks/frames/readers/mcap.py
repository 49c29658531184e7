"""MCAP recordings and rosbag2 folders with MCAP storage: topics with pictures are cameras.

A recording is a sequence; a rosbag2 folder (`metadata.yaml` beside its files) is one, too, whose
files follow each other. A camera has the name of the part of its topic that tells it from others.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from sam2_core.types import AutolabelError
from tasks.frames.download import fetch
from tasks.frames.identity import address_of, suffix_of
from tasks.frames.listing import File, Folder, ListedSequence, Reader, natural_key, stat_file, walk
from tasks.frames.mcap_pictures import COMPRESSED, KINDS, RAW, VIDEO, require_mcap, topics_of
from tasks.store import storage

SUFFIX, METADATA = ".mcap", "metadata.yaml"
# Ends of topics that say what is sent and not by whom.
_ENDS = frozenset(
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

log = logging.getLogger(__name__)


class Mcap(Reader):
    """Reads recordings."""

    name = "mcap"

    def fits(self, folder: Folder) -> bool:
        """Whether it is a rosbag2 folder."""
        return METADATA in folder.files and any(
            suffix_of(name) in {SUFFIX, ".db3"} for name in folder.files
        )

    def sequences(self, source: str) -> Iterator[ListedSequence]:
        """List a recording, or a rosbag2 folder, as one sequence; of other folders each file."""
        require_mcap()
        file = stat_file(source)
        if file is not None:
            yield list_recording([file], (file.name.rpartition(".")[0],), source)
            return
        files = next((files for names, files in walk(source) if not names), [])
        parts = [one for one in files if suffix_of(one.name) == SUFFIX]
        if not parts:
            raise AutolabelError(
                f"{storage.redact(source)} holds no .mcap file; `ros2 bag convert` makes them of "
                "rosbag2's other storages"
            )
        if any(one.name == METADATA for one in files):
            _tell_of_missing(source, {one.name for one in parts})
            yield list_recording(parts, (), source)
            return
        for one in sorted(parts, key=lambda part: natural_key(part.name)):
            yield list_recording([one], (one.name.rpartition(".")[0],), one.uri)


def _tell_of_missing(folder: str, there: set[str]) -> None:
    """Tell of the files of a rosbag2 recording that are not beside its metadata."""
    import yaml

    uri = storage.join(folder, METADATA)
    try:
        told = yaml.safe_load(storage.read_bytes(uri))["rosbag2_bagfile_information"]
        named = [one for one in told.get("relative_file_paths") or () if isinstance(one, str)]
    except (yaml.YAMLError, LookupError, TypeError, AttributeError, storage.StorageError) as error:
        log.warning("%s cannot be read: %s", storage.redact(uri), error)
        return
    gone = [one for one in named if one.rpartition("/")[2] not in there]
    if gone:
        log.warning("%s names %s, not there", storage.redact(uri), " and ".join(gone[:3]))


def list_recording(files: Sequence[File], names: tuple[str, ...], folder: str) -> ListedSequence:
    """List a recording in one or several files.

    Raises:
        AutolabelError: it cannot be read, or has no pictures; names its topics.

    """
    ordered = sorted(files, key=lambda one: natural_key(one.name))
    of_file = {
        one.uri: topics_of(one.uri, partial(fetch, one.uri, one.etag, one.size_bytes))
        for one in ordered
    }
    schemas = {topic: name for topics in of_file.values() for topic, name in topics.items()}
    cameras = cameras_of(schemas)
    if not cameras:
        some = [f"{topic} ({name})" for topic, name in sorted(schemas.items())[:_SHOWN]]
        raise AutolabelError(
            f"{storage.redact(ordered[0].uri)} holds no topic with pictures, only: "
            + ", ".join(some) + (", ..." if len(schemas) > _SHOWN else "")
        )  # fmt: skip
    pictures = {
        camera: [
            replace(one, stream=topic) for one in ordered if topic in of_file[one.uri]
        ]
        for camera, topic in sorted(cameras.items(), key=lambda one: natural_key(one[0]))
    }  # fmt: skip
    return ListedSequence(names, address_of(folder, Mcap.name, ""), pictures)


def cameras_of(schemas: Mapping[str, str]) -> dict[str, str]:
    """Choose a topic for each camera: compressed pictures before video before raw ones."""
    ways: dict[tuple[str, ...], dict[str, str]] = {}
    for topic, name in sorted(schemas.items()):
        if name in KINDS and not any(word in topic.lower() for word in _NO_CAMERAS):
            way = [part for part in topic.split("/") if part]
            while len(way) > 1 and way[-1] in _ENDS:
                way.pop()
            ways.setdefault(tuple(way), {}).setdefault(KINDS[name], topic)
    last = [parts[-1] for parts in ways]
    cameras = {}
    for parts, topics in ways.items():
        camera = parts[-1] if last.count(parts[-1]) == 1 else "_".join(parts)
        cameras[camera] = next(topics[kind] for kind in _ORDER if kind in topics)
        unused = sorted({*topics.values()} - {cameras[camera]})
        if unused:
            log.info("camera %s: %s, not %s", camera, cameras[camera], ", ".join(unused))
    return cameras
