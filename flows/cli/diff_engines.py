"""Two engines over the same pictures: each labels them as `autolabel label` does."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sam2_core.load import BACKENDS, PRECISIONS
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from tasks.lab.run_side import Side


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
        first, second = (
            _label(Engine.parse(one), asked, place / name)
            for one, name in zip(engines, "ab", strict=True)
        )
        yield first, second


def _label(engine: Engine, asked: dict[str, Any], out: Path) -> Side:
    from flows.cli.label_run import run_label
    from flows.cli.options import validated
    from flows.params import LabelParams
    from tasks.lab.run_side import Side

    params = validated(
        LabelParams, sources=(asked["images"],), out=str(out), model=engine.model,
        boxes=asked["boxes"], allow_uncertified=asked["allow_uncertified"],
        backend=engine.backend, precision=engine.precision, load_dataset=False, tracks=False,
    )  # fmt: skip
    summary = run_label(params)
    if not summary["frames"]:
        reasons = [one["reason"] for one in summary["failed"]]
        why = reasons[0] if reasons else summary["nothing"] or "there is no frame"
        raise AutolabelError(f"{engine.model} labeled nothing: {why}")
    return Side(str(out), summary["run_key"])
