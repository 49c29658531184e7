"""Temporary files of writers that were killed: known by their names, removed when they are old.

What a writer was killed at is written anew under another temporary name, and nobody would ever
touch the old one. A writer that lives has its file for seconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tasks.store import manifests, storage
from tasks.store.roots import ROOTS
from tasks.store.tracks import TRACKS
from tasks.wording import counted

KEPT_S = 24 * 3600.0
# Folders that we write below `--out`; in others nothing is ours.
LABELS = "labels"
BY_RUN = (manifests.COMPLETE, manifests.PARTIAL, TRACKS, "reports", "attempts", "quarantine")
REVIEWS = "reviews"

log = logging.getLogger(__name__)


def remove_abandoned(out_uri: str, run_key: str = "", sequences: Iterable[str] = ()) -> int:
    """Remove what killed writers left below a local `--out`, a day ago or earlier.

    Regular files with the name of a temporary one, in folders of ours; links to folders are not
    followed. Object stores have none: there a write is one request. What cannot be removed stays.

    Args:
        out_uri: storage of the labels.
        run_key: only what is this run's; everything when empty.
        sequences: ids of those whose labels to look at, where a run is named.

    Returns:
        How many there were.

    """
    if not storage.is_local(out_uri):
        return 0
    out, removed = storage.local_path(out_uri), 0
    roots = [out / LABELS, *(out / one for one in BY_RUN), out / REVIEWS, out / ROOTS]
    if run_key:
        roots = [out / LABELS / one for one in sequences] + [out / one / run_key for one in BY_RUN]
    before_s = time.time() - KEPT_S
    for path in _temporary_below(roots):
        with contextlib.suppress(OSError):  # renamed or removed meanwhile, or another user's
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_mtime < before_s:
                path.unlink()
                removed += 1
    if removed:
        log.info("%s of killed writers removed below %s", counted(removed, "file"), out)
    return removed


def _temporary_below(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        for folder, _, names in os.walk(root):
            yield from (Path(folder, name) for name in names if storage.is_temporary(name))
