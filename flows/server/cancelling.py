"""Cancelling a backfill: found by what was submitted, not by what would be planned now."""

from __future__ import annotations

from flows.params import LabelParams
from flows.plan.plan import stamp_of
from flows.server.shard_runs import SHARD_TAG, cancel, runs_tagged, shard_of
from sam2_core.backend_choice import fits


def cancel_backfill(label: LabelParams) -> dict[str, int]:
    """Cancel the unfinished shards of the runs that these parameters may have become.

    Workers decide the backend and precision of a submission that names none, and others may be
    online by now, or none: so theirs are taken from each run that has unfinished shards.

    Returns:
        How many shards were cancelled, by run key.

    Raises:
        AutolabelError: Prefect is not there, or the model is not.

    """
    unfinished: dict[str, LabelParams] = {}
    for run in runs_tagged(SHARD_TAG, unfinished_or_crashed=True):
        try:
            shard = shard_of(run)
        except (KeyError, ValueError):  # of an older version
            continue
        if shard.label.out == label.out:
            unfinished.setdefault(shard.run_key, shard.label)
    mine = [key for key, theirs in unfinished.items() if _key_as(label, theirs) == key]
    return {key: cancel(key, label.out) for key in mine}


def _key_as(label: LabelParams, other: LabelParams) -> str:
    """Return the key of parameters with another's backend and precision; "" if they name others."""
    if not fits(other.backend, label.backend) or label.precision not in ("auto", other.precision):
        return ""
    chosen = {"backend": other.backend, "precision": other.precision}
    return stamp_of(label.model_copy(update=chosen)).run_key
