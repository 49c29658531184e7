"""How a run of a flow ends: what its state says, for people and for `autolabel status`."""

from collections.abc import Sequence
from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from tasks.observe.progress import LOAD
from tasks.pipeline.outcome import SequenceOutcome
from tasks.wording import counted

# In the state's message; the state itself stays Prefect's own, whose name everybody knows.
NOT_LOADED = "labeled, but not loaded into the dataset"
_LATER = " (the flow load-dataset does it): "
LONGEST = 1000


def ending(
    outcomes: Sequence[SequenceOutcome], text: str, given_up: int, dataset: str | None
) -> State[Any]:
    """Return Failed, with up to three reasons, when some sequence is not complete, else Completed.

    Args:
        outcomes: of every sequence of the run.
        text: what was done.
        given_up: how many of the failed sequences will not be tried again.
        dataset: where the labels were to be loaded.

    """

    def reasons_of(some: Sequence[SequenceOutcome]) -> str:
        most = LONGEST // 2 // len(some)
        return "; ".join(
            f"{outcome.sequence_id}: {(outcome.incomplete or outcome.error)[:most]}"
            for outcome in some
        )

    if frames := sum(len(outcome.failures) for outcome in outcomes):
        text += f", in part: {counted(frames, 'frame')} without labels"
    failed = [
        outcome
        for outcome in outcomes
        if outcome.partial or (outcome.error and outcome.stage != LOAD)
    ]
    if failed:
        gone = f" ({given_up} of them given up)" if given_up else ""
        text += f", {counted(len(failed), 'sequence')} failed{gone}: {reasons_of(failed[:3])}"
    if unloaded := [outcome for outcome in outcomes if outcome.error and outcome.stage == LOAD]:
        of = counted(len(outcomes), "sequence")
        text += (
            f"; {len(unloaded)} of {of} {NOT_LOADED} {dataset}{_LATER}{reasons_of(unloaded[:1])}"
        )
    return Failed(message=text) if failed else Completed(message=text)


def why_not_loaded(message: str) -> str:
    """Return why labels were not loaded, as the message of `ending` says it; "" if they were."""
    return message.partition(_LATER)[2]
