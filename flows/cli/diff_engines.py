"""Two engines over the same pictures: each labels them as `autolabel label` does."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sam2_core.backend_choice import BACKENDS, PRECISIONS
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from flows.params import LabelParams
    from flows.plan.plan import Plan
    from tasks.evaluate.run_side import Side


@dataclass(frozen=True)
class Engine:
    """A model, what runs it, and in which precision, as `label` takes them."""

    model: str
    backend: str = "auto"
    precision: str = "auto"

    @staticmethod
    def parse(text: str) -> Engine:
        """Read `MODEL[:BACKEND[:PRECISION]]`; a model may have colons itself, as random:tiny."""
        found = {"backend": "auto", "precision": "auto"}
        for name, words in (("precision", PRECISIONS), ("backend", BACKENDS)):
            rest, _, last = text.rpartition(":")
            if rest and last in words:
                text, found[name] = rest, last
        return Engine(text, **found)


@contextlib.contextmanager
def labeled(
    engines: tuple[str, str], asked: dict[str, Any], report: Path | None
) -> Iterator[tuple[Side, Side]]:
    """Label pictures with both engines, and have the labels in the block.

    Args:
        engines: as `Engine.parse` takes them.
        asked: `images`, a source as `label` takes it; `boxes`, imported ones, those of the bundled
            detector when None; `allow_uncertified`, as for `label`.
        report: the labels stay below it, as `a` and `b`, and are not made again; without one they
            are gone after the block.

    Raises:
        AutolabelError: an engine is not there, may not label here, or labels nothing.

    """
    with contextlib.ExitStack() as stack:
        place = report or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="diff-")))
        plans = [
            _planned(_params(Engine.parse(one), asked, place / name))
            for one, name in zip(engines, "ab", strict=True)
        ]
        _refuse_before_labeling(plans)
        first, second = map(_label, plans)
        yield first, second


def _params(engine: Engine, asked: dict[str, Any], out: Path) -> LabelParams:
    from flows.cli.options import validated
    from flows.params import LabelParams

    return validated(
        LabelParams, sources=(asked["images"],), out=str(out), model=engine.model,
        boxes=asked["boxes"], allow_uncertified=asked["allow_uncertified"],
        backend=engine.backend, precision=engine.precision, load_dataset=False, tracks=False,
    )  # fmt: skip


def _refuse_before_labeling(plans: Sequence[Plan]) -> None:
    """Look at both engines before either of them labels for hours.

    Raises:
        AutolabelError: an engine is not there, cannot run or may not label, or both are the same.

    """
    from tasks.masks.certified import verdict_on
    from tasks.masks.model import Segmenters

    if plans[0].stamp.run_key == plans[1].stamp.run_key:
        model = plans[0].model
        raise AutolabelError(
            f"both engines are the same here: {model.stamp.name} on {model.backend}, "
            f"{model.precision}. Name another as MODEL[:BACKEND[:PRECISION]]"
        )
    for one in plans:
        certain = one.model.allow_uncertified or verdict_on(one.model) == "passed"
        if one.missing and not certain:
            Segmenters().load(one.model).close()


def _planned(params: LabelParams) -> Plan:
    from flows.plan.plan import make_plan

    try:
        return make_plan(params)
    except AutolabelError as error:
        if ":" not in params.model or "unknown model" not in str(error):
            raise
        raise AutolabelError(
            f"{error}. An engine is MODEL[:BACKEND[:PRECISION]]; BACKEND is one of "
            f"{', '.join(BACKENDS)}, PRECISION of {', '.join(PRECISIONS)}"
        ) from None


def _label(plan: Plan) -> Side:
    from flows.cli.label_run import run_label
    from tasks.evaluate.run_side import Side

    params = plan.params
    summary = run_label(params)
    if not summary["frames"]:
        reasons = [one["reason"] for one in summary["failed"]]
        why = reasons[0] if reasons else summary["nothing"] or "there is no frame"
        raise AutolabelError(f"{params.model} labeled nothing: {why}")
    # An earlier comparison may have left other sequences there.
    keys = frozenset((one.name, one.found.content_key) for one in plan.sequences)
    return Side(params.out, summary["run_key"], keys)
