"""The demo: streets rendered on the spot, labeled, loaded, and compared with their exact truth."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from flows.cli.display import spinning
from flows.cli.label_run import label_with_progress, prefect_if_needed
from flows.params import LabelParams
from flows.plan.plan import make_plan
from sam2_core.cache import cache_folder

DATASET = "demo"
# Part of the folder's name: another set of scenes does not mix with what is there.
EDITION = 1


@dataclass(frozen=True)
class DemoSequence:
    """One sequence to render; the seeds are none that the bundled models were trained on."""

    name: str
    seed: int
    frames: int
    cameras: tuple[str, ...] = ("front",)


SEQUENCES = (
    DemoSequence("street-a", 900_005, 12),
    DemoSequence("street-b", 900_006, 12),
    DemoSequence("crossing-3-cameras", 900_009, 4, ("front", "front_left", "front_right")),
)


def run_demo(console: Console) -> dict[str, Any]:
    """Render, label, load, compare; returns the summary with `mask_miou` and `box_ap50`.

    A second call finds everything there and only compares.
    """
    started = time.perf_counter()
    home = cache_folder() / f"demo-{EDITION}"
    params = LabelParams(
        sources=(str(home / "sequences"),),
        out=str(home / "labels"),
        dataset=DATASET,
        model="compact",
        detector="compact",
    )
    with prefect_if_needed(console) as api:
        if _missing(home / "sequences"):
            api.begin()  # it starts beside the rendering
        rendering = time.perf_counter()
        render(console, home / "sequences")
        rendering = time.perf_counter() - rendering
        summary = label_with_progress(console, params, api)
    with spinning(console, "comparing with the truth"):
        summary |= compare(params, home / "sequences")
    summary["seconds"]["render"] = round(rendering, 3)
    summary["seconds"]["total"] = round(time.perf_counter() - started, 3)
    return summary


def _missing(folder: Path) -> list[DemoSequence]:
    return [one for one in SEQUENCES if not (folder / one.name / "truth.json").is_file()]


def render(console: Console, folder: Path) -> None:
    """Render the sequences that are not there yet; each one appears whole or not at all."""
    from lab.scenes import write_sequence

    for one in track(
        _missing(folder),
        "rendering",
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ):
        unfinished = folder.parent / f"unfinished-{one.name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        write_sequence(unfinished, one.seed, one.frames, cameras=one.cameras)
        (folder / one.name).parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / one.name, ignore_errors=True)
        unfinished.replace(folder / one.name)
    frames = sum(one.frames * len(one.cameras) for one in SEQUENCES)
    console.print(
        f"{len(SEQUENCES)} rendered sequences, {frames} frames, with exact masks to compare with"
    )


def compare(params: LabelParams, folder: Path) -> dict[str, Any]:
    """Put the truth beside the labels in FiftyOne, and measure the labels against it."""
    from lab.scenes import LABELS
    from tasks.dataset.coco_truth import load_truth as read_truth
    from tasks.evaluate.metrics import Scores
    from tasks.load.ground_truth import load_truth

    scores = Scores(LABELS)
    labels = dict(_labels(params))
    for one in SEQUENCES:
        path = folder / one.name / "truth.json"
        if params.dataset_name:
            load_truth(params.dataset_name, path, one.name)
        for image in read_truth(path).images:
            found = labels.get(str(folder / one.name / "images" / image.file_name))
            if found is not None and found.masks is not None:
                scores.add(image, found.boxes, found.masks, by_row=False)
    result = scores.result()
    return {
        "mask_miou": result["miou"],
        "mask_miou_of_found": result["miou_matched"],
        "box_recall": result["recall"],
        "box_ap50": result["ap50"],
        "mask_ap50": result["mask_ap50"],
        "true_instances": result["instances"],
        "compared_frames": result["images"],
    }


def _labels(params: LabelParams) -> Iterator[tuple[str, Any]]:
    """Every labeled frame of the run by its path, read from its artifacts."""
    from tasks.store.manifests import labels_of

    manifests = (planned.manifest for planned in make_plan(params).sequences)
    for manifest in filter(None, manifests):
        for chunk in manifest.chunks:
            for one in labels_of(params.out, manifest, chunk):
                yield one.frame.uri, one
