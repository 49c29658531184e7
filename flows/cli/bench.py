"""`autolabel bench SOURCE`: a whole run on this machine, by stage, with a picture."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from shutil import which
from typing import Any

import click
import numpy as np

from flows.cli.common_options import FILE, check_writable, json_option, precision_option, print_json
from flows.cli.display import print_table, stderr_console
from flows.machine.programs import UnlistedError, gpu_ids
from sam2_core.devices import no_gpu
from sam2_core.types import AutolabelError
from tasks.observe.progress import DETECT, DOWNLOAD, LOAD, SEGMENT, Listener
from tasks.store.private_files import OwnFolder
from tasks.wording import counted

FOLDER_PREFIX = "autolabel-bench-"
GIVEN_UP = "stopped; the labels are discarded, and the same command starts from the beginning"
STAGES = (DOWNLOAD, DETECT, SEGMENT, LOAD)
SAMPLE_MS = 200
_FASTEST_TOLD = 1000  # frames/s; pictures that lie here already are "fetched" in no time


@click.command("bench")
@click.argument("source", nargs=-1)
@click.option("--pipeline", multiple=True, metavar="SOURCE", help="The same as SOURCE.")
@click.option("--model", default="compact", help="Preset, folder, checkpoint, or random:PRESET.")
@click.option("--backend", default="auto", help="auto, onnxruntime, tensorrt, torch, ...")
@precision_option
@click.option("--boxes", help="Your boxes, as for `autolabel label`.")
@click.option("--dataset", metavar="NAME", help="Also load into this FiftyOne dataset.")
@click.option("--plot", type=FILE, help="Write a plot (PNG).")
@json_option
def command(
    source: tuple[str, ...],
    pipeline: tuple[str, ...],
    model: str,
    backend: str,
    precision: str,
    boxes: str | None,
    dataset: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Label SOURCE as `autolabel label` does, time every stage, and discard the labels.

    Without a SOURCE: the frames of the demo.
    """
    from tasks.evaluate.evaluate import EXAMPLES

    if plot:
        if plot.suffix.lower() not in {"", ".png"}:
            raise click.BadParameter(f"{plot}: a PNG is what is written", param_hint="--plot")
        check_writable(files=[plot])
    options = {
        "model": model, "backend": backend, "precision": precision, "boxes": boxes,
        "load_dataset": dataset is not None, "dataset": dataset,
        # Nothing can prove itself with random weights, and its labels are thrown away.
        "allow_uncertified": model.startswith("random:"),
    }  # fmt: skip
    results = measure_pipeline(source + pipeline or (str(EXAMPLES),), options)
    show(results)
    print_json(as_json, {k: v for k, v in results.items() if k not in {"curves", "busy"}})
    if plot:
        plot_pipeline(results, plot)
        stderr_console().print(f"plot: {plot}")


class Watch(Listener):
    """When frames went through each stage, and how busy the device and this process were."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.moments: dict[str, list[tuple[float, int]]] = {stage: [] for stage in STAGES}
        self.busy: list[tuple[float, float]] = []
        self.unknown = ""  # why nothing is known of the device, should that be so
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def advanced(self, stage: str, frames: int, kept: bool) -> None:
        """Note frames that are through a stage and needed work."""
        if not kept and stage in self.moments:
            with self._lock:
                self.moments[stage].append((time.perf_counter() - self.started, frames))

    def __enter__(self) -> Watch:
        smi, self.unknown = which("nvidia-smi"), no_gpu()
        try:
            gpus = [] if self.unknown else gpu_ids()
        except UnlistedError as error:
            gpus, self.unknown = [], f"device's busy share unknown: {error}"
        if gpus:
            self.unknown = f"device's busy share unknown: nvidia-smi reports none for {gpus[0]}"
        if smi and gpus and not gpus[0].startswith("MIG-"):
            # One run uses one GPU: the first that it sees.
            command = [smi, f"--id={gpus[0]}", "-lms", str(SAMPLE_MS),
                       "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]  # fmt: skip
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self._sample, args=[self._process.stdout], daemon=True).start()
        return self

    def _sample(self, lines: Iterable[str]) -> None:
        for line in lines:
            if line.strip().isdigit():
                self.busy.append((time.perf_counter() - self.started, int(line) / 100))

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def rate(self, stage: str) -> dict[str, float]:
        """Return a stage's frames, its first and last second, and frames/s of its middle 80%.

        The middle has neither the start of a run nor its end, when other stages idle.
        """
        seconds, counts = np.array(sorted(self.moments[stage])).T
        passed = np.cumsum(counts)  # frames that are through by then
        low, high = np.searchsorted(passed - counts, passed[-1] * np.array([0.1, 0.9])) - 1
        found = {"first_s": seconds[0], "last_s": seconds[-1]}
        if seconds[high] > seconds[low]:
            found["frames_per_s"] = (passed[high] - passed[low]) / (seconds[high] - seconds[low])
        rounded = {name: round(float(value), 3) for name, value in found.items()}
        return {"frames": int(passed[-1])} | rounded

    def whole_rate(self) -> float | None:
        """Return frames/s from the first one fetched to the last one through the last stage.

        Where stages overlap for long it comes near to that of the slowest; in a short run they
        follow each other, and models are loaded meanwhile.
        """
        seconds = [second for moments in self.moments.values() for second, _ in moments]
        frames = sum(count for _, count in self.moments[SEGMENT])
        span = max(seconds) - min(seconds) if frames else 0.0
        return round(frames / span, 3) if span else None


def measure_pipeline(sources: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Label sources into a folder that is thrown away, and say what every stage did.

    Args:
        sources: as `autolabel label` takes them.
        options: other parameters of `flows.params.LabelParams`.

    Returns:
        Among others `frames_per_s`, that of the segment stage's middle 80%, and
        `whole_frames_per_s`, that of this run through all stages.

    Raises:
        AutolabelError: nothing could be labeled.

    """
    from flows.cli.label import run_label
    from flows.params import LabelParams
    from sam2_core.machine import describe_machine
    from tasks.pipeline.run_context import RunContext

    folder = OwnFolder(FOLDER_PREFIX)
    try:
        params = LabelParams(sources=sources, out=str(folder.path / "labels"), **options)
        watch, context = Watch(), RunContext()
        with watch, context.progress.listening(watch):
            summary = run_label(params, context, stopped=GIVEN_UP, clean_up=folder.remove)
    finally:
        folder.remove()
    if not summary["frames"]:
        reasons = "; ".join(str(one.get("reason")) for one in summary.get("failed", ()))
        raise AutolabelError(f"nothing was labeled: {reasons or 'the sources hold no frame'}")
    stages = {stage: watch.rate(stage) for stage in STAGES if watch.moments[stage]}
    segmented = stages[SEGMENT]
    rate = segmented.get("frames_per_s")
    inside = [
        share for second, share in watch.busy
        if segmented["first_s"] <= second <= segmented["last_s"]
    ]  # fmt: skip
    return {
        "machine": describe_machine(),
        "model": summary["model"],
        "frames": summary["frames"],
        "instances": summary["instances"],
        "failed": len(summary["failed"]),
        "to_first_frame_s": segmented["first_s"],
        "frames_per_s": rate,
        "ms_per_frame": round(1000 / rate, 2) if rate else None,
        "whole_frames_per_s": watch.whole_rate(),
        "device_busy": round(sum(inside) / len(inside), 3) if inside else None,
        "device_busy_unknown": None
        if inside
        else watch.unknown or "no NVIDIA GPU for this process",
        "seconds": {
            stage: round(spent, 2)
            for stage, spent in summary["seconds"].items()
            if stage != "total"
        },
        "stages": stages,
        "curves": {stage: sorted(watch.moments[stage]) for stage in stages},
        "busy": watch.busy,
    }


def plot_pipeline(results: dict[str, Any], path: Path) -> None:
    """Write a PNG: frames through each stage over time, and how busy the device was."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained", dpi=110)
    ratios = (3, 1) if results["busy"] else (1,)
    curves, *below = figure.subplots(
        len(ratios), 1, height_ratios=ratios, sharex=True, squeeze=False
    )[:, 0]
    for stage, points in results["curves"].items():
        seconds, counts = zip(*points, strict=True)
        # All at one moment are a point, not a line.
        once = "o" if len(set(seconds)) == 1 else ""
        curves.plot(seconds, list(itertools.accumulate(counts)), marker=once, label=stage)
    machine, rate = results["machine"], results["frames_per_s"]
    segmented = f"{rate_told(rate)} frames/s in segment, " if rate else ""
    where = machine["gpus"][0] if machine["gpus"] else machine["cpu"]
    curves.set_title(
        f"{results['model']['name']}, {results['model']['precision']}, on {where} "
        f"({machine['cores']} cores): first frame after {results['to_first_frame_s']:.1f} s,\n"
        f"{segmented}{rate_told(results['whole_frames_per_s'])} frames/s from the first frame "
        "fetched to the last one through"
    )
    curves.set(ylabel="frames through", xlim=(0, None), ylim=(0, None))
    curves.legend()
    for busy in below:
        busy.fill_between(*zip(*results["busy"], strict=True), step="post", alpha=0.6)
        busy.set(ylabel="device busy", ylim=(0, 1))
    (curves, *below)[-1].set_xlabel("seconds since the start")
    figure.savefig(path, format="png")


def rate_told(rate: float | None) -> str:
    """Say frames/s: unknown where all came at once, and no digits that nothing can mean."""
    if not rate:
        return "-"
    return f"{rate:.1f}" if rate < _FASTEST_TOLD else f"over {_FASTEST_TOLD:,}"


def show(results: dict[str, Any]) -> None:
    """Print the figures to stderr."""
    rows = (
        (
            stage, str(found["frames"]), f"{found['first_s']:.1f}", f"{found['last_s']:.1f}",
            rate_told(found.get("frames_per_s")), str(results["seconds"].get(stage, "-")),
        )
        for stage, found in results["stages"].items()
    )  # fmt: skip
    console = stderr_console()
    columns = ("stage", "frames", "first s", "last s", "frames/s", "thread seconds")
    print_table(console, columns, rows)
    busy = results["device_busy"]
    busy_text = results["device_busy_unknown"] if busy is None else f"device busy {busy:.0%}"
    segmented = "too few frames for a rate of the segment stage; measure with more\n"
    if results["frames_per_s"]:
        rate = rate_told(results["frames_per_s"])
        segmented = f"{rate} frames/s in segment, without its first and last tenth\n"
    console.print(
        f"{counted(results['frames'], 'frame')}, {counted(results['instances'], 'mask')}, "
        f"{results['failed']} failed; "
        f"first frame after {results['to_first_frame_s']:.1f} s; {busy_text}\n"
        f"{segmented}"
        f"{rate_told(results['whole_frames_per_s'])} frames/s in this run, from the first frame "
        "fetched to the last one through all stages, with the loading of models"
    )
