"""One bootstrap of a FiftyOne dataset: media type, every field, indexes; then writers only write.

Fields that several writers add at the same time corrupt a dataset's schema, and the first of them
to set the media type makes the others fail. So all of it is declared once, under a lock that lives
in the same database.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from sam2_core.types import AutolabelError
from tasks.database import ensure_database
from tasks.load_appearance import arrange_app

MACHINE_FIELD, PREVIOUS_FIELD, TRUTH_FIELD = "detections", "previous", "ground_truth"
REVIEWED_FIELD, STATUS_FIELD, LOG_FIELD = "reviewed", "review_status", "review_log"
RELABEL_FIELD, RISK_FIELD, REASONS_FIELD = "relabel", "risk", "reasons"
GROUP_FIELD = "group"
OPEN, DONE = "open", "done"
MAX_SEQUENCE_VIEWS = 500
LOCK_SECONDS = 60.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,98}")


def prepare_dataset(name: str, cameras: Sequence[str] = (), out_uri: str = "") -> None:
    """Create a persistent dataset, or bring an existing one up to date. Safe to call at once.

    Args:
        name: letters, digits, spaces and `._+-`, at most 99.
        cameras: every camera name that may come; two or more make a grouped dataset.
        out_uri: the run's storage, remembered so that reviews find their way back.

    Raises:
        AutolabelError: a bad name, or the dataset is there with another kind of media.

    """
    if not _NAME.fullmatch(name):
        raise AutolabelError(
            f"'{name}' is no dataset name: use letters, digits, spaces and . _ + -, at most 99"
        )
    ensure_database()
    import fiftyone as fo

    with dataset_lock(name):
        if fo.dataset_exists(name):
            dataset = fo.load_dataset(name, reload=True)
        else:
            dataset = fo.Dataset(name, persistent=True)
        _set_media(dataset, [camera for camera in dict.fromkeys(cameras) if camera])
        if "frame_key" not in dataset.get_field_schema():
            _declare_fields(dataset)
        _create_indexes(dataset)
        arrange_app(dataset)
        if out_uri:
            _remember(dataset, out_uri)
        dataset.save()


def open_dataset(name: str) -> Any:
    """Load a dataset that `prepare_dataset` made.

    Raises:
        AutolabelError: there is none, or it was made by something else.

    """
    ensure_database()
    import fiftyone as fo

    if not fo.dataset_exists(name):
        known = ", ".join(sorted(fo.list_datasets())[:10]) or "none yet"
        raise AutolabelError(f"no dataset '{name}' in FiftyOne (there are: {known})")
    dataset = fo.load_dataset(name)
    if "frame_key" not in dataset.get_field_schema():
        raise AutolabelError(
            f"dataset '{name}' was not made by autolabel: choose another name with --dataset"
        )
    return dataset


def sample_collection(dataset: Any) -> Any:
    """Return the MongoDB collection that holds a dataset's samples."""
    import fiftyone.core.odm as foo

    return foo.get_db_conn()[dataset._sample_collection_name]


def _set_media(dataset: Any, cameras: Sequence[str]) -> None:
    grouped = len(cameras) > 1 or dataset.media_type == "group"
    wanted = "group" if grouped else "image"
    if dataset.media_type not in (None, wanted):
        raise AutolabelError(
            f"dataset '{dataset.name}' holds {dataset.media_type} samples and cannot take "
            f"{'several cameras' if grouped else 'single images'}: choose another name"
        )
    if not grouped:
        if dataset.media_type is None:
            dataset.media_type = "image"
        return
    if dataset.group_field is None:
        dataset.add_group_field(GROUP_FIELD, default=cameras[0])
    for camera in cameras:
        if camera not in (dataset.group_media_types or {}):
            dataset.add_group_slice(camera, "image")


def _declare_fields(dataset: Any) -> None:
    import fiftyone as fo

    plain: dict[str, Any] = {
        "frame_key": fo.StringField, "sequence_id": fo.StringField, "camera": fo.StringField,
        "frame_number": fo.IntField, "timestamp_ns": fo.IntField, "frame_uri": fo.StringField,
        "run_key": fo.StringField, "model": fo.StringField, "stamp": fo.DictField,
        "previous_model": fo.StringField, RISK_FIELD: fo.FloatField, "instances": fo.IntField,
        STATUS_FIELD: fo.StringField, RELABEL_FIELD: fo.StringField, "control": fo.FloatField,
    }  # fmt: skip
    for name, kind in plain.items():
        dataset.add_sample_field(name, kind)
    dataset.add_sample_field(REASONS_FIELD, fo.ListField, subfield=fo.StringField)
    dataset.add_sample_field(LOG_FIELD, fo.ListField, subfield=fo.DictField)
    dataset.add_sample_field("metadata.width", fo.IntField)
    dataset.add_sample_field("metadata.height", fo.IntField)
    numbers = ("predicted_iou", "stability", "object_score", "risk")
    for field in (MACHINE_FIELD, PREVIOUS_FIELD, REVIEWED_FIELD, TRUTH_FIELD):
        dataset.add_sample_field(field, fo.EmbeddedDocumentField, embedded_doc_type=fo.Detections)
        inner = f"{field}.detections"
        if field == TRUTH_FIELD:
            continue
        for number in numbers:
            dataset.add_sample_field(f"{inner}.{number}", fo.FloatField)
        for whole in ("box_index", "area_px"):
            dataset.add_sample_field(f"{inner}.{whole}", fo.IntField)
        for text in ("model", "mask_reason", "decision", "track", "changed"):
            dataset.add_sample_field(f"{inner}.{text}", fo.StringField)
        dataset.add_sample_field(f"{inner}.reasons", fo.ListField, subfield=fo.StringField)
        dataset.add_sample_field(f"{inner}.box_xyxy_px", fo.ListField, subfield=fo.FloatField)
    inner = f"{REVIEWED_FIELD}.detections"
    for text in ("reviewer", "reviewed_at", "fingerprint"):
        dataset.add_sample_field(f"{inner}.{text}", fo.StringField)
    dataset.add_sample_field(f"{inner}.sources", fo.ListField, subfield=fo.StringField)


def _create_indexes(dataset: Any) -> None:
    # The queue reads (status, risk); the sequence views read (sequence, camera, frame).
    existing = set(dataset.list_indexes())
    if "frame_key" not in existing:
        dataset.create_index("frame_key", unique=True)
    for name in (RISK_FIELD, REASONS_FIELD, RELABEL_FIELD, "control"):
        if name not in existing:
            dataset.create_index(name)
    dataset.create_index([(STATUS_FIELD, 1), (RISK_FIELD, -1)])
    dataset.create_index([("sequence_id", 1), ("camera", 1), ("frame_number", 1)])


def _remember(dataset: Any, out_uri: str) -> None:
    known = dataset.info.get("out_uris", [])
    if out_uri not in known:
        dataset.info["out_uris"] = [*known, out_uri]


def save_sequence_view(dataset: Any, sequence_id: str) -> None:
    """Save the view of one sequence, up to a number of views that a list can show."""
    from fiftyone import ViewField as F

    name = f"sequence {sequence_id}"
    with dataset_lock(dataset.name):
        dataset.reload()
        names = dataset.list_saved_views()
        if name in names or len(names) >= MAX_SEQUENCE_VIEWS:
            return
        view = dataset.match(F("sequence_id") == sequence_id).sort_by("frame_number")
        dataset.save_view(name, view, description=f"All frames of {sequence_id}, in order")


@contextlib.contextmanager
def dataset_lock(name: str) -> Iterator[None]:
    """Hold a lock in the database itself, for changes of a dataset's own document.

    A holder that was killed loses it after a minute.
    """
    import fiftyone.core.odm as foo
    from pymongo.errors import DuplicateKeyError

    locks = foo.get_db_conn()["autolabel.locks"]
    me, deadline = uuid.uuid4().hex, time.monotonic() + 3 * LOCK_SECONDS
    while True:
        now = datetime.datetime.now(datetime.UTC)
        free = {"_id": name, "until": {"$lt": now}}
        until = now + datetime.timedelta(seconds=LOCK_SECONDS)
        try:  # inserts when there is no lock, takes over an expired one, collides with a held one
            locks.update_one(free, {"$set": {"holder": me, "until": until}}, upsert=True)
            break
        except DuplicateKeyError:
            if time.monotonic() > deadline:
                raise AutolabelError(
                    f"dataset '{name}' stays locked by another process; try again later"
                ) from None
            time.sleep(0.05)
    try:
        yield
    finally:
        locks.delete_one({"_id": name, "holder": me})
