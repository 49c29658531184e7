"""Labeled frames for the review tests: random blobs with known sizes, cheap to make."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from sam2_core.types import Boxes, Masks, ModelStamp
from tasks.dataset.documents import ObjectNames, Origin
from tasks.dataset.recorded_frames import Placement
from tasks.dataset.schema import stored_dataset
from tasks.frames.identity import file_version
from tasks.frames.sources import remember_sources
from tasks.load.into_fiftyone import LoadReport, write_frames
from tasks.risk.compute_risk import compute_risk
from tasks.store.artifacts import RunStamp
from tasks.store.tables import LabeledFrame
from tasks.tracks.linking import track
from tasks.types import FrameRef

SIZE_HW = (720, 1280)
COMPACT = ModelStamp("compact/restructured", "ab" * 32, "", "onnxruntime", "fp32", "1")
STAMP = RunStamp("yolox_nano@c789", COMPACT)
OTHER_STAMP = RunStamp("yolox_nano@c789", ModelStamp("tiny", "cd" * 32, "", "torch", "fp32", "1"))
CLASSES = ("car", "person", "truck", "bicycle")


@lru_cache
def pool(count: int = 400, seed: int = 0) -> tuple[list[bytes], np.ndarray, np.ndarray]:
    """RLE, boxes (count, 4) and areas of blobs like those in driving frames."""
    rng = np.random.default_rng(seed)
    height, width = SIZE_HW
    rle, boxes = [], []
    for _ in range(count):
        size = np.exp(rng.normal(3.2, 0.6))
        angle = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        radius = size * (1 + 0.15 * rng.normal(size=24))
        x = (rng.uniform(0, width) + radius * np.cos(angle)).clip(0, width - 1)
        y = (rng.uniform(0, height) + radius * np.sin(angle)).clip(0, height - 1)
        polygon = np.stack([x, y], 1).ravel().tolist()
        rle.append(coco_mask.frPyObjects([polygon], height, width)[0]["counts"])
        boxes.append([x.min(), y.min(), x.max(), y.max()])
    areas = np.array([coco_mask.area({"counts": r, "size": [height, width]}) for r in rle])
    return rle, np.array(boxes, np.float32), areas.astype(np.int64)


def labeled_frame(
    index: int, instances: int = 5, sequence_id: str = "drive", camera: str = "", seed: int = 0
) -> LabeledFrame:
    """One frame with `instances` random blobs."""
    rng = np.random.default_rng([seed, index])
    rle, boxes, areas = pool()
    chosen = rng.choice(len(rle), instances, replace=False)
    frame = FrameRef(
        sequence_id, camera, index, 1_700_000_000_000_000_000 + index * 10**8,
        f"memory://frames/{sequence_id}/{camera or 'image'}/{index:06d}.jpg", SIZE_HW,
        f"etag{index}", 1234,
    )  # fmt: skip
    labels = tuple(CLASSES[i] for i in rng.integers(0, len(CLASSES), instances))
    scores = [rng.uniform(0.3, 1, instances).astype(np.float32) for _ in range(3)]
    masks = Masks(
        tuple(rle[i] for i in chosen), SIZE_HW, scores[1], scores[2],
        rng.normal(5, 3, instances), areas[chosen], ("",) * instances,
    )  # fmt: skip
    return LabeledFrame(frame, Boxes(boxes[chosen], scores[0], labels, None, "test"), masks)


def labeled_frames(count: int, instances: int = 5, **kind: object) -> Sequence[LabeledFrame]:
    """Successive frames."""
    return [labeled_frame(index, instances, **kind) for index in range(count)]


PLACES = [(120, 120, 400, 400), (520, 150, 800, 420), (900, 260, 1160, 600)]


def disc(box: tuple[int, int, int, int]) -> np.ndarray:
    image = np.zeros(SIZE_HW, np.uint8)
    x0, y0, x1, y1 = box
    cv2.ellipse(image, ((x0 + x1) // 2, (y0 + y1) // 2), ((x1 - x0) // 2, (y1 - y0) // 2),
                0, 0, 360, 1, -1)  # fmt: skip
    return image


def picture_with(
    folder: Path, index: int, places: list[tuple[int, int, int, int]], labels: tuple[str, ...],
    quality: float,
) -> LabeledFrame:  # fmt: skip
    """One picture with labels far apart; the higher the quality, the less doubtful they are."""
    picture = np.full((*SIZE_HW, 3), 90, np.uint8)
    for place, colour in zip(places, ((60, 60, 200), (60, 200, 60), (200, 60, 60)), strict=False):
        picture[disc(place) > 0] = colour
    path = folder / "images" / f"{index}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), picture)
    remember_sources([str(folder)])
    count = len(places)
    rle = [coco_mask.encode(np.asfortranarray(disc(place)))["counts"] for place in places]
    areas = [int(disc(place).sum()) for place in places]
    scores = [quality] * count, [quality + 0.2] * count, [1] * count
    masks = Masks(tuple(rle), SIZE_HW, *scores, areas, ("",) * count)
    boxes = Boxes(np.array(places, np.float32), [0.5] * count, labels)
    version = file_version(path) or ""
    size_bytes = path.stat().st_size
    frame = FrameRef(
        "drive", "", index, index + 1, str(path), SIZE_HW, version, size_bytes, str(path)
    )  # fmt: skip
    return LabeledFrame(frame, boxes, masks)


def three_labels(folder: Path) -> LabeledFrame:
    """One picture with three labels, all of them doubtful."""
    return picture_with(folder, 0, PLACES, ("car", "person", "truck"), 0.4)


def load_frames(dataset_name: str, labeled: Sequence[LabeledFrame], stamp: RunStamp) -> LoadReport:
    """Write some frames of one camera, in order, beside what the dataset has."""
    keys = [(one.frame.camera, one.frame.index) for one in labeled]
    objects = ObjectNames(dict(zip(keys, track(labeled).frames, strict=True)))
    origin = Origin.of(stamp, objects=objects)
    judged = compute_risk(labeled)
    dataset = stored_dataset(dataset_name)
    instances = write_frames(dataset, labeled, origin, judged, Placement())
    return LoadReport(len(labeled), instances, 0.0)
