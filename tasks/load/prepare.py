"""A dataset made ready for loads: its schema, and what decisions have made of its risk."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sam2_core.types import AutolabelError
from tasks.dataset.database_access import waits_for_database
from tasks.dataset.layout import sample_collection
from tasks.dataset.loaded import refuse_before_labeling, remember_load
from tasks.dataset.schema import bootstrap_dataset, open_dataset
from tasks.load.into_fiftyone import LoadReport, load_sequence
from tasks.review.calibrate import recall_calibration
from tasks.review.events import apply_events, read_events
from tasks.store import storage
from tasks.store.checksums import IncompleteArtifactError
from tasks.store.manifests import (
    ListedManifest,
    Manifest,
    list_manifests,
    newest_of,
    withdrawn_if_damaged,
)


@waits_for_database
def prepare_dataset(name: str, cameras: Sequence[str] = (), out_uri: str = "") -> None:
    """Make a dataset ready for any number of writers; once, before them, but again does no harm.

    Arguments and errors are those of `bootstrap_dataset`.
    """
    bootstrap_dataset(name, cameras, out_uri)
    if out_uri:
        recall_calibration(open_dataset(name))


def rebuild(name: str, out_uri: str, run_key: str = "") -> LoadReport:
    """Load everything that a run's storage holds into a dataset, decisions included.

    Args:
        name: the dataset; created when it is not there.
        out_uri: the run's storage.
        run_key: only this run's labels; by default every run's, oldest first.

    Raises:
        AutolabelError: nothing is there that can be read, or a file of labels is damaged.

    """
    started = time.perf_counter()
    refuse_before_labeling(name, out_uri, "rebuild it under another name, such as '{free}'")
    # Earlier runs' are loaded for the comparison of their labels with those that replaced them.
    newest = {(one.run_key, one.sequence_id): one for one in list_manifests(out_uri, run_key)}
    manifests, unreadable = _readable(out_uri, sorted(newest.values()))
    if not manifests:
        raise AutolabelError(f"{storage.redact(out_uri)} holds no complete sequence to load")
    cameras = dict.fromkeys(chunk.camera for one in manifests for chunk in one.chunks)
    prepare_dataset(name, list(cameras), out_uri)
    last = {one.sequence_id: one for one in manifests}
    changed = 0
    for manifest in manifests:
        with withdrawn_if_damaged(out_uri, manifest):
            report = load_sequence(name, out_uri, manifest)
        if last[manifest.sequence_id] is manifest:
            changed += report.changed
            remember_load(name, manifest, whole=not report.changed)
    dataset = open_dataset(name)
    apply_events(dataset, read_events(out_uri, name))
    # Runs replace each other's labels: what each has loaded is not what is there.
    samples = list(sample_collection(dataset).find({}, {"_id": 0, "instances": 1}))
    instances = sum(int(one.get("instances") or 0) for one in samples)
    seconds = time.perf_counter() - started
    return LoadReport(len(samples), instances, seconds, changed, unreadable)


def _readable(
    out_uri: str, listed: Sequence[ListedManifest]
) -> tuple[list[Manifest], dict[str, IncompleteArtifactError]]:
    """Read manifests, and say why sequences are left out: older labels never replace newer ones."""
    newest, unreadable, found = newest_of(listed), {}, []
    for one in listed:
        try:
            found.append(one.read(out_uri))
        except IncompleteArtifactError as error:
            if newest[one.sequence_id] == one:
                unreadable[one.sequence_id] = error
    found = [one for one in found if one.sequence_id not in unreadable]
    if unreadable and not found:
        raise next(iter(unreadable.values()))
    return found, unreadable
