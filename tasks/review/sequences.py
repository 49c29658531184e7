"""One sequence at a time: a list that can be searched, however many there are, and their frames."""

from __future__ import annotations

from typing import Any

from sam2_core.types import AutolabelError
from tasks.dataset.schema import OPEN, sample_collection
from tasks.review.queue import everything, sequence_risks
from tasks.wording import counted

MOST_LISTED = 1000  # what a list in the App can hold; a part of a name finds the others


def list_sequences(dataset: Any) -> dict[str, str]:
    """Name -> what there is to know, riskiest first and those that are done last."""
    counts = {
        one["_id"]: one
        for one in sample_collection(dataset).aggregate([
            {"$group": {
                "_id": "$sequence_id", "frames": {"$sum": 1},
                "open": {"$sum": {"$cond": [{"$eq": ["$review_status", OPEN]}, 1, 0]}},
            }}
        ])
    }  # fmt: skip
    risks = {name: risk for name, risk in sequence_risks(dataset).items() if name in counts}
    done = sorted(name for name in counts if name not in risks)
    listed = {}
    for name in [*risks, *done]:
        frames = counts[name]["frames"]
        state = f"risk {risks[name]:.2f}" if name in risks else "done"
        listed[name] = f"{name}  ({counted(frames, 'frame')}, {state})"
    return listed


def sequence_view(dataset: Any, name: str) -> Any:
    """View of all frames of a sequence in order, or of all whose names have this part.

    Raises:
        AutolabelError: there is none.

    """
    from fiftyone import ViewField as F

    frames = everything(dataset)
    for part in (
        {"sequence_id": name},
        F("sequence_id").contains_str(name, case_sensitive=False),
    ):
        view = frames.match(part)
        if name and view.count():
            return view.sort_by([("sequence_id", 1), ("frame_number", 1), ("camera", 1)])
    raise AutolabelError(f"no sequence has '{name}' in its name")
