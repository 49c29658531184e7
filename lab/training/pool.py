"""Pictures held on the training device: fresh ones replace the oldest while training goes on."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lab.training.data import CELL_PX
from lab.training.visible import visible_boxes
from lab.training.workers import PictureWorkers
from sam2_core.types import AutolabelError

# Rows ahead of the one being written that no batch may use: the thread goes on while one is cut.
REPLACED_SOON = 1


@dataclass(frozen=True, eq=False)
class PictureBatch:
    """B pictures on the device.

    Attributes:
        images: uint8 (B, H, W, 3) RGB.
        ids: uint8 (B, H, W).
        classes: int64 (B, 256), see `Picture`.
        boxes_px: float32 (B, 256, 4), tight around each instance's visible part.
        area_px: float32 (B, 256), of it; 0 for absent instances and row 0.
        boxed: bool (B, 256), instances of which only the box is known; their area is the box's.
        unlabeled: int16 (B, H / 8, W / 8), see `Picture`.
        host_boxes_px: `boxes_px` on the CPU, where crops are chosen.
        host_area_px: `area_px` on the CPU.

    """

    images: Tensor
    ids: Tensor
    classes: Tensor
    boxes_px: Tensor
    area_px: Tensor
    boxed: Tensor
    unlabeled: Tensor
    host_boxes_px: Tensor
    host_area_px: Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy from the host without waiting for the device's work so far."""
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


class PicturePool:
    """A ring of pictures on the device, filled by a thread from the workers."""

    def __init__(self, workers: PictureWorkers, device: torch.device, capacity: int) -> None:
        height, width = workers.config.size_hw
        self.device, self.capacity = device, capacity
        self._workers = workers
        self._images = torch.zeros((capacity, height, width, 3), dtype=torch.uint8, device=device)
        self._ids = torch.zeros((capacity, height, width), dtype=torch.uint8, device=device)
        self._classes = torch.full((capacity, 256), -1, dtype=torch.int64, device=device)
        self._boxes = torch.zeros((capacity, 256, 4), device=device)
        self._area = torch.zeros((capacity, 256), device=device)
        self._boxed = torch.zeros((capacity, 256), dtype=torch.bool, device=device)
        cells = (capacity, math.ceil(height / CELL_PX), math.ceil(width / CELL_PX))
        self._unlabeled = torch.zeros(cells, dtype=torch.int16, device=device)
        self._frame = torch.tensor([[0, 0, width, height]], device=device)
        self._host_boxes = torch.zeros((capacity, 256, 4))
        self._host_area = torch.zeros((capacity, 256))
        self.rendered = 0
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill, daemon=True, name="picture-pool")
        self._thread.start()

    def _fill(self) -> None:
        try:
            stream = torch.cuda.Stream() if self.device.type == "cuda" else None
            while not self._stop.is_set():
                taken = self._workers.take(0.5)
                if taken is not None:
                    self._store(taken, stream)
        except BaseException as error:  # noqa: BLE001  raised again where training waits
            self._failure = error

    def _store(self, taken: tuple[int, int, Any], stream: Any) -> None:
        slot, _, picture = taken
        row = self.rendered % self.capacity
        with torch.cuda.stream(stream):
            self._images[row].copy_(torch.from_numpy(picture.image))
            self._ids[row].copy_(torch.from_numpy(picture.ids))
            self._classes[row].copy_(torch.from_numpy(picture.classes.astype("int64")))
            self._unlabeled[row].copy_(torch.from_numpy(picture.unlabeled))
            boxes, area = visible_boxes(self._ids[row : row + 1], self._frame)
            given = torch.from_numpy(picture.boxes_px).to(self.device)
            sides = given[:, 2:] - given[:, :2]
            boxed = (sides > 0).all(1)
            self._boxed[row].copy_(boxed)
            self._boxes[row].copy_(torch.where(boxed[:, None], given, boxes[0]))
            self._area[row].copy_(torch.where(boxed, sides.prod(1), area[0]))
            self._host_boxes[row].copy_(self._boxes[row])
            self._host_area[row].copy_(self._area[row])
        if stream is not None:
            stream.synchronize()
        self._workers.give_back(slot)
        self.rendered += 1

    def wait_for(self, count: int, timeout_s: float = 600.0) -> None:
        """Block until so many pictures were rendered."""
        waited = 0.0
        while self.rendered < min(count, self.capacity) and not self._failure:
            self._stop.wait(0.05)
            waited += 0.05
            if waited > timeout_s:
                raise AutolabelError(f"only {self.rendered} pictures in {timeout_s:.0f} s")
        if self._failure:
            raise self._failure

    def sample(self, count: int, generator: torch.Generator) -> PictureBatch:
        """Draw pictures at random, with a generator on the CPU."""
        if self._failure:
            raise self._failure
        rows = torch.arange(min(self.rendered, self.capacity))
        if self.rendered >= self.capacity:  # keep away from those that are being replaced
            rows = rows[(rows - self.rendered) % self.capacity >= REPLACED_SOON]
        rows = rows[torch.randint(len(rows), (count,), generator=generator)]
        picked = to_device(rows, self.device)
        return PictureBatch(
            self._images[picked], self._ids[picked], self._classes[picked],
            self._boxes[picked], self._area[picked], self._boxed[picked],
            self._unlabeled[picked], self._host_boxes[rows], self._host_area[rows],
        )  # fmt: skip

    def close(self) -> None:
        """Stop filling."""
        self._stop.set()
        self._thread.join(10)
