"""Labels and pictures of a few sequences on this disk, and what they are, for exports."""

from dataclasses import replace

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from tasks.export.run import Choice
from tasks.export.types import ExportFrame, stem_of
from tasks.frames.identity import file_version, frame_key
from tasks.frames.sources import remember_sources
from tasks.store import artifacts
from tasks.store.manifests import ChunkRecord, Manifest, write_manifest
from tasks.types import FrameRef
from tests.review.labels import STAMP, labeled_frame, labeled_frames

NOTHING = Choice()


def export_frame(sequence, camera, uri, instances=(), size_hw=(72, 128), image=None):
    """Return a frame as writers get it."""
    frame = FrameRef(sequence, camera, 0, None, uri)
    return ExportFrame(
        sequence, camera, 0, None, uri, size_hw, "", "", stem_of(uri, 0), tuple(instances),
        frame_key(frame), (sequence, camera) if camera else (sequence,), frame, image,
    )  # fmt: skip


def store(out, frames_uri, labeled, size=4):
    """Store frames' labels as a run does; two chunks and more for the longer ones."""
    write_manifest(out, stored(out, frames_uri, labeled, size=size))


def stored(out, frames_uri, labeled, stamp=STAMP, size=8):
    """Store frames' labels; returns their manifest, which is not there yet."""
    remember_sources([frames_uri])
    frames = [one.frame for one in labeled]
    by_frame = {(one.frame.camera, one.frame.index): one for one in labeled}
    records = []
    for chunk in artifacts.chunks_of(frames, stamp.run_key, size):
        part = [by_frame[frame.camera, frame.index] for frame in chunk.frames]
        written = artifacts.write_labels(out, chunk, part, stamp)
        records.append(ChunkRecord.of(chunk, part).with_checksums(written))
    key = artifacts.content_key(frames)
    return Manifest(frames[0].sequence_id, frames_uri, key, stamp, tuple(records))


def run_of(tmp_path, sequences=("drive",), frames=6, tracks=False, each=5, files="{:06d}.jpg"):
    """Labels and pictures of a few sequences on this disk; returns the run's folder.

    `each` is the number of labels of all frames, or of each of them.
    """
    counts = [each] * frames if isinstance(each, int) else each
    for number, name in enumerate(sequences):
        labeled = []
        for index, count in enumerate(counts):
            one = labeled_frame(index, count, sequence_id=name, seed=number)
            path = tmp_path / "in" / name / files.format(one.frame.index)
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), np.full((*one.frame.size_hw, 3), 90 + one.frame.index, np.uint8))
            etag = file_version(path)
            frame = replace(one.frame, uri=str(path), etag=etag, size_bytes=path.stat().st_size)
            track_ids = np.arange(len(one.boxes)) + 7 if tracks else None
            boxes = replace(one.boxes, track_ids=track_ids)
            labeled.append(replace(one, frame=frame, boxes=boxes))
        store(str(tmp_path / "run"), str(tmp_path / "in" / name), labeled)
    return str(tmp_path / "run")


def truth(tmp_path, name="drive", frames=6, seed=0):
    """Label, score and mask of every instance, by frame."""
    return [
        [
            (label, float(score), {"size": [*one.masks.size_hw], "counts": rle})
            for label, score, rle in zip(
                one.boxes.labels, one.boxes.scores, one.masks.rle, strict=True
            )
        ]
        for one in labeled_frames(frames, 5, sequence_id=name, seed=seed)
    ]


def owned(instances, classes=None):
    """Masks after the higher scores of these classes have taken their pixels, as they are given."""
    owner = np.full(tuple(instances[0][2]["size"]), -1)
    for number in sorted(range(len(instances)), key=lambda i: instances[i][1]):
        if classes and instances[number][0] not in classes:
            continue
        owner[coco_mask.decode(instances[number][2]) > 0] = number
    return owner
