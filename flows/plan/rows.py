"""A backfill's plan as people read it: a table on the terminal, Markdown in Prefect."""

from collections.abc import Iterator

from flows.plan.backfill import BackfillPlan
from flows.plan.decide import why_kept
from tasks.passed_over import passed_over_lines
from tasks.wording import counted, plain


def plan_rows(plan: BackfillPlan) -> Iterator[tuple[str, str]]:
    """Name and value of everything that a person wants to know before saying yes."""
    yield "sequences", f"{plan.sequences:,}"
    yield "up to date", f"{plan.up_to_date:,}"
    not_planned = {
        "under way": (plan.in_flight, ""),
        "given up on": (plan.quarantined, "  (--retry-quarantined tries them again)"),
        "kept": (plan.kept, f"  ({why_kept(plan.frames_reviewed)})"),
    }
    for name, (count, more) in not_planned.items():
        if count:
            yield name, f"{count:,}{more}"
    again = {
        "labeled before with other frames, model, parameters or version": plan.stale,
        "again, because files could not be read": plan.partial,
    }
    why = ", ".join(f"{count:,} {reason}" for reason, count in again.items() if count)
    yield "to label", f"{plan.to_label:,}{why and f'  ({why})'}"
    estimated = plan.frames_estimated and plan.frames
    by_size = "  (until opened, those of videos are an estimate from their size)"
    yield "frames", f"about {plan.frames:,}{by_size}" if estimated else f"{plan.frames:,}"
    longest_s = (
        max((shard.frames for shard in plan.shards), default=0) * plan.rate.seconds_per_frame
    )
    longest = (
        f"  (the longest takes a worker {_time_told(longest_s)} after its start)"
        if longest_s
        else ""
    )
    yield "shards", f"{len(plan.shards):,}{longest}"
    yield "worker time", f"{_time_told(plan.gpu_hours * 3600)}  ({plan.rate.text})"
    if plan.hidden:
        yield "left out", f"{plan.hidden:,} not labeled, outside the dates ({plan.hidden_one})"
    if plan.undated:
        yield "undated", f"{counted(plan.undated, 'sequence')} without a date, included"
    if plan.unknown:
        some = ", ".join(plan.unknown[:3]) + (", ..." if len(plan.unknown) > 3 else "")
        names = counted(len(plan.unknown), "name")
        yield "not found", f"{names} of --sequences that no sequence has: {some}"
    yield from _left_aside(plan)
    if plan.params.label.allow_uncertified:
        yield "model", "--allow-uncertified: whatever its certificate says"
    if plan.stamp.model:
        model = plan.stamp.model
        yield "masks", f"{model.name} on {model.backend} in {model.precision}"
    yield "run", plan.stamp.run_key


def _left_aside(plan: BackfillPlan) -> Iterator[tuple[str, str]]:
    matching = plan.survey.matching
    for line in matching.lines() if matching else ():
        yield "boxes", line
    for line in passed_over_lines(plan.survey.passed_over):
        yield "not read", line


def _time_told(seconds: float) -> str:
    """Return "12 s", "5.3 min" or "1,234.50 h": a short time is no 0.00 h."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 1 or not seconds else "less than 1 s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:,.2f} h"


def plan_markdown(plan: BackfillPlan) -> str:
    """Plan as a Markdown table."""
    rows = "\n".join(f"| {name} | {plain(value)} |" for name, value in plan_rows(plan))
    return f"# Backfill to {plain(plan.params.label.out)}\n\n| | |\n|---|---|\n{rows}\n"
