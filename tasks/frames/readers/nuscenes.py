"""nuScenes, nuImages and T4: tables of tokens that say which picture is whose, and when.

A dataset has its tables in `v1.0-*/` (nuScenes, nuImages) or `annotation/` (T4) and its pictures
beside them. A sequence is a scene; of nuImages, which has none, a log. Of a folder of datasets each
is found, and of T4's numbered versions the last. Pictures that the tables name and that are not
there are failures, but for sweeps: those are often left out of a download.

Formats: nuscenes-devkit, docs/schema_nuscenes.md and schema_nuimages.md; tier4/t4-devkit,
docs/schema.
"""

import contextlib
import functools
import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sam2_core.types import AutolabelError
from tasks.frames.download import fetch
from tasks.frames.identity import IMAGE_SUFFIXES, address_of, fits_int64, suffix_of
from tasks.frames.listing import File, Folder, ListedSequence, Reader, natural_key, stat_file, walk
from tasks.passed_over import PassedOver
from tasks.store import storage

_TABLES = re.compile(r"annotation|v\d+\.\d+(-\w+)*")
_NEEDED = {"sample_data.json", "calibrated_sensor.json", "sensor.json", "sample.json"}
_PIECE, _BETWEEN = 1 << 20, re.compile(r"[\s,]*")  # characters
Row = dict[str, Any]
_INVALID = "picture with is_valid false", "pictures with is_valid false"
_STRAY = "picture of no sample with a scene", "pictures of no sample with a scene"
_NOT_THERE = "sweep that is not there", "sweeps that are not there"
_LEVELS = 2  # of folders above a dataset: T4's are in ID/VERSION

log = logging.getLogger(__name__)


class NuScenes(Reader):
    """Reads datasets of tokens."""

    name = "nuscenes"

    def fits(self, folder: Folder) -> bool:
        """Whether it, or the first folder in it, has such tables."""
        for _ in range(_LEVELS + 1):
            if table_folders(folder):
                return True
            if not folder.folders:
                return False
            folder = folder / folder.folders[0]
        return False

    def sequences(
        self, source: str, passed_over: PassedOver, part: str = ""
    ) -> Iterator[ListedSequence]:
        """List the scenes of each dataset."""
        found, where = False, ""
        for names, folder, tables in datasets(Folder(source), passed_over):
            where = where or storage.redact(storage.join(folder, tables[0]))
            for listed in _scenes(names, folder, tables, passed_over, part):
                found = True
                yield listed
        if where and not found:
            raise AutolabelError(
                f"{where}: no picture in sample_data.json leads by its tokens to a sample, and by "
                "that to a row of scene.json (nuImages: log.json)"
            )
        if not found:
            raise AutolabelError(
                f"{storage.redact(source)} holds no dataset of nuScenes' form: a folder "
                f"`annotation` or `v1.0-...` with {', '.join(sorted(_NEEDED))}"
            )


def table_folders(folder: Folder) -> list[str]:
    """Names of the folders in a dataset that hold its tables; one of them may be missing."""
    names = [name for name in folder.folders if _TABLES.fullmatch(name)]
    return [name for name in names if len((folder / name).files & _NEEDED) > 1]


def datasets(
    folder: Folder, passed_over: PassedOver | None = None, names: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str, list[str]]]:
    """Yield the datasets in a folder: way to it, its folder, the folders of its tables."""
    passed_over = passed_over or PassedOver()
    tables = table_folders(folder)
    if tables:
        yield names, folder.uri, tables
        return
    if len(names) == _LEVELS:
        return
    folders = sorted(folder.folders, key=natural_key)
    if names and all(map(str.isdecimal, folders)):
        for name in folders[:-1]:
            passed_over.add(
                "older version of a dataset", "older versions of datasets", example=name
            )
        folders = folders[-1:]
    for name in folders:
        yield from datasets(folder / name, passed_over, (*names, name))


def rows(uri: str) -> Iterator[Row]:
    """Rows of a table, one after another: large datasets have gigabytes of them.

    Raises:
        AutolabelError: it cannot be read, or is damaged; says where.

    """
    listed, where = stat_file(uri), storage.redact(uri)
    path = fetch(uri, listed.etag, listed.size_bytes) if listed else storage.local_path(uri)
    decode, passed = json.JSONDecoder().raw_decode, 0
    with storage.explained("read", uri), path.open(encoding="utf-8-sig", errors="replace") as file:
        text = file.read(_PIECE).lstrip()
        at = int(text.startswith("["))
        while at:
            between = _BETWEEN.match(text, at)
            at = between.end() if between else at
            if text[at : at + 1] == "]":
                return
            try:
                row, end = decode(text, at)
            except ValueError:
                end = len(text)
            if end < len(text):
                if not isinstance(row, dict):
                    raise AutolabelError(f"{where}: a row is no object: {row!r:.60}")
                yield row
                at = end
                continue
            more = file.read(_PIECE)
            if not more:
                break
            passed, text, at = passed + at - 1, text[at - 1 :] + more, 1
    raise AutolabelError(f"{where} is damaged at its character {passed + at}: no list ends")


@dataclass(slots=True)
class _Shot:
    """A picture as `sample_data` names it."""

    filename: str
    timestamp_ns: int
    is_key: bool
    problem: str


_Scenes = dict[str, dict[str, list[_Shot]]]  # by scene and camera
_reading = threading.Lock()


def _by_token(folder: str, table: str, *, by_log: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Return the camera of each calibrated sensor, "" for none, and the scene of each sample."""

    def rows_of(name: str) -> Iterator[Row]:
        return rows(storage.join(folder, table, f"{name}.json"))

    sensors = {
        str(row.get("token")): str(row.get("channel")) if row.get("modality") == "camera" else ""
        for row in rows_of("sensor")
    }
    channels = {
        str(row.get("token")): sensors[str(row.get("sensor_token"))]
        for row in rows_of("calibrated_sensor")
        if str(row.get("sensor_token")) in sensors
    }
    called, key = ("logfile", "log_token") if by_log else ("name", "scene_token")
    scenes = {
        str(row.get("token")): str(row.get(called) or row.get("token"))
        for row in rows_of("log" if by_log else "scene")
    }
    several = {name for name, count in Counter(scenes.values()).items() if count > 1}
    for name in sorted(several):
        log.warning("%s: several scenes are called %s", storage.redact(folder), name)
    scenes = {
        token: f"{name}-{token}" if name in several else name for token, name in scenes.items()
    }
    scene_of = {
        str(row.get("token")): scenes[str(row.get(key))]
        for row in rows_of("sample")
        if str(row.get(key)) in scenes
    }
    return channels, scene_of


def _why_not(row: Row, camera: str | None, scene_of: Mapping[str, str]) -> str:
    """Say why a picture cannot be labeled; "" where it can."""
    filename = str(row["filename"])
    if camera is None:
        return f"calibrated_sensor_token {row.get('calibrated_sensor_token')} is in no table"
    if str(row.get("sample_token")) not in scene_of:
        return f"sample_token {row.get('sample_token')} is of no sample of a scene"
    if filename.startswith("/") or ".." in filename.split("/"):
        return f"filename {filename!r} leads out of the dataset"
    return "" if _time_ns(row) >= 0 else f"timestamp {row.get('timestamp')!r} is no time"


@functools.lru_cache(maxsize=1)
def _read_tables(
    folder: str, table: str, versions: tuple[tuple[str, str], ...]
) -> tuple[_Scenes, Counter[tuple[str, str]]]:
    """Read the tables of a dataset; returns its scenes, and how many pictures are passed over.

    A shard lists each of its sequences anew, and large tables take minutes to read.

    Args:
        folder: of the dataset.
        table: name of the folder of its tables.
        versions: name and etag of each table.

    """
    channels, scene_of = _by_token(folder, table, by_log="scene.json" not in dict(versions))
    found: _Scenes = {name: {} for name in dict.fromkeys(scene_of.values())}
    only = next(iter(found)) if len(found) == 1 else None
    passed_over = Counter[tuple[str, str]]()
    for row in rows(storage.join(folder, table, "sample_data.json")):
        camera = channels.get(str(row.get("calibrated_sensor_token")))
        filename = str(row.get("filename") or "")
        if camera == "" or suffix_of(filename) not in IMAGE_SUFFIXES:
            continue
        if row.get("is_valid") is False:
            passed_over[_INVALID] += 1
            continue
        scene = scene_of.get(str(row.get("sample_token")), only)
        if scene is None:
            passed_over[_STRAY] += 1
            continue
        why = _why_not(row, camera, scene_of)
        why = why and f"{table}/sample_data.json, token {row.get('token')}: {why}"
        shot = _Shot(filename, _time_ns(row), bool(row.get("is_key_frame", True)), why)
        camera = camera or filename.rpartition("/")[0].rpartition("/")[2] or "_"
        found[scene].setdefault(camera, []).append(shot)
    return found, passed_over


def _scenes(
    names: tuple[str, ...],
    folder: str,
    tables: list[str],
    passed_over: PassedOver,
    wanted: str = "",
) -> Iterator[ListedSequence]:
    for table in tables:
        has = (Folder(folder) / table).files
        if _NEEDED - has:
            raise AutolabelError(
                f"{storage.redact(storage.join(folder, table))} lacks "
                f"{', '.join(sorted(_NEEDED - has))}: without it no picture has a scene and a "
                "camera. To label it as plain folders: --layout folders"
            )
        used = sorted((_NEEDED | {"scene.json", "log.json"}) & has)
        listed = [stat_file(storage.join(folder, table, name)) for name in used]
        versions = tuple(
            (name, file.etag if file else "") for name, file in zip(used, listed, strict=True)
        )
        with _reading:
            scenes, left_out = _read_tables(folder, table, versions)
        passed_over.counts.update(left_out)
        find = None if wanted else _finder(folder)
        for scene, cameras in scenes.items():
            own: tuple[str, ...] = (scene,) if len(tables) == 1 else (table, scene)
            part = "/".join(own)
            if wanted not in {"", part}:
                continue
            find = find or _finder(folder, cameras)
            pictures = {
                camera: list(_files_of_camera(folder, shots, find, passed_over))
                for camera, shots in sorted(cameras.items(), key=lambda pair: natural_key(pair[0]))
            }
            if any(pictures.values()):
                yield ListedSequence(
                    (*names, *own), address_of(folder, NuScenes.name, part), pictures
                )


def _time_ns(row: Row) -> int:
    """Nanoseconds since 1970 of a row's microseconds, -1 where it has none."""
    try:
        time_ns = int(row["timestamp"]) * 1000
    except (KeyError, TypeError, ValueError, OverflowError):
        return -1
    return time_ns if fits_int64(time_ns) else -1


def _finder(
    folder: str, cameras: Mapping[str, Sequence[_Shot]] | None = None
) -> Callable[[str], File | None]:
    """Return what finds files of a dataset by their paths in it.

    Args:
        folder: of the dataset.
        cameras: of the one scene that is wanted. None for all: those of a bucket are listed.

    """

    def find(path: str) -> File | None:
        with contextlib.suppress(storage.NotFoundError):
            return stat_file(storage.join(folder, path))
        return None

    if storage.is_local(folder):
        return find
    if cameras is not None:
        names = [shot.filename for shots in cameras.values() for shot in shots if not shot.problem]
        return dict(zip(names, storage.at_once(find, names), strict=True)).get
    return {
        "/".join((*names, file.name)): file
        for names, files in walk(folder)
        for file in files
        if suffix_of(file.name) in IMAGE_SUFFIXES
    }.get


def _files_of_camera(
    folder: str, shots: list[_Shot], find: Callable[[str], File | None], passed_over: PassedOver
) -> Iterator[File]:
    first_ns = min((shot.timestamp_ns for shot in shots if shot.timestamp_ns >= 0), default=None)
    before = None
    for shot in sorted(shots, key=lambda taken: (taken.timestamp_ns, taken.filename)):
        if shot == before:  # the same row twice
            continue
        before = shot
        file = None if shot.problem else find(shot.filename)
        if file is None and not shot.problem and not shot.is_key:
            passed_over.add(*_NOT_THERE, example=shot.filename)
            continue
        time_ns = shot.timestamp_ns if shot.timestamp_ns >= 0 else first_ns
        if file is None:  # made up, always below the dataset
            parts = [part for part in shot.filename.split("/") if part not in {"", ".", ".."}]
            file = File(parts[-1], storage.join(folder, *parts), 0, "")
        yield replace(file, timestamp_ns=time_ns, problem=shot.problem)
