"""Which labels of a sequence count where several manifests list some: the newest.

A manifest is as old as its file. It is written when a sequence is labeled, and again when a run
finds it up to date after other labels have taken its place (`declare_again`): those of frames that
a source held meanwhile, or of another model. So all that loads, exports or counts takes the same,
whatever the order in which manifests are found. Manifests that a wrong clock has dated ahead are
written again, too, before a run adds any: what is new is newer than all that was there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import NamedTuple

from sam2_core.types import AutolabelError
from tasks.store import manifests, storage
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import COMPLETE, PARTIAL, Key, Manifest

log = logging.getLogger(__name__)


class ListedManifest(NamedTuple):
    """A manifest as a listing tells it. The later in order the newer.

    Attributes:
        written_s: when its file was written, in seconds since 1970.
        run_key: its run.
        sequence_id: its sequence.
        content_key: key of the frames that it lists.
        partial: whether something of the sequence could not be fetched.

    """

    written_s: float
    run_key: str
    sequence_id: str
    content_key: str
    partial: bool = False

    @property
    def key(self) -> Key:
        """What tells it from others of its run."""
        return self.sequence_id, self.content_key

    @property
    def path(self) -> str:
        """Path below the run's storage."""
        return manifests.path_of(self.run_key, *self.key, partial=self.partial)

    def read(self, out_uri: str) -> Manifest:
        """Read it; errors are those of `read_manifest`."""
        return manifests.read_manifest(out_uri, self.run_key, *self.key, partial=self.partial)


def list_manifests(out_uri: str, run_key: str = "") -> list[ListedManifest]:
    """Every manifest of a run, or of all runs, oldest first; partial ones where no other is."""
    found = []
    for run in [run_key] if run_key else manifests.list_runs(out_uri):
        complete = manifests.times_in(storage.join(out_uri, COMPLETE, run))
        partial = manifests.times_in(storage.join(out_uri, PARTIAL, run))
        found += [ListedManifest(at, run, *key) for key, at in complete.items()]
        found += [
            ListedManifest(at, run, *key, True)
            for key, at in partial.items()
            if key not in complete
        ]
    return sorted(found)


def dated_ahead(listed: Iterable[ListedManifest]) -> list[ListedManifest]:
    """Return the manifests, in the order of `listed`, whose time has not come yet."""
    now_s = time.time()
    return [one for one in listed if one.written_s > now_s]


def newest_of(listed: Iterable[ListedManifest]) -> dict[str, ListedManifest]:
    """Newest manifest of each sequence, by id; `listed` oldest first."""
    return {one.sequence_id: one for one in listed}


def complete_keys(listed: Iterable[ListedManifest], run_key: str = "") -> set[Key]:
    """(sequence_id, content_key) of what is complete, in one run or in any."""
    return {one.key for one in listed if not one.partial and run_key in {"", one.run_key}}


def newest_manifests(
    out_uri: str, run_key: str = ""
) -> tuple[list[Manifest], dict[str, IncompleteArtifactError]]:
    """Read the newest manifest of each sequence, of one run or of all, by sequence.

    Returns:
        Them, and why those of other sequences cannot be read: they are damaged, or of another
        version of this package.

    """
    newest = newest_of(list_manifests(out_uri, run_key))
    found, unreadable = [], {}
    for name in sorted(newest):
        try:
            found.append(newest[name].read(out_uri))
        except IncompleteArtifactError as error:
            unreadable[name] = error
    return found, unreadable


def declare_again(out_uri: str, listed: Iterable[ListedManifest]) -> None:
    """Make manifests, one after another, the newest of their sequences, without a change in them.

    What cannot be read or written is told and stays as it is: labels are not lost by it.
    """
    for one in listed:
        try:
            manifests.write_manifest(out_uri, one.read(out_uri))
        except AutolabelError as error:
            log.warning("%s: older labels stay the newest: %s", one.sequence_id, error)
