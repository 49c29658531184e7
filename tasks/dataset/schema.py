"""One bootstrap of a FiftyOne dataset: media type, every field, indexes; then writers only write.

Fields that several writers add at the same time corrupt a dataset's schema, and the first of them
to set the media type makes the others fail. So all of it is declared once, under a lock that lives
in the same database.

Here is also how a dataset looks in the App, and which sequences it holds already: one small
document each, beside FiftyOne's own collections, so that a repeated run loads nothing.
"""

import contextlib
import datetime
import hashlib
import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sam2_core.types import AutolabelError
from tasks.dataset import layout
from tasks.dataset.database import (
    URI_VARIABLE,
    database_lock,
    is_at_hand,
    reach_database,
    waits_for_database,
)
from tasks.dataset.layout import dataset_id
from tasks.errors import error_text
from tasks.store import storage
from tasks.store.manifests import PARTIAL, Manifest, list_manifests, newest_of
from tasks.store.roots import first_root

# Distinct on dark and light pictures; by class name, so that a class keeps its colour everywhere.
CLASS_COLOURS = {
    "person": "#ff4d6d", "bicycle": "#c8a27a", "car": "#3fa7ff", "motorcycle": "#ff9f1c",
    "bus": "#b388ff", "truck": "#2ee6a6", "traffic light": "#f15bb5", "fire hydrant": "#ff6b35",
    "stop sign": "#ef233c", "traffic sign": "#00d4d8", "rider": "#ffadad", "train": "#9bf6ff",
}  # fmt: skip
COLOUR_POOL = [*CLASS_COLOURS.values(), "#caffbf", "#fdffb6", "#a0c4ff", "#ffc6ff"]
# For all other classes, chosen by their names; none is like a decision's colour.
OTHER_COLOURS = (
    "#00bbf9", "#4361ee", "#7aa2ff", "#00f5d4", "#f72585", "#ff70a6", "#e0aaff", "#b5838d",
    "#a0c4ff", "#5e60ce", "#80ffdb", "#ffc8dd",
)  # fmt: skip
# What is in no group is in the closed one "other".
SIDEBAR = {
    "review": ["reasons", "risk", "review_status"],
    "labels": ["detections", "reviewed", "ground_truth", "previous"],
    "frame": ["sequence_id", "camera", "frame_number"],
    "origin": ["model", "previous_model", "run_key", "frame_uri", "frame_key", "stamp"],
}
# What a view that shows label by label has instead of a frame's own: there a sample is a label.
OF_PATCHES = {"review": ["detections.risk", "detections.decision"], "origin": ["sample_id"]}
EDITABLE = "reviewed"
# FiftyOne 1.22 saves an edit by the label's place in the list that the view shows, and most of our
# views show a part of the machine's labels: the edit would land on another one.
_NEVER_EDITABLE = "detections"
_LABEL_SCHEMA = {"type": "detections", "component": "dropdown", "attributes": []}
_CLOSED = ("origin", "metadata", "other")


def arrange_app(dataset: Any) -> None:
    """Set colours, sidebar and visible fields of a dataset; a person's own choices stay."""
    import fiftyone as fo

    config = dataset.app_config
    if config.color_scheme is None:
        colours = [{"value": name, "color": colour} for name, colour in CLASS_COLOURS.items()]
        by_class = {"colorByAttribute": "label", "valueColors": colours}
        config.color_scheme = fo.ColorScheme(
            color_by="value",
            color_pool=COLOUR_POOL,
            opacity=0.55,
            fields=[{"path": field, **by_class} for field in SIDEBAR["labels"]],
        )
    if config.sidebar_groups is None:
        config.sidebar_groups = _sidebar(dataset)
    if config.active_fields is None:
        config.active_fields = fo.ActiveFields(exclude=False, paths=["detections", "reviewed"])


def colour_classes(dataset: Any, classes: Iterable[str]) -> None:
    """Give classes that have no colour yet the one of their names; FiftyOne's own vary by page."""
    scheme = dataset.app_config.color_scheme
    for field in (scheme.fields or ()) if scheme else ():
        if field.get("colorByAttribute") == "label":
            colours = list(field.get("valueColors") or ())
            for name in sorted({*classes} - {one["value"] for one in colours}):
                number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
                colour = OTHER_COLOURS[number % len(OTHER_COLOURS)]
                colours.append({"value": name, "color": colour})
            field["valueColors"] = colours


def offer_classes(dataset: Any, classes: Iterable[str]) -> None:
    """Let the App offer these classes in this order, and those that it offers already.

    Its own annotation tools edit reviewed labels only. Whatever else somebody has set stays.
    """
    schema = dict(dataset.label_schemas.get(EDITABLE) or _LABEL_SCHEMA)
    wanted = list(dict.fromkeys([*classes, *(schema.get("classes") or ())]))
    if wanted != schema.get("classes"):
        dataset.update_label_schema(EDITABLE, {**schema, "classes": wanted})
    dataset.activate_label_schemas(EDITABLE)
    if _NEVER_EDITABLE in dataset.active_label_schemas:
        dataset.deactivate_label_schemas(_NEVER_EDITABLE)


def offered_classes(dataset: Any) -> list[str]:
    """Classes that the App's own tools offer; none before a queue was built."""
    return list((dataset.label_schemas.get(EDITABLE) or {}).get("classes") or ())


def _sidebar(dataset: Any) -> list[Any]:
    import fiftyone as fo

    known = set(dataset.get_field_schema())
    placed = {path for paths in SIDEBAR.values() for path in paths}
    groups = [fo.SidebarGroupDocument(name="tags")]
    for name, paths in SIDEBAR.items():
        present = [path for path in paths if path in known]
        groups.append(_group(name, [*present, *OF_PATCHES.get(name, ())]))
    inner = [f"metadata.{name}" for name in ("size_bytes", "mime_type", "width", "height")]
    groups.append(_group("metadata", [*inner, "metadata.num_channels"]))
    groups.append(_group("other", sorted(known - placed - {"tags", "metadata"})))
    return groups


def _group(name: str, paths: list[str]) -> Any:
    import fiftyone as fo

    return fo.SidebarGroupDocument(name=name, paths=paths, expanded=name not in _CLOSED)


MACHINE_FIELD, PREVIOUS_FIELD, TRUTH_FIELD = "detections", "previous", "ground_truth"
REVIEWED_FIELD, STATUS_FIELD, LOG_FIELD = "reviewed", "review_status", "review_log"
RISK_FIELD, REASONS_FIELD = "risk", "reasons"
SHARE_FIELD = "share"  # how many divide the queue -> the number of who holds the frame
GROUP_FIELD = "group"
OBJECT_PATH = f"{MACHINE_FIELD}.detections.object"
OPEN, DONE = "open", "done"
FIELDS_VERSION = 7  # of what `_declare_fields` declares
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

    with dataset_lock(name):
        if fo.dataset_exists(name):
            dataset = fo.load_dataset(name, reload=True)
        else:
            dataset = fo.Dataset(name, persistent=True)
        if out_uri:
            refuse_other_out(layout.database(), name, out_uri)
            # Read again from whatever folder a process starts in.
            dataset.info["out_uris"] = [storage.canonical(out_uri)]
            dataset.info["first_root"] = first_root(out_uri)
        _set_media(dataset, [camera for camera in dict.fromkeys(cameras) if camera])
        if dataset.info.get("fields") != FIELDS_VERSION:
            _declare_fields(dataset)
            dataset.info["fields"] = FIELDS_VERSION  # saved at the end: a kill in between counts
        _create_indexes(dataset)
        arrange_app(dataset)
        dataset.save()


def existing_dataset(name: str) -> Any | None:
    """Load a dataset of any kind; None where there is none of this name."""
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
    dataset = existing_dataset(name)
    if dataset is None:
        import fiftyone as fo

        known = ", ".join(sorted(fo.list_datasets())[:10]) or "none yet"
        raise AutolabelError(f"no dataset '{name}' in FiftyOne (there are: {known})")
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
    if len(cameras) < 2 and dataset.media_type != "group":
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
                    source="", undetected_frames=0, object="", changed="", fingerprint="",
                    difference=0.0, reasons=[""], box_xyxy_px=[0.0],
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
            RISK_FIELD: 0.0, REASONS_FIELD: [""], STATUS_FIELD: "",
            LOG_FIELD: [{"": ""}], SHARE_FIELD: {"": 0},
        },
    )  # fmt: skip
    layout.declare_fields(dataset, sample)


def _create_indexes(dataset: Any) -> None:
    # The queue reads (status, risk), the risk of sequences all of its index and nothing else, the
    # sequence views (sequence, camera, frame).
    existing = set(dataset.list_indexes())
    if "frame_key" not in existing:
        dataset.create_index("frame_key", unique=True)
    for name in {RISK_FIELD, REASONS_FIELD, "control", OBJECT_PATH} - existing:
        dataset.create_index(name)
    dataset.create_index([(STATUS_FIELD, 1), (RISK_FIELD, -1)])
    dataset.create_index([(STATUS_FIELD, 1), ("sequence_id", 1), (RISK_FIELD, 1)])
    dataset.create_index([("sequence_id", 1), ("camera", 1), ("frame_number", 1)])


def refuse_other_out(database: Any, name: str, out_uri: str, advice: str = OTHER_DATASET) -> None:
    """Refuse a storage whose labels do not belong into a dataset: one dataset, one `--out`.

    Frames of two storages in one dataset would have one history of decisions and be exported from
    one of them alone. A storage that was moved is the same one: its dataset follows it. A dataset
    of videos takes no images.

    Args:
        database: FiftyOne's, as pymongo knows it.
        name: of the dataset, which need not be there.
        out_uri: the storage.
        advice: what to do instead, in terms of the command: {free} is a free name, {out} the
            storage, {own} the dataset's.

    Raises:
        AutolabelError: the dataset belongs to another storage; says which, and the advice. Or it
            holds no images.

    """
    found = database["datasets"].find_one({"name": name}, {"info": 1, "media_type": 1}) or {}
    if (media := found.get("media_type")) not in (None, "image", "group"):
        raise AutolabelError(
            f"dataset '{name}' holds {media} samples and cannot take images: choose another name "
            "with --dataset"
        )
    info = found.get("info") or {}
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


LOADS = "autolabel_loads"


def refuse_before_labeling(
    dataset_name: str | None, out_uri: str, advice: str = OTHER_DATASET
) -> None:
    """Refuse to label for a dataset that belongs to another storage; None is no dataset.

    Labels do not wait for a database: where none is here or answers, the load will refuse.

    Raises:
        AutolabelError: as `refuse_other_out`.

    """
    from pymongo.errors import PyMongoError

    if dataset_name is None or not is_at_hand():
        return
    try:
        reach_database()
    except AutolabelError:
        return
    with contextlib.suppress(PyMongoError), _database() as database:
        refuse_other_out(database, dataset_name, out_uri, advice)


@waits_for_database
def loaded_manifests(dataset_name: str) -> set[str]:
    """Manifests (`Manifest.version`) whose labels the dataset holds; {} for no dataset."""
    reach_database()
    with _database() as database:
        dataset = database["datasets"].find_one({"name": dataset_name}, {"_id": 1})
        if dataset is None:
            return set()
        found = database[LOADS].find({"dataset": dataset["_id"]})
        return {one["manifest"] for one in found}


def missing_manifests(
    dataset_name: str, out_uri: str, run_key: str = ""
) -> tuple[list[Manifest], list[str]]:
    """Read the manifests that are not loaded; for most, the name alone is enough.

    Only the newest of each sequence counts.

    Args:
        dataset_name: the dataset.
        out_uri: the runs' storage.
        run_key: only this run's, and none where the dataset has newer ones of another; by default
            whichever run they are of.

    Returns:
        Them, and which could not be read and why.

    Raises:
        AutolabelError: neither storage nor the database may be away.

    """
    loaded = loaded_manifests(dataset_name)
    paths = {one.rpartition("#")[0] if one.startswith(PARTIAL) else one for one in loaded}
    listed = list_manifests(out_uri)
    held = newest_of(one for one in listed if one.path in paths)
    wanted = newest_of(one for one in listed if run_key in {"", one.run_key})
    missing, failed = [], []
    for name, newest in sorted(wanted.items()):
        if newest.path in loaded or (name in held and held[name] > newest):
            continue
        try:
            manifest = newest.read(out_uri)
        except AutolabelError as error:
            failed.append(f"{name}: {error_text(error)}")
            continue
        if manifest.version not in loaded:
            missing.append(manifest)
    return missing, failed


def remember_load(dataset: Any, manifest: Manifest, *, whole: bool) -> None:
    """Remember whether a sequence's labels, as this manifest lists them, all are in the dataset."""
    loads = layout.database()[LOADS]
    key = {"dataset": dataset_id(dataset), "sequence_id": manifest.sequence_id}
    if whole:
        loads.update_one(key, {"$set": {"manifest": manifest.version}}, upsert=True)
    else:
        loads.delete_one(key)


@contextlib.contextmanager
def _database() -> Iterator[Any]:
    """FiftyOne's database, without FiftyOne where it is not imported yet: that takes seconds."""
    if "fiftyone" in sys.modules or _is_configured():
        yield layout.database()
        return
    import pymongo

    with pymongo.MongoClient(os.environ[URI_VARIABLE]) as client:
        yield client["fiftyone"]


def _is_configured() -> bool:
    """Whether a user's settings may name another database of the server."""
    names = ("FIFTYONE_DATABASE_NAME", "FIFTYONE_CONFIG_PATH")
    config = Path.home() / ".fiftyone" / "config.json"
    return config.exists() or any(name in os.environ for name in names)


def lacked_sequences(dataset_name: str | None, out_uri: str, run_key: str) -> set[str] | None:
    """Ids of labeled sequences of a run that its dataset lacks; None if unknown here."""
    if not dataset_name:
        return set()
    with contextlib.suppress(AutolabelError):
        if is_at_hand():
            reach_database()
            found, unreadable = missing_manifests(dataset_name, out_uri, run_key)
            broken = {one.partition(": ")[0] for one in unreadable}
            return {one.sequence_id for one in found} | broken
    return None
