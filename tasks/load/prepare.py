"""A dataset made ready for loads: its schema, and what decisions have made of its risk."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.dataset.away import waits_for_database
from tasks.dataset.schema import bootstrap_dataset, open_dataset
from tasks.review.calibrate import recall_calibration


@waits_for_database
def prepare_dataset(name: str, cameras: Sequence[str] = (), out_uri: str = "") -> None:
    """Make a dataset ready for any number of writers; once, before them, but again does no harm.

    Arguments and errors are those of `bootstrap_dataset`.
    """
    bootstrap_dataset(name, cameras, out_uri)
    if out_uri:
        recall_calibration(open_dataset(name))
