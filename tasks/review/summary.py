"""What the panel shows: the state of a review in words, and figures as Plotly traces."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from tasks.review.queue import CONTROL
from tasks.review.stats import Rate, Stats
from tasks.wording import plain

_ORANGE, _GREY, _RED = "#ff6d04", "#6b7280", "#ff4d6d"
# The same colours as in fiftyone_plugin/open_frame.js.
DECISION_COLOURS = {
    "accepted": "#22c55e", "rejected": "#ef4444", "corrected": "#fde047", "edited": "#fde047",
    "merged": "#c084fc", "deleted": "#9ca3af", "relabel": "#f59e0b",
}  # fmt: skip


NO_CONTROL = "there is no control sample: no label is left that the queue does not stand for"
MOST_LETTERS = 22  # of a name beside a bar


def summary(stats: Stats) -> str:
    """Say in words how the review goes."""
    agreement = Rate(stats.disagreement.of - stats.disagreement.wrong, stats.disagreement.of)
    agreed = agreement.text() if agreement.of else "nothing decided"
    share = stats.decided / stats.labels if stats.labels else 0.0
    people = ", ".join(f"{plain(who)} {count}" for who, count in stats.by_reviewer.items())
    relabel = ", ".join(f"{count} {state}" for state, count in stats.relabel.items()) or "none"
    speed = f"{stats.per_hour:,.0f} decisions per hour" if stats.per_hour else "too few decisions"
    lines = [
        f"| Labels decided | **{stats.decided:,}** of {stats.labels:,} ({share:.1%}) |",
        "|---|---|",
        f"| Frames done | **{stats.frames_done:,}** of {stats.frames:,} |",
        f"| Agreement with the machine | {agreed} |",
        f"| Wrong in the control sample | {_control(stats.control)} |",
        f"| Speed | {speed} |",
        f"| Decisions by | {people or 'nobody yet'} |",
        f"| Frames sent back | {relabel} |",
    ]
    if stats.set_aside.frames:
        lines.append(f"| Set aside | {stats.set_aside.text()} |")
    return "\n".join(lines)


def _control(rate: Rate) -> str:
    if not rate.of:
        return f'not looked at yet: open the view "{CONTROL}"'
    return f"{rate.text()}: this much of what nobody reviews is wrong, 95% confidence"


def decisions_plot(stats: Stats) -> list[dict[str, Any]]:
    """Bar of what was decided."""
    names = [name for name in stats.decisions if name]
    return [
        {
            "type": "bar", "x": [stats.decisions[name] for name in names], "y": names,
            "orientation": "h", "hovertemplate": "%{x} %{y}<extra></extra>",
            "marker": {"color": [DECISION_COLOURS.get(name, _GREY) for name in names]},
        }
    ]  # fmt: skip


def rates_plot(rates: Mapping[str, Rate], most: int = 12) -> list[dict[str, Any]]:
    """Bars of error rates with their confidence intervals, the highest on top."""
    chosen = sorted(rates.items(), key=lambda one: one[1].share)[-most:]
    bounds = [rate.interval for _, rate in chosen]
    shares = [rate.share for _, rate in chosen]
    return [
        {
            "type": "bar", "orientation": "h", "x": shares,
            "hovertemplate": "%{y}: %{x:.0%}<extra></extra>",
            "y": [html.escape(f"{name} ({rate.of})") for name, rate in chosen],
            "marker": {"color": _ORANGE},
            "error_x": {
                "type": "data", "symmetric": False, "color": _GREY,
                "array": [high - share for share, (_, high) in zip(shares, bounds, strict=True)],
                "arrayminus": [share - low for share, (low, _) in zip(shares, bounds, strict=True)],
            },
        }
    ]  # fmt: skip


def risks_plot(risks: Mapping[str, float], most: int = 12) -> list[dict[str, Any]]:
    """Bars of the risk of sequences, the riskiest on top."""
    names = list(risks)[:most][::-1]  # no character of HTML is in the name of a sequence
    return [
        {
            "type": "bar", "orientation": "h", "x": [risks[name] for name in names], "y": names,
            "hovertemplate": "%{y}: %{x:.2f}<extra></extra>",
            "marker": {"color": _RED},
        }
    ]  # fmt: skip


def shown_names(plot: list[dict[str, Any]]) -> dict[str, Any]:
    """Axis of a plot's names, long ones without their middle; pointing at a bar shows all of it."""
    names = [str(name) for name in plot[0]["y"]]
    short = [html.escape(_shortened(html.unescape(one))) for one in names]
    return {"tickmode": "array", "tickvals": names, "ticktext": short}


def _shortened(name: str) -> str:
    half = MOST_LETTERS // 2
    return name if len(name) <= MOST_LETTERS else f"{name[: half - 1]}…{name[-half:]}"
