"""A dataset made ready for loads: its schema, and the decisions that go along to a new storage."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.dataset.away import waits_for_database
from tasks.dataset.schema import bootstrap_dataset, existing_dataset, open_dataset
from tasks.review.calibrate import share_recalibration
from tasks.review.events import carry_events


@waits_for_database
def prepare_dataset(name: str, cameras: Sequence[str] = (), out_uri: str = "") -> None:
    """Make a dataset ready for any number of writers; once, before them, but again does no harm.

    Decisions that lie in the storage of earlier runs are copied to `out_uri`, and so is what they
    have made of the risk, so that the dataset can be built anew from there alone. Arguments and
    errors are those of `bootstrap_dataset`.
    """
    dataset = existing_dataset(name) if out_uri else None
    if dataset is not None:
        carry_events(dataset, out_uri)
    bootstrap_dataset(name, cameras, out_uri)
    if out_uri:
        share_recalibration(open_dataset(name))
