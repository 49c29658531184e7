"""Which labeled sequences a FiftyOne dataset holds already, so that a repeated run loads nothing.

One small document per sequence beside FiftyOne's own collections: a dataset that was dropped and
made again has another id, and so nothing in it counts as loaded.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sam2_core.types import AutolabelError
from tasks.dataset.database import URI_VARIABLE, is_at_hand
from tasks.dataset.database_access import reach_database, waits_for_database
from tasks.dataset.layout import dataset_id
from tasks.dataset.schema import OTHER_DATASET, refuse_other_out
from tasks.errors import error_text
from tasks.store.manifests import PARTIAL, Manifest, list_manifests, newest_of

COLLECTION = "autolabel_loads"


def refuse_before_labeling(dataset_name: str, out_uri: str, advice: str = OTHER_DATASET) -> None:
    """Refuse to label for a dataset that belongs to another storage.

    Labels do not wait for a database: where none is here or answers, the load will refuse.

    Raises:
        AutolabelError: as `refuse_other_out`.

    """
    from pymongo.errors import PyMongoError

    if not is_at_hand():
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
        found = database[COLLECTION].find({"dataset": dataset["_id"]})
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
    import fiftyone.core.odm as foo

    loads = foo.get_db_conn()[COLLECTION]
    key = {"dataset": dataset_id(dataset), "sequence_id": manifest.sequence_id}
    if whole:
        loads.update_one(key, {"$set": {"manifest": manifest.version}}, upsert=True)
    else:
        loads.delete_one(key)


@contextlib.contextmanager
def _database() -> Iterator[Any]:
    """FiftyOne's database, without FiftyOne where it is not imported yet: that takes seconds."""
    if "fiftyone" in sys.modules or _is_configured():
        import fiftyone.core.odm as foo

        yield foo.get_db_conn()
        return
    import pymongo

    with pymongo.MongoClient(os.environ[URI_VARIABLE]) as client:
        yield client["fiftyone"]


def _is_configured() -> bool:
    """Whether a user's settings may name another database of the server."""
    names = ("FIFTYONE_DATABASE_NAME", "FIFTYONE_CONFIG_PATH")
    config = Path.home() / ".fiftyone" / "config.json"
    return config.exists() or any(name in os.environ for name in names)
