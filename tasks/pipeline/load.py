"""The last step of a sequence: its labels into FiftyOne, and the record that they are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.store.manifests import Manifest, withdrawn_if_damaged

if TYPE_CHECKING:
    from tasks.load.into_fiftyone import LoadReport


def prepare_load(dataset: str, cameras: Sequence[str], out_uri: str) -> frozenset[str]:
    """Make a dataset ready for loads; returns the manifests that it holds already."""
    from tasks.dataset.loaded import loaded_manifests
    from tasks.load.prepare import prepare_dataset

    prepare_dataset(dataset, cameras, out_uri)
    return frozenset(loaded_manifests(dataset))


def load_labels(dataset: str, out_uri: str, manifest: Manifest) -> LoadReport:
    """Load a labeled sequence into FiftyOne; the frames that it has are brought here first.

    With frames that are left out, as their pictures have changed, it does not count as loaded: the
    next run loads it again.

    Raises:
        AutolabelError: storage or the database cannot be used, or labels are damaged.

    """
    from tasks.dataset.loaded import remember_load
    from tasks.load.into_fiftyone import load_sequence

    with withdrawn_if_damaged(out_uri, manifest):
        report = load_sequence(dataset, out_uri, manifest)
    remember_load(dataset, manifest, whole=not report.changed)
    return report
