"""An export from beginning to end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from sam2_core.types import AutolabelError
from tasks.export.coco import CocoWriter, YoloWriter
from tasks.export.frames import Choice, Frames, source_of, uncertified_runs
from tasks.export.overlay import OverlayWriter
from tasks.export.pngs import CityscapesWriter, DavisWriter, MotsWriter, PngWriter
from tasks.export.review_tools import CvatWriter, FiftyOneWriter, LabelStudioWriter
from tasks.export.sink import ImageMode, Sink
from tasks.export.t4 import T4Writer
from tasks.export.types import Classes, ExportNotes, Writer
from tasks.store.addresses import checked

FORMATS: dict[str, Callable[[Sink, Classes, ExportNotes], Writer]] = {
    "coco": CocoWriter,
    "coco-polygons": partial(CocoWriter, as_polygons=True),
    "yolo": YoloWriter,
    "png": PngWriter,
    "cityscapes": CityscapesWriter,
    "mots": MotsWriter,
    "davis": DavisWriter,
    "t4": T4Writer,
    "cvat": CvatWriter,
    "label-studio": LabelStudioWriter,
    "fiftyone": FiftyOneWriter,
    "overlay": OverlayWriter,
}
NEED_PICTURES = frozenset({"overlay"})


def export(
    source: str,
    format_: str,
    target: str,
    choice: Choice,
    *,
    images: ImageMode = "copy",
    on_frame: Callable[[int], object] = lambda _: None,
) -> dict[str, Any]:
    """Write labels in a format; returns the report, which is also in `export.json` beside them.

    Equal labels and options give equal files. Only a few frames are in memory at once.

    Args:
        source: `--out` of a run, or a dataset: then what people decided stands in for the
            machine's labels.
        format_: one of FORMATS.
        target: folder or URL; nothing may be there yet.
        choice: which labels, and under which names.
        images: copy pictures beside the labels, link to those of this machine, or leave them out.
        on_frame: called with the number of frames done.

    Raises:
        AutolabelError: no such source, something is at the target, or a file cannot be written.

    """
    out_uri, dataset = source_of(source)
    if choice.reviewed and dataset is None:
        raise AutolabelError(
            "decisions are in a dataset: name it instead of the run's folder (NAME is a dataset, "
            "./NAME a folder)"
        )
    notes, classes = ExportNotes(), Classes(choice.classes)
    pictures = images != "none" or format_ in NEED_PICTURES
    frames = Frames(out_uri, choice, dataset, pictures=pictures, notes=notes)
    counts: Counter[str] = Counter()
    splits: Counter[str] = Counter(dict.fromkeys(choice.splits, 0))
    sequences: set[str] = set()
    with Sink(checked(target), images) as sink:
        writer = FORMATS[format_](sink, classes, notes)
        for frame in frames:
            writer.add(frame)
            splits[frame.split] += 1
            sequences.add(frame.sequence_id)
            counts["frames"] += 1
            counts["instances"] += len(frame.instances)
            counts["without_picture"] += pictures and frame.image is None
            on_frame(counts["frames"])
        facts = writer.close()
        report = {
            "format": format_, "source": out_uri,
            "dataset": None if dataset is None else dataset.name,
            "runs": sorted({one.stamp.run_key for one in frames.manifests}),
            "sequences": len(sequences), "frames": counts["frames"],
            "instances": counts["instances"] - notes.unwritten,
            "frames_without_picture": counts["without_picture"],
            "classes": classes.names, "splits": {k: v for k, v in splits.items() if k},
            "left_out": notes.left_out, "classes_not_there": _not_there(choice, notes), **facts,
        }  # fmt: skip
        if notes.unreadable:
            report["sequences_unreadable"] = notes.unreadable
        if uncertified := uncertified_runs(out_uri, frames.manifests):
            report["allow_uncertified"] = uncertified
        if choice.track_classes:
            report["named_as_track"] = notes.named_as_track
        sink.close(report)
    return report


def _not_there(choice: Choice, notes: ExportNotes) -> list[str]:
    """Classes that were named and that no label has."""
    renamed = {choice.class_map.get(name, name) for name in notes.classes}
    missing = [name for name in choice.class_map if name not in notes.classes]
    return missing + [name for name in choice.classes if name not in renamed]
