"""Rendering on all cores: worker processes fill slots of shared memory, a bounded ring."""

from __future__ import annotations

import multiprocessing
import os
import queue
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.scenes import Scene, render_scene
from lab.scenes.riders import riders_as_one
from lab.scenes.types import RIDER_LABEL
from lab.training.config import RenderConfig
from sam2_core.arrays import check_arrays
from sam2_core.types import AutolabelError

# Values of a slot's table of instances: row i describes the pixels with id i, row 0 background.
MAX_INSTANCES = 255
UNUSED, IGNORED, NO_CLASS, HIDDEN, RIDER = -1, -2, -3, -4, -5
# The mask model also learns from what is mostly hidden, down to this share and size: people draw
# such boxes.
LEAST_VISIBLE, LEAST_AREA = 0.15, 100 / (720 * 1280)
SLOTS_PER_WORKER = 4

Render = Callable[[int, str, tuple[int, int]], Scene]


@dataclass(frozen=True, eq=False)
class Picture:
    """A rendered picture as arrays of fixed shapes, to be written to: a slot of shared memory.

    Attributes:
        image: uint8 (H, W, 3) RGB.
        ids: uint8 (H, W), which row of `classes` owns the pixel; 0 is background.
        classes: int16 (256,): class index, NO_CLASS (an object without one), IGNORED (too small
            or too hidden to be asked for), HIDDEN or RIDER (mostly hidden, and a rider with what he
            rides: asked of the mask model only) or UNUSED.

    """

    image: npt.NDArray[np.uint8]
    ids: npt.NDArray[np.uint8]
    classes: npt.NDArray[np.int16]

    def __post_init__(self) -> None:
        check_arrays(self, image="uint8 (H, W, 3)", ids="uint8 (H, W)", classes="int16 (256)")


def render(seed: int, domain: str, size_hw: tuple[int, int]) -> Scene:
    """Render a picture; what the workers call."""
    return render_scene(seed, size_hw, domain=domain)


def draw_ids(scene: Scene, picture: Picture, names: tuple[str, ...]) -> None:
    """Write a scene into a picture's arrays."""
    picture.image[:] = scene.image
    picture.ids[:] = 0
    picture.classes[:] = UNUSED
    kinds = {name: i for i, name in enumerate(names)}
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


def domain_of(seed: int, random_share: float, close_share: float = 0.0) -> str:
    """Which domain the picture of a seed belongs to: fixed, well mixed, in the asked proportion."""
    place = (seed * 0.6180339887498949) % 1.0
    if place < random_share:
        return "random"
    return "close" if place < random_share + close_share else "street"


def as_asked(scene: Scene, seed: int, share: float) -> Scene:
    """Join riders and what they ride in a share of the pictures, fixed by their seed."""
    return riders_as_one(scene) if (seed * 0.7548776662466927) % 1.0 < share else scene


def _arrays(buffer: Any, size_hw: tuple[int, int], slot: int) -> Picture:
    height, width = size_hw
    pixels = height * width
    size = pixels * 4 + 512
    start = slot * size
    return Picture(
        np.ndarray((height, width, 3), np.uint8, buffer, start),
        np.ndarray((height, width), np.uint8, buffer, start + pixels * 3),
        np.ndarray((256,), np.int16, buffer, start + pixels * 4),
    )


@dataclass(frozen=True)
class _Share:
    """What one worker needs to know."""

    render: Render
    names: tuple[str, ...]
    config: RenderConfig
    memory: str
    first: int
    step: int


def _work(share: _Share, free: Any, filled: Any) -> None:
    import cv2

    cv2.setNumThreads(1)
    os.nice(5)
    shared = SharedMemory(name=share.memory)
    config, index = share.config, share.first
    try:
        while (slot := free.get()) is not None:
            seed = config.first_seed + index
            domain = domain_of(seed, config.random_share, config.close_share)
            scene = share.render(seed, domain, config.size_hw)
            scene = as_asked(scene, seed, config.riders_as_one)
            draw_ids(scene, _arrays(shared.buf, config.size_hw, slot), share.names)
            filled.put((slot, index, ""))
            index += share.step
    except Exception:  # noqa: BLE001  the parent raises it
        filled.put((-1, index, traceback.format_exc()))
    finally:
        shared.close()


class RenderWorkers:
    """Processes that render picture after picture; `take` and `give_back` slots in turn."""

    def __init__(
        self, render: Render, names: tuple[str, ...], config: RenderConfig, start: int = 0
    ) -> None:
        """Start the workers.

        Args:
            render: called as render(seed, domain, size_hw) in the workers; must be importable.
            names: class names; others become NO_CLASS.
            config: what to render.
            start: index of the first picture, to go on where an earlier run stopped.

        """
        context = multiprocessing.get_context("spawn")
        self.config = config
        count = config.workers or len(os.sched_getaffinity(0))
        slots = count * SLOTS_PER_WORKER
        height, width = config.size_hw
        self._memory = SharedMemory(create=True, size=slots * (height * width * 4 + 512))
        self._free, self._filled = context.Queue(), context.Queue()
        for slot in range(slots):
            self._free.put(slot)
        shares = [
            _Share(render, names, config, self._memory.name, start + i, count) for i in range(count)
        ]
        self._processes = [
            context.Process(target=_work, daemon=True, args=(share, self._free, self._filled))
            for share in shares
        ]
        for process in self._processes:
            process.start()

    def take(self, timeout_s: float) -> tuple[int, int, Picture] | None:
        """Wait for a picture: its slot, its index and the arrays; None when none came in time.

        Raises:
            AutolabelError: when a worker failed or died.

        """
        try:
            slot, index, failure = self._filled.get(timeout=timeout_s)
        except queue.Empty:
            dead = [p.exitcode for p in self._processes if not p.is_alive()]
            if dead:
                raise AutolabelError(f"rendering workers died, exit codes {dead}") from None
            return None
        if failure:
            raise AutolabelError(f"rendering picture {index} failed:\n{failure}")
        return slot, index, _arrays(self._memory.buf, self.config.size_hw, slot)

    def give_back(self, slot: int) -> None:
        """Let a worker fill the slot again."""
        self._free.put(slot)

    def close(self) -> None:
        """End the workers and free the memory."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(5)
        for line in (self._free, self._filled):
            line.cancel_join_thread()
            line.close()
        self._memory.close()
        self._memory.unlink()

    def __enter__(self) -> RenderWorkers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
