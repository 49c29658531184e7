"""`autolabel evaluate`: masks and boxes against ground truth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from flows.cli.common_options import FILE, FOLDER, FloatRange, json_option, precision_option


@click.command()
@click.argument("truth")
@click.option("--images", type=FOLDER, help="Images of the truth; not needed for a dataset.")
@click.option("--model", default="compact", help="As for `label`.")
@click.option("--backend", default="auto", help="As for `label`.")
@precision_option
@click.option(
    "--prompt",
    type=click.Choice(["boxes", "jittered", "detector", "points"]),
    default="boxes",
    help="Prompt with the true boxes, the true boxes jittered by a tenth of their sides, "
    "detected boxes, or clicks on the largest error.",
)
@click.option(
    "--clicks",
    type=click.IntRange(1, 20),
    default=1,
    help="Clicks per object, with --prompt points.",
)
@click.option("--detector", default="compact", help="As for `label`.")
@click.option(
    "--min-score",
    type=FloatRange(0, 1),
    default=0.05,
    help="Lowest score of a detected box; average precision needs low scores too.",
)
@click.option("--first-frames", is_flag=True, help="Only the first frame of each sequence.")
@click.option("--limit", type=click.IntRange(min=1), help="Measure at most this many pictures.")
@click.option(
    "--baseline",
    type=click.Choice(["box", "grabcut"]),
    help="No model: fill the box, or GrabCut started from it.",
)
@click.option(
    "--whole-frames",
    is_flag=True,
    help="Segment whole frames even if the model has close-ups.",
)
@click.option("--save", type=FILE, help="Save every instance to a file, for --against.")
@click.option(
    "--against",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Compare with a file of --save, instance by instance.",
)
@click.option("--report", type=FOLDER, help="Write a page with tables, plots and the worst masks.")
@json_option
def command(**given: Any) -> None:
    """Measure masks and boxes against TRUTH.

    TRUTH is a COCO instances json, a folder of indexed PNGs (DAVIS, MOSE, Cityscapes), or
    `dataset:NAME.FIELD`, a field of a FiftyOne dataset.

    `miou` and `boundary_f` are means over all true instances; one that was not found counts 0;
    boundary F allows 0.2% of the diagonal (3 px at 1280x720). With true boxes, the boxes judged by
    `ap50` are those of the masks. Sequences also get DAVIS's J and F. Exit code 1: some images
    could not be measured.
    """
    from flows.cli.evaluate_run import run_evaluation

    sys.exit(1 if run_evaluation(given) else 0)
