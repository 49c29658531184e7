"""A backfill's plan for people: a table on the terminal, Markdown in Prefect."""

from __future__ import annotations

from collections.abc import Iterator

from flows.plan.backfill import BackfillPlan
from tasks.wording import counted, plain


def plan_rows(plan: BackfillPlan) -> Iterator[tuple[str, str]]:
    """Name and value of everything that a person wants to know before saying yes."""
    yield "sequences", f"{plan.sequences:,}"
    yield "up to date", f"{plan.up_to_date:,}"
    if plan.in_flight:
        yield "under way", f"{plan.in_flight:,}"
    if plan.quarantined:
        yield "given up on", f"{plan.quarantined:,}  (--retry-quarantined tries them again)"
    yield "to label", f"{plan.to_label:,}{_why(plan)}"
    about = "about " if plan.frames_estimated and plan.frames else ""
    yield "frames", f"{about}{plan.frames:,}"
    yield "shards", f"{len(plan.shards):,}{_longest(plan)}"
    yield "worker time", f"{_time_told(plan.gpu_hours * 3600)}  ({plan.rate.text})"
    if plan.cost_usd is not None:
        yield "cost", f"{plan.cost_usd:,.2f} USD"
    if plan.hidden:
        yield "left out", f"{plan.hidden:,} not labeled, outside the dates"
    if plan.undated:
        yield "undated", f"{counted(plan.undated, 'sequence')} without a date, included"
    if plan.unknown:
        some = ", ".join(plan.unknown[:3]) + (", ..." if len(plan.unknown) > 3 else "")
        names = counted(len(plan.unknown), "name")
        yield "not found", f"{names} of --sequences that no sequence has: {some}"
    for line in plan.matching.lines() if plan.matching else ():
        yield "boxes", line
    if plan.params.label.allow_uncertified:
        yield "model", "--allow-uncertified: whatever its certificate says"
    if plan.stamp.model:
        model = plan.stamp.model
        yield "masks", f"{model.name} on {model.backend} in {model.precision}"
    yield "run", plan.stamp.run_key


def _longest(plan: BackfillPlan) -> str:
    frames = max((shard.frames for shard in plan.shards), default=0)
    seconds = frames * plan.rate.seconds_per_frame
    return f"  (the longest takes a worker {_time_told(seconds)})" if frames else ""


def _time_told(seconds: float) -> str:
    """Return "12 s", "5.3 min" or "1,234.50 h": a short time is no 0.00 h."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 1 or not seconds else "less than 1 s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:,.2f} h"


def _why(plan: BackfillPlan) -> str:
    """Say why sequences are to be labeled that have been before."""
    reasons = {
        "labeled before with other frames, model, parameters or version": plan.stale,
        "again, because files could not be fetched": plan.partial,
    }
    parts = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
    return f"  ({', '.join(parts)})" if parts else ""


def plan_markdown(plan: BackfillPlan) -> str:
    """Plan as a Markdown table."""
    rows = "\n".join(f"| {name} | {plain(value)} |" for name, value in plan_rows(plan))
    return f"# Backfill to {plain(plan.params.label.out)}\n\n| | |\n|---|---|\n{rows}\n"
