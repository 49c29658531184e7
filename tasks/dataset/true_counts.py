"""Sizes of collections made right again after mongod was killed.

MongoDB keeps each collection's size beside it and writes it now and then. After a kill every
document is there, and the size is an older one for good, through clean restarts too: `len(dataset)`
is wrong. Only `validate` mends that. It locks the collection and reads all of it, so it is asked
for where the size is wrong and nowhere else: counting the index of ids takes 0.3 s a million.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
MARK = "killed"
# Until then whoever starts the database waits for the sizes; those of large datasets come later.
AWAITED_S = 2.0
_TRIES = 3  # a collection that is being written to looks wrong, too
_MONGODBS_OWN = {"admin", "config", "local"}


def note_killed(folder: Path) -> None:
    """Note that the server on this folder was killed: its next start makes the sizes right."""
    with contextlib.suppress(OSError):  # a full disk, say: then they stay as they are
        (folder / MARK).touch(mode=0o600)


def make_counts_true(folder: Path, uri: str) -> None:
    """Make the sizes of all collections right where a server on this folder was killed before.

    Beside what the caller goes on to do where it takes longer than `AWAITED_S`; a process that ends
    before leaves the note, and with it the rest, to the next start.
    """
    if not (folder / MARK).exists():
        return
    working = threading.Thread(target=_work, args=(folder, uri), name="true counts", daemon=True)
    working.start()
    working.join(AWAITED_S)


def _work(folder: Path, uri: str) -> None:
    import pymongo
    from pymongo.errors import PyMongoError

    try:
        with pymongo.MongoClient(uri) as client:
            for name in set(client.list_database_names()) - _MONGODBS_OWN:
                database = client[name]
                for one in database.list_collection_names(filter={"type": "collection"}):
                    if _is_wrong(database[one]):
                        database.command("validate", one)
        (folder / MARK).unlink(missing_ok=True)
    except (PyMongoError, OSError) as error:
        log.warning("len() of a dataset may be wrong until the next start: %s", error)


def _is_wrong(collection: Any) -> bool:
    for _ in range(_TRIES):
        before = collection.estimated_document_count()
        counted = collection.count_documents({}, hint="_id_")
        after = collection.estimated_document_count()
        if min(before, after) <= counted <= max(before, after):
            return False
    return True
