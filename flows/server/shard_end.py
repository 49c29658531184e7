"""How a shard ends: by its labels. What the dataset lacks of them is said, and loaded later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prefect.states import Completed, Failed

from tasks.observe.progress import LOAD
from tasks.wording import counted

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from tasks.pipeline.outcome import SequenceOutcome

# In the state's message; the state itself stays Prefect's own, whose name everybody knows.
NOT_LOADED = "labeled, but not loaded into the dataset"
_LATER = " (the flow load-dataset does it): "
LONGEST = 1000


def ending(
    outcomes: Sequence[SequenceOutcome], text: str, given_up: int, dataset: str | None
) -> State[Any]:
    """Return Failed, with the first reason, when some sequence is not complete, else Completed.

    Args:
        outcomes: of every sequence of the shard.
        text: what was done.
        given_up: how many of the failed sequences will not be tried again.
        dataset: where the labels were to be loaded.

    """
    failed = [one for one in outcomes if one.partial or (one.error and one.stage != LOAD)]
    if failed:
        first = failed[0]
        text += f", {counted(len(failed), 'sequence')} failed"
        text += f" ({given_up} of them given up)" if given_up else ""
        text += f": {first.sequence_id}: {first.incomplete or first.error}"
    unloaded = [one for one in outcomes if one.error and one.stage == LOAD]
    if unloaded:
        first = unloaded[0]
        lacks = f"; {len(unloaded)} of {counted(len(outcomes), 'sequence')} {NOT_LOADED} {dataset}"
        lacks += f"{_LATER}{first.sequence_id}: {first.error}"
        lacks = lacks[: LONGEST // 2]
        text = text[: LONGEST - len(lacks)] + lacks
    text = text[:LONGEST]
    return Failed(message=text) if failed else Completed(message=text)


def why_not_loaded(message: str) -> str:
    """Return why labels were not loaded, as the message of `ending` says it; "" if they were."""
    _, unloaded, rest = message.partition(NOT_LOADED)
    return (rest.partition(_LATER)[2] or "no reason given") if unloaded else ""
