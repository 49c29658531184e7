"""One bootstrap of a FiftyOne dataset: media type, every field, indexes; then writers only write.

Fields that several writers add at the same time corrupt a dataset's schema, and the first of them
to set the media type makes the others fail. So all of it is declared once, under a lock that lives
in the same database.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from sam2_core.types import AutolabelError
from tasks.dataset import layout
from tasks.dataset.appearance import arrange_app
from tasks.dataset.database_access import database_lock, reach_database, waits_for_database
from tasks.store import storage
from tasks.store.roots import first_root

MACHINE_FIELD, PREVIOUS_FIELD, TRUTH_FIELD = "detections", "previous", "ground_truth"
REVIEWED_FIELD, STATUS_FIELD, LOG_FIELD = "reviewed", "review_status", "review_log"
RELABEL_FIELD, RISK_FIELD, REASONS_FIELD = "relabel", "risk", "reasons"
GROUP_FIELD = "group"
OBJECT_PATH = f"{MACHINE_FIELD}.detections.object"
OPEN, DONE = "open", "done"
FIELDS_VERSION = 5  # of what `_declare_fields` declares
LOCK_SECONDS = 60.0
OTHER_DATASET = "name another one for {out}, such as --dataset '{free}'"
# FiftyOne has one object a dataset in a process, for all threads. Loading it saves it, and what
# another thread changes meanwhile is then taken for saved.
_DATASET_OBJECTS = threading.RLock()
log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,98}")


@waits_for_database
def bootstrap_dataset(name: str, cameras: Sequence[str] = (), out_uri: str = "") -> None:
    """Create a persistent dataset, or bring an existing one up to date. Safe to call at once.

    Args:
        name: letters, digits, spaces and `._+-`, at most 99.
        cameras: every camera name that may come; two or more make a grouped dataset.
        out_uri: the run's storage: the dataset belongs to it from now on, and reviews go there.

    Raises:
        AutolabelError: a bad name, or the dataset is there with another kind of media or belongs
            to another storage.

    """
    check_name(name)
    reach_database()
    import fiftyone as fo
    import fiftyone.core.odm as foo

    with dataset_lock(name):
        if fo.dataset_exists(name):
            dataset = fo.load_dataset(name, reload=True)
        else:
            dataset = fo.Dataset(name, persistent=True)
        _set_media(dataset, [camera for camera in dict.fromkeys(cameras) if camera])
        if dataset.info.get("fields") != FIELDS_VERSION:
            _declare_fields(dataset)
            dataset.info["fields"] = FIELDS_VERSION  # saved at the end: a kill in between counts
        _create_indexes(dataset)
        arrange_app(dataset)
        if out_uri:
            refuse_other_out(foo.get_db_conn(), name, out_uri)
            # Read again from whatever folder a process starts in.
            dataset.info["out_uris"] = [storage.canonical(out_uri)]
            dataset.info["first_root"] = first_root(out_uri)
        dataset.save()


def existing_dataset(name: str) -> Any | None:
    """Load a dataset of any kind; None where there is none of this name."""
    check_name(name)
    reach_database()
    import fiftyone as fo

    if not fo.dataset_exists(name):
        return None
    with _DATASET_OBJECTS:
        return fo.load_dataset(name)


def is_name(text: str) -> bool:
    """Whether a dataset can be called so."""
    return bool(_NAME.fullmatch(text))


def check_name(name: str) -> None:
    """Raise AutolabelError for what cannot be the name of a dataset."""
    if not is_name(name):
        raise AutolabelError(
            f"'{name}' is not a dataset name: use letters, digits, spaces and . _ + -, at most 99"
        )


def open_dataset(name: str, *, ours: bool = True) -> Any:
    """Load a dataset that `bootstrap_dataset` made, or, with `ours` off, any that is only read.

    Raises:
        AutolabelError: there is none, or it was made by something else.

    """
    reach_database()
    import fiftyone as fo

    if not fo.dataset_exists(name):
        known = ", ".join(sorted(fo.list_datasets())[:10]) or "none yet"
        raise AutolabelError(f"no dataset '{name}' in FiftyOne (there are: {known})")
    with _DATASET_OBJECTS:
        dataset = fo.load_dataset(name)
    if ours and "frame_key" not in dataset.get_field_schema():
        raise AutolabelError(
            f"dataset '{name}' was not made by autolabel: choose another name with --dataset"
        )
    return dataset


def stored_dataset(name: str) -> Any:
    """Return a dataset of ours as `layout.stored_dataset` does.

    Raises:
        AutolabelError: as `open_dataset`.

    """
    reach_database()
    found = layout.stored_dataset(name)
    if found is None or "frame_key" not in found.fields:
        return open_dataset(name)  # says what is wrong
    return found


def _set_media(dataset: Any, cameras: Sequence[str]) -> None:
    grouped = len(cameras) > 1 or dataset.media_type == "group"
    if dataset.media_type not in (None, "image", "group"):
        raise AutolabelError(
            f"dataset '{dataset.name}' holds {dataset.media_type} samples and cannot take "
            f"{'several cameras' if grouped else 'single images'}: choose another name"
        )
    if not grouped:
        if dataset.media_type is None:
            dataset.media_type = "image"
        return
    if dataset.group_field is None:
        _make_groups(dataset, cameras[0])
    for camera in cameras:
        if camera not in (dataset.group_media_types or {}):
            dataset.add_group_slice(camera, "image")


def _make_groups(dataset: Any, default: str) -> None:
    """Make a dataset a grouped one; samples that it has become groups of their own.

    The next load of their sequences joins them to the other cameras' frames.
    """
    held = sorted(one for one in layout.sample_collection(dataset).distinct("camera") if one)
    dataset.add_group_field(GROUP_FIELD, default=default)
    for camera in held:
        dataset.add_group_slice(camera, "image")
    camera = {"$cond": [{"$in": ["$camera", ["", None]]}, default, "$camera"]}
    alone = layout.group_element("$_id", camera)
    missing = {GROUP_FIELD: {"$exists": False}}
    layout.sample_collection(dataset).update_many(missing, [{"$set": {GROUP_FIELD: alone}}])


def _declare_fields(dataset: Any) -> None:
    """Declare every field as one sample that has them all would."""
    import fiftyone as fo

    def label(**more: Any) -> Any:
        return fo.Detections(
            detections=[
                fo.Detection(
                    label="", bounding_box=[0.0, 0.0, 0.0, 0.0], confidence=0.0, index=0,
                    predicted_iou=0.0, stability=0.0, object_score=0.0, risk=0.0, box_index=0,
                    area_px=0, model="", mask_reason="", decision="", track="", track_label="",
                    source="", object="", changed="", fingerprint="", difference=0.0, reasons=[""],
                    box_xyxy_px=[0.0],
                    **more,
                )
            ]
        )  # fmt: skip

    moment = datetime.datetime.now(datetime.UTC)
    sample = fo.Sample(
        filepath="/autolabel-schema.jpg", frame_key="", sequence_id="", camera="", frame_number=0,
        timestamp_ns=0, frame_uri="", frame_address="", frame_etag="", run_key="", model="",
        stamp={"": ""}, previous_model="", loaded_at=moment, instances=0, control=0.0,
        difference=0.0,
        metadata=fo.ImageMetadata(width=0, height=0, size_bytes=0, mime_type="", num_channels=0),
        **{
            MACHINE_FIELD: label(), PREVIOUS_FIELD: label(),
            REVIEWED_FIELD: label(reviewer="", reviewed_at="", sources=[""]),
            TRUTH_FIELD: fo.Detections(
                detections=[fo.Detection(label="", bounding_box=[0.0, 0.0, 0.0, 0.0])]
            ),
            RISK_FIELD: 0.0, REASONS_FIELD: [""], STATUS_FIELD: "", RELABEL_FIELD: "",
            LOG_FIELD: [{"": ""}],
        },
    )  # fmt: skip
    layout.declare_fields(dataset, sample)


def _create_indexes(dataset: Any) -> None:
    # The queue reads (status, risk), the risk of sequences all of its index and nothing else, the
    # sequence views (sequence, camera, frame).
    existing = set(dataset.list_indexes())
    if "frame_key" not in existing:
        dataset.create_index("frame_key", unique=True)
    for name in {RISK_FIELD, REASONS_FIELD, RELABEL_FIELD, "control", OBJECT_PATH} - existing:
        dataset.create_index(name)
    dataset.create_index([(STATUS_FIELD, 1), (RISK_FIELD, -1)])
    dataset.create_index([(STATUS_FIELD, 1), ("sequence_id", 1), (RISK_FIELD, 1)])
    dataset.create_index([("sequence_id", 1), ("camera", 1), ("frame_number", 1)])


def refuse_other_out(database: Any, name: str, out_uri: str, advice: str = OTHER_DATASET) -> None:
    """Refuse a storage whose labels do not belong into a dataset: one dataset, one `--out`.

    Frames of two storages in one dataset would have one history of decisions and be exported from
    one of them alone. A storage that was moved is the same one: its dataset follows it.

    Args:
        database: FiftyOne's, as pymongo knows it.
        name: of the dataset, which need not be there.
        out_uri: the storage.
        advice: what to do instead, in terms of the command: {free} is a free name, {out} the
            storage, {own} the dataset's.

    Raises:
        AutolabelError: the dataset belongs to another storage; says which, and the advice.

    """
    info = (database["datasets"].find_one({"name": name}, {"info": 1}) or {}).get("info") or {}
    known = info.get("out_uris", [])
    others = [one for one in known if _place(one) != _place(out_uri)]
    if not others:
        return
    first = info.get("first_root")
    has_moved = first and first_root(out_uri) == first != first_root(known[0])
    if len(known) == 1 and has_moved:
        moved = {"$set": {"info.out_uris": [storage.canonical(out_uri)]}}
        database["datasets"].update_one({"name": name}, moved)
        return
    free = f"{name[:90]}-{hashlib.sha256(_place(out_uri).encode()).hexdigest()[:6]}"
    own = " and ".join(map(storage.redact, others))
    raise AutolabelError(
        f"dataset '{name}' holds the labels of {own}, and a dataset is for one --out: "
        + advice.format(free=free, out=storage.redact(out_uri), own=own)
    )


def _place(uri: str) -> str:
    """Name a storage the same, whichever links or spelling lead there."""
    return (
        os.path.realpath(storage.local_path(uri))
        if storage.is_local(uri)
        else storage.canonical(uri)
    )


@contextlib.contextmanager
def dataset_lock(name: str) -> Iterator[None]:
    """Hold a lock in the database itself, for changes of a dataset's own document.

    A holder that was killed loses it after a minute. No other thread loads a dataset meanwhile.
    """
    lock = database_lock(name, f"dataset '{name}'", LOCK_SECONDS, 3 * LOCK_SECONDS)
    with _DATASET_OBJECTS, lock:
        yield
