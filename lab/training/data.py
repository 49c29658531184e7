"""What training learns from: rendered scenes and photographs, as pictures of one form."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.scenes import LABELS, Scene, render_scene
from lab.scenes.riders import riders_as_one
from lab.scenes.types import RIDER_LABEL
from lab.training.config import PictureConfig
from sam2_core.arrays import check_arrays
from sam2_core.types import AutolabelError

# Values of a picture's table of instances: row i describes the pixels with id i, row 0 background.
MAX_INSTANCES = 255
UNUSED, IGNORED, NO_CLASS, HIDDEN, RIDER = -1, -2, -3, -4, -5
# The mask model also learns from what is mostly hidden, down to this share and size: people draw
# such boxes.
LEAST_VISIBLE, LEAST_AREA = 0.15, 100 / (720 * 1280)
# Side of the cells, in pixels, for each of which a picture says what may be there without a label.
CELL_PX = 8
GREY = 114
# Photographs side by side: rows and columns of the grid they are pasted into, and how often.
GRIDS, GRID_SHARES = ((1, 1), (1, 2), (2, 2), (2, 3)), (0.35, 0.15, 0.35, 0.15)
# A cut photograph keeps at least this share of each side; an object of which less than this is
# left is to be ignored.
LEAST_SIDE, LEAST_LEFT = 0.55, 0.3
STRETCH = 0.12
JPEG_SHARE, JPEG_QUALITY = 0.35, (20, 85)


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture as arrays of fixed shapes, to be written to: a slot of shared memory.

    Attributes:
        image: uint8 (H, W, 3) RGB.
        ids: uint8 (H, W), which row of `classes` owns the pixel; 0 is background.
        classes: int16 (256,): class index, NO_CLASS (an object without one), IGNORED (too small
            or too hidden to be asked for), HIDDEN or RIDER (mostly hidden, and a rider with what he
            rides: asked of the mask model only) or UNUSED.
        boxes_px: float32 (256, 4), left, top, right, bottom of objects of which no mask is known,
            0 for others.
        unlabeled: int16 (H / 8, W / 8), bit k where objects of class k may be without a label.

    """

    image: npt.NDArray[np.uint8]
    ids: npt.NDArray[np.uint8]
    classes: npt.NDArray[np.int16]
    boxes_px: npt.NDArray[np.float32]
    unlabeled: npt.NDArray[np.int16]

    def __post_init__(self) -> None:
        check_arrays(
            self, image="uint8 (H, W, 3)", ids="uint8 (H, W)", classes="int16 (256)",
            boxes_px="float32 (256, 4)", unlabeled="int16 (h, w)",
        )  # fmt: skip

    @staticmethod
    def layout(size_hw: tuple[int, int]) -> dict[str, tuple[tuple[int, ...], type[Any]]]:
        """Shapes and types of the arrays of a picture of this size."""
        height, width = size_hw
        return {
            "image": ((height, width, 3), np.uint8), "ids": ((height, width), np.uint8),
            "classes": ((256,), np.int16), "boxes_px": ((256, 4), np.float32),
            "unlabeled": ((math.ceil(height / CELL_PX), math.ceil(width / CELL_PX)), np.int16),
        }  # fmt: skip

    @staticmethod
    def bytes_of(size_hw: tuple[int, int]) -> int:
        """Size of all arrays, each from a multiple of 64 bytes on."""
        return sum(_padded(shape, kind) for shape, kind in Picture.layout(size_hw).values())

    @staticmethod
    def within(buffer: Any, size_hw: tuple[int, int], start: int = 0) -> Picture:
        """Lay a picture's arrays over a buffer, from an offset on."""
        arrays = {}
        for name, (shape, kind) in Picture.layout(size_hw).items():
            arrays[name] = np.ndarray(shape, kind, buffer, start)
            start += _padded(shape, kind)
        return Picture(**arrays)

    @staticmethod
    def empty(size_hw: tuple[int, int]) -> Picture:
        """Make a picture of its own memory."""
        return Picture.within(bytearray(Picture.bytes_of(size_hw)), size_hw)

    def clear(self) -> None:
        """Forget what was in it: grey, without objects."""
        for field in fields(self):
            getattr(self, field.name)[:] = 0
        self.image[:], self.classes[:] = GREY, UNUSED


def _padded(shape: tuple[int, ...], kind: type[Any]) -> int:
    return -(-math.prod(shape) * np.dtype(kind).itemsize // 64) * 64


class Source:
    """Draws picture after picture: of seed i always the same one."""

    def __init__(self, config: PictureConfig, *, with_masks: bool) -> None:
        """Open the photographs.

        Args:
            config: what to draw.
            with_masks: take only photographs whose objects have masks.

        """
        self.config = config
        self.photographs: Photographs | None = None
        if config.photographs:
            self.photographs = Photographs(
                Path(config.photographs), dict(config.photograph_shares), with_masks=with_masks
            )

    def draw(self, seed: int, picture: Picture) -> None:
        """Write the picture of a seed."""
        config = self.config
        domain = domain_of(seed, config)
        picture.clear()
        if domain == "photographs":
            assert self.photographs is not None  # noqa: S101 - `config` has checked it
            self.photographs.draw(seed, picture)
        else:
            scene = render_scene(seed, config.size_hw, domain=domain)
            draw_scene(as_asked(scene, seed, config.riders_as_one), picture)
        random = np.random.default_rng((seed, 1))
        if random.random() < JPEG_SHARE:
            _compress(picture.image, int(random.integers(*JPEG_QUALITY)))


def domain_of(seed: int, config: PictureConfig) -> str:
    """Which domain the picture of a seed belongs to: fixed, well mixed, in the asked proportion."""
    place = (seed * 0.6180339887498949) % 1.0
    for domain, share in (
        ("photographs", config.photograph_share), ("random", config.random_share),
        ("close", config.close_share),
    ):  # fmt: skip
        if place < share:
            return domain
        place -= share
    return "street"


def as_asked(scene: Scene, seed: int, share: float) -> Scene:
    """Join riders and what they ride in a share of the pictures, fixed by their seed."""
    return riders_as_one(scene) if (seed * 0.7548776662466927) % 1.0 < share else scene


def draw_scene(scene: Scene, picture: Picture) -> None:
    """Write a scene into a cleared picture."""
    picture.image[:] = scene.image
    kinds = {name: i for i, name in enumerate(LABELS)}
    kinds[RIDER_LABEL] = RIDER
    wanted = [(i, kinds.get(i.label, NO_CLASS)) for i in scene.instances]
    least_px = LEAST_AREA * scene.image.shape[0] * scene.image.shape[1]
    for instance in scene.dropped:
        learnt = instance.visible_fraction >= LEAST_VISIBLE and instance.area_px >= least_px
        wanted.append((instance, HIDDEN if learnt else IGNORED))
    for row, (instance, kind) in enumerate(wanted[:MAX_INSTANCES], start=1):
        x, y = instance.origin_xy_px
        height, width = instance.mask.shape
        picture.ids[y : y + height, x : x + width][instance.mask] = row
        picture.classes[row] = kind


@dataclass(frozen=True, eq=False)
class Photograph:
    """A photograph of the truth file.

    Attributes:
        path: of the file.
        size_hw: its pixels.
        objects: its annotations, COCO's form; the largest first.
        unlabeled: bit k where objects of class k may be without a label.

    """

    path: Path
    size_hw: tuple[int, int]
    objects: list[dict[str, Any]]
    unlabeled: int


class Photographs:
    """A folder of photographs: `truth.json`, COCO instances, and the files beside it.

    An image may say `source`, `split` ("train" is used) and `not_exhaustive_category_ids`; an
    annotation without `segmentation` has a box only, and one with `iscrowd`, or whose box may
    include a rider, is to be ignored.
    """

    def __init__(self, folder: Path, shares: dict[str, float], *, with_masks: bool) -> None:
        """Read the truth.

        Args:
            folder: of the photographs.
            shares: how often a source is drawn from, relative to the others; one that is not named
                is not used.
            with_masks: take only photographs whose objects have masks.

        Raises:
            AutolabelError: when there is nothing to draw from.

        """
        path = folder / "truth.json"
        try:
            truth = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise AutolabelError(f"{path}: cannot be read: {error}") from error
        self.with_masks = with_masks
        names = {category["id"]: category["name"] for category in truth["categories"]}
        self.kinds = {number: LABELS.index(name) for number, name in names.items()}
        objects: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for annotation in truth["annotations"]:
            objects[annotation["image_id"]].append(annotation)
        self.of_source: dict[str, list[Photograph]] = defaultdict(list)
        for image in truth["images"]:
            own = sorted(objects[image["id"]], key=lambda entry: -entry["area"])
            masked = any("segmentation" in entry for entry in own)
            if image["split"] != "train" or image["source"] not in shares:
                continue
            if masked or not with_masks:
                bits = sum(1 << self.kinds[n] for n in image["not_exhaustive_category_ids"])
                size_hw = (image["height"], image["width"])
                photograph = Photograph(folder / image["file_name"], size_hw, own, bits)
                self.of_source[image["source"]].append(photograph)
        if not self.of_source:
            raise AutolabelError(f"{path}: no photograph of {', '.join(shares)} to train with")
        weights = np.array([shares[source] for source in self.of_source])
        self.shares = weights / weights.sum()

    def draw(self, seed: int, picture: Picture) -> None:
        """Paste photographs into a cleared picture: one that fills it, or a grid of several."""
        random = np.random.default_rng(seed)
        grid = 0 if self.with_masks else random.choice(len(GRIDS), p=GRID_SHARES)
        rows, columns = GRIDS[grid]
        height, width = picture.ids.shape
        sources = list(self.of_source.values())
        used = 0
        for cell in range(rows * columns):
            top, left = cell // columns * height // rows, cell % columns * width // columns
            place = (left, top, left + width // columns, top + height // rows)
            some = sources[random.choice(len(sources), p=self.shares)]
            photograph = some[random.integers(len(some))]
            if used + len(photograph.objects) <= MAX_INSTANCES:
                self._paste(photograph, place, picture, used, random)
                used += len(photograph.objects)

    def _paste(
        self, photograph: Photograph, cell: tuple[int, int, int, int], picture: Picture,
        used: int, random: np.random.Generator,
    ) -> None:  # fmt: skip
        """Write a cut of a photograph into a cell, its objects into the rows after `used`."""
        import cv2

        pixels = cv2.imread(str(photograph.path), cv2.IMREAD_COLOR_RGB)
        if pixels is None:
            raise AutolabelError(f"{photograph.path}: cannot be read as a picture")
        x0, y0, x1, y1 = _cut(photograph.size_hw, random)
        x, y, wide, high = _placed((x1 - x0, y1 - y0), cell, random, fill=self.with_masks)
        window = (slice(y, y + high), slice(x, x + wide))
        how = cv2.INTER_AREA if wide < x1 - x0 else cv2.INTER_LINEAR
        picture.image[window] = cv2.resize(pixels[y0:y1, x0:x1], (wide, high), interpolation=how)
        scale = np.array([wide / (x1 - x0), high / (y1 - y0)] * 2)
        for row, entry in enumerate(photograph.objects, start=used + 1):
            left, top, side_x, side_y = entry["bbox"]
            box = np.array([left, top, left + side_x, top + side_y])
            inside = np.clip(box, (x0, y0, x0, y0), (x1, y1, x1, y1))
            sides = inside[2:] - inside[:2]
            if (sides <= 0).any():
                continue
            left_over = sides.prod() / max(side_x * side_y, 1e-6)
            ignored = entry["iscrowd"] or entry.get("box_may_include_rider")
            ignored = ignored or left_over < LEAST_LEFT
            picture.classes[row] = IGNORED if ignored else self.kinds[entry["category_id"]]
            if "segmentation" in entry:
                mask = _mask(entry["segmentation"])[y0:y1, x0:x1]
                drawn = cv2.resize(mask, (wide, high), interpolation=cv2.INTER_LINEAR) > 127
                picture.ids[window][drawn] = row
            else:
                picture.boxes_px[row] = (inside - (x0, y0, x0, y0)) * scale + (x, y, x, y)
        cells = picture.unlabeled
        first_y, first_x = y // CELL_PX, x // CELL_PX
        cells[first_y : -(-(y + high) // CELL_PX), first_x : -(-(x + wide) // CELL_PX)] = (
            photograph.unlabeled
        )


def _cut(size_hw: tuple[int, int], random: np.random.Generator) -> tuple[int, int, int, int]:
    """Draw which part of a photograph is shown: half of the time all of it."""
    height, width = size_hw
    if random.random() < 0.5:
        return 0, 0, width, height
    sides = np.array([width, height]) * random.uniform(LEAST_SIDE, 1, 2)
    wide, high = (int(side) for side in sides)
    x, y = random.integers(width - wide + 1), random.integers(height - high + 1)
    return int(x), int(y), int(x) + wide, int(y) + high


def _placed(
    part_wh: tuple[int, int], cell: tuple[int, int, int, int], random: np.random.Generator,
    *, fill: bool,
) -> tuple[int, int, int, int]:  # fmt: skip
    """Fit a part into a cell: left, top, width, height; stretched to fill it, if so asked."""
    left, top, right, bottom = cell
    if fill:
        return left, top, right - left, bottom - top
    stretch = math.exp(random.uniform(-STRETCH, STRETCH))
    wanted = np.array([part_wh[0] * stretch, part_wh[1] / stretch])
    room = np.array([right - left, bottom - top])
    wide, high = (max(1, int(side)) for side in wanted * (room / wanted).min())
    spare = random.uniform(0, 1, 2) * (room - (wide, high))
    return left + int(spare[0]), top + int(spare[1]), wide, high


def _mask(segmentation: dict[str, Any]) -> npt.NDArray[np.uint8]:
    """Decode COCO's compressed mask: 0 or 255."""
    from pycocotools import mask as coco_mask

    return np.asarray(coco_mask.decode(segmentation)) * np.uint8(255)


def _compress(image: npt.NDArray[np.uint8], quality: int) -> None:
    """Leave a JPEG's traces in a picture."""
    import cv2

    _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    decoded: Any = cv2.imdecode(data, cv2.IMREAD_COLOR)
    image[:] = decoded
