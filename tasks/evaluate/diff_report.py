"""The page of `autolabel diff --report`: tables, pictures of the largest changes, what to redo."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from sam2_core.trust.calibration import write_difference
from tasks.dataset.recorded_frames import Pictures, find_pictures
from tasks.evaluate.run_diff import Change, RunDiff
from tasks.frames.images import read_image
from tasks.store import storage
from tasks.wording import counted, plain

CHANGED = "changed.txt"
CHANGES = "changes.jsonl"
# What a report is known by, and all that is written.
PAGE, MARK = "diff.md", "# What changed"
FILES = (CHANGED, CHANGES, "diff.json", "change-[0-9][0-9].png")


def change_line(change: Change) -> str:
    """Say a change of an instance as a line of JSON."""
    frame = change.frame
    return json.dumps({
        "sequence": frame.sequence_id, "camera": frame.camera, "frame": frame.index,
        "uri": frame.uri, "kind": change.kind, "label": change.instance.label,
        "iou": round(change.iou, 4), "area_px": change.instance.area_px,
        "box_xyxy_px": [round(side, 2) for side in change.instance.box_xyxy_px],
    }) + "\n"  # fmt: skip


def not_in_both(result: dict[str, Any]) -> list[str]:
    """Say in lines what only one of the runs has."""
    lines = [] if result["instances"] else ["no frame has an instance: nothing is compared"]
    for side in "ab":
        names, frames = result[f"sequences_only_in_{side}"], result[f"frames_only_in_{side}"]
        if names or frames:
            some = f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})" if names else ""
            counts = "a change" if side == "a" else "not compared"
            lines.append(
                f"only in {result[f'run_{side}']}: {counted(len(names), 'sequence')}{some} and "
                f"{counted(frames, 'frame')} of sequences that both have: {counts}"
            )
    return lines


def uncertified(result: dict[str, Any]) -> list[str]:
    """Say in lines which labels were made with --allow-uncertified, or by mixed versions."""
    return [
        f"{result[f'run_{side}']} was labeled with --allow-uncertified; its certificate said: "
        f"{result[f'uncertified_{side}']}"
        for side in "ab"
        if result[f"uncertified_{side}"]
    ] + [
        f"{name} in {result[f'run_{side}']} was labeled by libraries of several versions: {which}"
        for side in "ab"
        for name, which in result[f"mixed_versions_{side}"].items()
    ]


def write_report(folder: Path, result: dict[str, Any], found: RunDiff) -> None:
    """Write what differs, pictures of the largest changes, and the list of changed sequences."""
    folder.mkdir(parents=True, exist_ok=True)
    names = "".join(f"{name}\n" for name in result["changed_sequences"])
    (folder / CHANGED).write_text(names, encoding="utf-8")
    (folder / "diff.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for old in folder.glob(FILES[-1]):
        old.unlink()
    lines = [
        MARK, "", f"{plain(result['run_a'])} and {plain(result['run_b'])}", "",
        f"{counted(result['frames'], 'frame')}, {counted(result['instances'], 'instance')}, "
        f"{result['changed']} changed ({kinds_of(result)}); "
        f"{counted(len(result['changed_sequences']), 'sequence')} with a change, listed in "
        f"`{CHANGED}`; every change of an instance is in `{CHANGES}`.", "",
        *(f"{plain(line)}\n" for line in (*uncertified(result), *not_in_both(result))),
    ]  # fmt: skip
    for what in ("by_size", "by_class"):
        lines += ["| | instances | changed | mean IoU | predicted IoU |", "|---|---|---|---|---|"]
        lines += [
            f"| {' | '.join([plain(name), *figures(one)])} |" for name, one in result[what].items()
        ] + [""]
    lines += [
        "The largest changes, by (1 - IoU) times the root of the area. Green: both. Red: first run "
        "only. Blue: second run only.", "",
    ] if found.worst else []  # fmt: skip
    pictures = find_pictures([change.frame for change in found.worst])
    for number, change in enumerate(found.worst, 1):
        name = f"change-{number:02d}.png"
        told = _drawn(folder / name, change, pictures)
        place = (change.frame.sequence_id, change.frame.camera, str(change.frame.index))
        where = " ".join(filter(None, place))
        lines += [f"![{change.kind}]({name})" if not told else plain(f"({told})"), ""]
        lines += [
            f"{plain(f'{where}: {change.instance.label}')}, {change.kind}, IoU {change.iou:.3f}",
            "",
        ]
    (folder / PAGE).write_text("\n".join(lines), encoding="utf-8")


def kinds_of(result: dict[str, Any]) -> str:
    """Say how many changes of each kind there are."""
    counts = (f"{count} {kind}" for kind, count in result["by_kind"].items() if count)
    return ", ".join(counts) or "none"


def figures(one: dict[str, Any]) -> list[str]:
    """Return instances, changed ones, mean IoU and predicted IoU of a row, as text."""
    iou = "" if one["miou"] is None else f"{one['miou']:.4f}"
    gain = "" if one["predicted_iou_gain"] is None else f"{one['predicted_iou_gain']:+.4f}"
    return [str(one["instances"]), str(one["changed"]), iou, gain]


def _drawn(path: Path, change: Change, pictures: Pictures) -> str:
    """Draw a change; returns why not, "" where it is drawn."""
    uri, picture = change.frame.uri, pictures.of(change.frame)
    if uri in pictures.changed:
        return "its picture has changed since it was labeled"
    if picture is None:
        return f"its picture cannot be had: {storage.redact(uri)}"
    pixels = read_image(replace(change.frame, local_path=str(picture)))
    nothing = bytes(coco_mask.encode(np.zeros(pixels.shape[:2], np.uint8, order="F"))["counts"])
    masks = [one or nothing for one in change.rle]
    write_difference(path, pixels, masks[0], masks[1], np.array(change.instance.box_xyxy_px))
    return ""
