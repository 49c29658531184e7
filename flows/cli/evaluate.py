"""`autolabel evaluate`: masks and boxes against ground truth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("truth")
@click.option(
    "--images",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the truth's images; a dataset knows its own.",
)
@click.option(
    "--model",
    default="compact",
    show_default=True,
    help="compact, tiny, small, base_plus, large, an exported model's folder or a checkpoint.",
)
@click.option("--backend", default="auto", show_default=True, help="As for `label`.")
@click.option(
    "--precision", type=click.Choice(["auto", "fp32", "fp16"]), default="auto", show_default=True,
    help="As for `label`.",
)  # fmt: skip
@click.option(
    "--prompt",
    type=click.Choice(["boxes", "jittered", "detector", "points"]),
    default="boxes",
    show_default=True,
    help="Prompt with the true boxes, with these off by a tenth of their sides, with the "
    "detector's, or with clicks on what is most wrong.",
)
@click.option(
    "--clicks", type=click.IntRange(1, 20), default=1, show_default=True,
    help="With --prompt points: how many on each object.",
)  # fmt: skip
@click.option("--detector", default="compact", show_default=True, help="As for `label`.")
@click.option(
    "--min-score", type=click.FloatRange(0, 1), default=0.05, show_default=True,
    help="Least score of a detected box; average precision needs the low ones too.",
)  # fmt: skip
@click.option("--first-frames", is_flag=True, help="Only the first frame of each sequence.")
@click.option("--limit", type=click.IntRange(min=1), help="Only so many pictures.")
@click.option(
    "--baseline",
    type=click.Choice(["box", "grabcut"]),
    help="No model: fill the box, or GrabCut started from it.",
)
@click.option(
    "--whole-frames", is_flag=True,
    help="Segment whole frames with a model that has close-ups, which `label` prefers.",
)  # fmt: skip
@click.option(
    "--save", type=click.Path(path_type=Path, dir_okay=False),
    help="Keep every instance in a file, for --against.",
)  # fmt: skip
@click.option(
    "--against", type=click.Path(path_type=Path, dir_okay=False, exists=True), metavar="FILE",
    help="Compare with an evaluation that --save kept, instance by instance.",
)  # fmt: skip
@click.option(
    "--report", type=click.Path(path_type=Path, file_okay=False),
    help="Write a page with tables, plots and the worst masks into this folder.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(**given: Any) -> None:
    """Measure masks and boxes against TRUTH.

    TRUTH is a COCO instances json, a folder of indexed PNGs (DAVIS, MOSE, Cityscapes), or
    `dataset:NAME.FIELD`, a field of a FiftyOne dataset.

    `miou` and `boundary_f` are means over all true instances, one that was not found counting 0;
    boundary F allows 0.2% of the diagonal (3 px at 1280x720). With true boxes, the boxes judged by
    `ap50` are those of the masks. Sequences get DAVIS's J and F, too. Exits with 1 when some images
    could not be measured.
    """
    from flows.cli.evaluate_run import run_evaluation

    sys.exit(1 if run_evaluation(given) else 0)
