"""Drawing pictures on all cores: worker processes fill slots of shared memory, a bounded ring."""

from __future__ import annotations

import multiprocessing
import os
import queue
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from lab.training.config import PictureConfig
from lab.training.data import Picture
from sam2_core.types import AutolabelError

SLOTS_PER_WORKER = 4

Draw = Callable[[int, Picture], None]


@dataclass(frozen=True)
class _Share:
    """What one worker needs to know."""

    draw: Draw
    first_seed: int
    size_hw: tuple[int, int]
    memory: str
    first: int
    step: int


def _work(share: _Share, free: Any, filled: Any) -> None:
    import cv2

    cv2.setNumThreads(1)
    os.nice(5)
    shared = SharedMemory(name=share.memory)
    index, size = share.first, Picture.bytes_of(share.size_hw)
    try:
        while (slot := free.get()) is not None:
            picture = Picture.within(shared.buf, share.size_hw, slot * size)
            share.draw(share.first_seed + index, picture)
            filled.put((slot, index, ""))
            index += share.step
    except Exception:  # noqa: BLE001  the parent raises it
        filled.put((-1, index, traceback.format_exc()))
    finally:
        shared.close()


class PictureWorkers:
    """Processes that render picture after picture; `take` and `give_back` slots in turn."""

    def __init__(self, draw: Draw, config: PictureConfig, start: int = 0) -> None:
        """Start the workers.

        Args:
            draw: called as draw(seed, picture) in the workers; must be picklable.
            config: sizes, seeds and how many workers.
            start: index of the first picture, to go on where an earlier run stopped.

        """
        context = multiprocessing.get_context("spawn")
        self.config = config
        count = config.workers or len(os.sched_getaffinity(0))
        slots = count * SLOTS_PER_WORKER
        self._memory = SharedMemory(create=True, size=slots * Picture.bytes_of(config.size_hw))
        self._free, self._filled = context.Queue(), context.Queue()
        for slot in range(slots):
            self._free.put(slot)
        shares = [
            _Share(draw, config.first_seed, config.size_hw, self._memory.name, start + i, count)
            for i in range(count)
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
                raise AutolabelError(f"drawing workers died, exit codes {dead}") from None
            return None
        if failure:
            raise AutolabelError(f"drawing picture {index} failed:\n{failure}")
        size_hw = self.config.size_hw
        start = slot * Picture.bytes_of(size_hw)
        return slot, index, Picture.within(self._memory.buf, size_hw, start)

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
