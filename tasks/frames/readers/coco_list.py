"""COCO json as a list of frames: `images` with `file_name`, their boxes left aside.

File names are relative to the json's folder, to the one around it, or to `images` or a folder named
like the split in one of these: the first is taken in which the first picture is. Sequences are
`video_id` (COCO-VID, TAO) or `sequence_id` (exports of this product), else folders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sam2_core.types import AutolabelError
from tasks.frames.patterns import IMAGE_SUFFIXES, suffix_of
from tasks.frames.readers.records import Record, RecordList, time_ns_of
from tasks.store import storage
from tasks.wording import counted


def _records(source: str) -> Iterator[Record]:
    where = storage.redact(source)
    try:
        content = json.loads(storage.read_bytes(source))
        images = [one for one in content["images"] if isinstance(one, dict)]
        videos = {one["id"]: str(one["name"]) for one in content.get("videos") or ()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AutolabelError(f"{where} is no COCO json with a list `images`: {error}") from error
    names = [str(one.get("file_name") or "") for one in images]
    if not any(names):
        raise AutolabelError(f"{where} has {counted(len(images), 'image')} and no `file_name`")
    base = _base(source, [name for name in names if name])
    for number, (one, name) in enumerate(zip(images, names, strict=True)):
        yield _record(one, name, base, videos, f"{where}: image number {number}")


def _record(
    one: Mapping[str, Any], name: str, base: str, videos: Mapping[Any, str], where: str
) -> Record:
    path = name.replace("\\", "/")
    problem = ""
    if not path or path.startswith("/") or ".." in path.split("/") or "://" in path:
        problem = f"{where}: file_name {name!r} is no path below {storage.redact(base)}"
        path = path.rpartition("/")[2] or f"image-{where.rpartition(' ')[2]}"
    elif suffix_of(path.rpartition("/")[2]) not in IMAGE_SUFFIXES:
        problem = f"{where}: file_name {name!r} is no picture"
    sequence = str(one.get("sequence_id") or videos.get(one.get("video_id"), ""))
    frame = one.get("frame_id", one.get("frame_index"))
    time_ns, problem = time_ns_of(one.get("timestamp_ns"), problem, where)
    return Record(
        storage.join(base, path),
        sequence,
        str(one.get("camera") or ""),
        frame if isinstance(frame, int) else None,
        time_ns,
        problem=problem,
    )


def _base(source: str, names: list[str]) -> str:
    """Find the folder that file names are relative to.

    Raises:
        AutolabelError: the first picture is in none of them.

    """
    folder, _, file = source.rpartition("/")
    above = folder.rpartition("/")[0]
    split = file.rpartition(".")[0].rpartition("_")[2]
    bases = [
        base
        for around in dict.fromkeys((folder, above))
        if around
        for base in (around, f"{around}/images", f"{around}/{split}")
    ]
    for name in names[:20]:  # the first ones may be gone
        for base in bases:
            if _is_file(storage.join(base, name)):
                return base
    shown = ", ".join(map(storage.redact, bases))
    raise AutolabelError(
        f"{storage.redact(source)} names {names[0]!r}, which is in none of: {shown}"
    )


def _is_file(uri: str) -> bool:
    from tasks.frames.listing import stat_file

    try:
        return stat_file(uri) is not None
    except storage.StorageError:
        return False


COCO_LIST = RecordList("coco", _records)
