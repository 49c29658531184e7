"""A device that is lost in a run: the loop ends, nothing is recorded, nobody waits."""

from pathlib import Path

from sam2_core.types import DeviceLostError
from tasks.store.retry import is_transient

MICRO = Path(__file__).parents[1] / "data" / "micro"


def test_a_chain_of_causes_that_leads_back_into_itself_ends():
    first, second = DeviceLostError("lost"), RuntimeError("again")
    first.__cause__, second.__cause__ = second, first
    assert not is_transient(first)
