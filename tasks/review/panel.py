"""The panel of the review plugin: progress, agreement, error rates, speed, what is left."""

from __future__ import annotations

from typing import Any

import fiftyone.operators as foo
from fiftyone.operators import types

from tasks.review.queue import CONTROL, NEEDS_REVIEW
from tasks.review.stats import (
    NO_CONTROL,
    decisions_plot,
    rates_plot,
    review_stats,
    risks_plot,
    shown_names,
    summary,
)

WHOLE_UP_TO = 10  # below it Plotly would divide an axis of counts into fractions


class ReviewProgress(foo.Panel):  # type: ignore[misc]
    """How the review goes; reads the database when it opens and on demand."""

    @property
    def config(self) -> Any:
        """Name and looks."""
        return foo.PanelConfig(
            name="review_progress", label="Review progress", icon="fact_check", surfaces="grid"
        )

    def refresh(self, ctx: Any) -> None:
        """Count everything again."""
        stats = review_stats(ctx.dataset)
        ctx.panel.set_state("summary", summary(stats))
        plots = {
            "decisions": decisions_plot(stats),
            "by_class": rates_plot(stats.by_class),
            "by_reason": rates_plot(stats.by_reason),
            "by_sequence": risks_plot(stats.by_sequence),
        }
        ctx.panel.set_state("most_decided", max(plots["decisions"][0]["x"], default=0))
        for name, plot in plots.items():
            ctx.panel.set_data(name, plot)
            ctx.panel.set_state(f"names_{name}", shown_names(plot))

    on_load = on_change_dataset = refresh

    def open_queue(self, ctx: Any) -> None:
        """Show what needs review."""
        ctx.ops.set_view(name=NEEDS_REVIEW)

    def open_control(self, ctx: Any) -> None:
        """Show the control sample."""
        if ctx.dataset.has_saved_view(CONTROL):
            ctx.ops.set_view(name=CONTROL)
        else:
            ctx.ops.notify(NO_CONTROL, variant="info")

    def render(self, ctx: Any) -> Any:
        """Lay the panel out."""
        panel = types.Object()
        buttons = panel.h_stack("buttons", gap=2)
        buttons.btn("queue", label="Needs review", on_click=self.open_queue, variant="contained")
        buttons.btn("control", label="Control sample", on_click=self.open_control)
        buttons.btn("refresh", label="Refresh", on_click=self.refresh)
        panel.md(ctx.panel.get_state("summary") or "counting ...", name="summary_text")
        titles = {
            "decisions": "Decisions", "by_class": "Error rate by class (labels decided)",
            "by_reason": "Error rate by reason (labels decided)",
            "by_sequence": "Risk of the sequences that are open",
        }  # fmt: skip
        for name, title in titles.items():
            layout = _layout(title, percent=name in {"by_class", "by_reason"})
            if name == "decisions" and (ctx.panel.get_state("most_decided") or 0) < WHOLE_UP_TO:
                layout["xaxis"] = {"dtick": 1}
            layout["yaxis"] |= ctx.panel.get_state(f"names_{name}") or {}
            panel.plot(name, layout=layout, config={"displayModeBar": False})
        return types.Property(panel, view=types.GridView(orientation="vertical", gap=3, padding=2))


def _layout(title: str, percent: bool) -> dict[str, Any]:
    return {
        "title": {"text": title, "font": {"size": 14}}, "height": 340 if percent else 260,
        "bargap": 0.3, "yaxis": {"dtick": 1},
        "margin": {"l": 150, "r": 20, "t": 40, "b": 30}, "showlegend": False,
        "xaxis": {"tickformat": ".0%"} if percent else {},
    }  # fmt: skip
