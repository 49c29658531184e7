"""The frame loop: order, failures that stay with their frame, bounded queues, an early end."""

import errno
import os
import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest

from sam2_core.frame_loop import FrameJob, FrameLoop
from sam2_core.segmenter import Segmenter
from sam2_core.types import Boxes, DeviceMemoryError, MachineError
from tests.sam2_core.fake_backend import FakeDeviceBackend


def boxes_at(left):
    return Boxes(np.array([[left, 10, left + 40, 60]]), np.ones(1), ("car",))


def image(value):
    return np.full((100, 100, 3), value, np.uint8)


def unreadable():
    raise OSError("cannot read: truncated")


class BreakingDevice(FakeDeviceBackend):
    """Fails on batches with a certain image."""

    def encode(self, images):
        if any(frame[0, 0, 0] == 13 for frame in images):
            raise RuntimeError("kernel failed")
        return super().encode(images)


@pytest.mark.parametrize("encoder_batch", [1, 3])
def test_results_come_in_order_and_failures_stay_with_their_frame(encoder_batch):
    def slow(value):
        time.sleep(0.02 if value % 3 == 0 else 0)
        return image(value)

    jobs = [FrameJob(i, lambda i=i: slow(i), boxes_at(i)) for i in range(20)]
    jobs[4] = FrameJob(4, unreadable, boxes_at(4))
    jobs[7] = FrameJob(7, lambda: np.zeros((5, 5), np.uint8), boxes_at(7))
    jobs[9] = FrameJob(9, lambda: image(9), Boxes.empty())
    with Segmenter(BreakingDevice(), encoder_batch=encoder_batch) as segmenter:
        results = list(FrameLoop(segmenter, iter(jobs), readers=3))
    assert [result.key for result in results] == list(range(20))
    failed = {result.key: (result.stage, str(result.error)) for result in results if result.error}
    assert set(failed) == {4, 7, 13}
    assert failed[4] == ("read", "cannot read: truncated")
    assert failed[13] == ("segment", "kernel failed")
    assert results[13].size_hw == (100, 100)
    assert len(results[9].masks) == 0
    for key in (0, 3, 8, 14, 19):  # neighbours of failed frames are done and hold their own masks
        assert results[key].masks.predicted_iou.tolist() == [key]


def test_frames_are_read_ahead_but_not_without_bound():
    taken = []

    def jobs():
        for i in range(1000):
            taken.append(i)
            yield FrameJob(i, lambda: image(1), boxes_at(1))

    with Segmenter(FakeDeviceBackend()) as segmenter:
        results = iter(FrameLoop(segmenter, jobs(), readers=2, ahead=4))
        next(results)
        time.sleep(0.5)
        assert len(taken) < 30
        results.close()  # a consumer that stops early stops the threads
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("frame-")]


def test_an_error_of_the_callers_iterable_reaches_the_caller_after_earlier_frames():
    def jobs():
        yield FrameJob(0, lambda: image(1), boxes_at(1))
        raise KeyError("listing failed")

    with Segmenter(FakeDeviceBackend(), encoder_batch=2) as segmenter:
        results = iter(FrameLoop(segmenter, jobs()))
        assert next(results).key == 0
        with pytest.raises(KeyError, match="listing failed"):
            next(results)


@pytest.mark.parametrize(
    "error",
    [
        *(OSError(code, os.strerror(code)) for code in (
            errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENOSPC, errno.ENOMEM
        )),
        MemoryError(),
        RuntimeError("can't start new thread"),
        MachineError("the disk is gone"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_with_the_machine_while_reading_ends_the_loop(error):
    def read(number):
        if number == 5:
            raise error
        return image(1)

    jobs, done = [FrameJob(i, lambda i=i: read(i), boxes_at(1)) for i in range(8)], []
    with Segmenter(FakeDeviceBackend()) as segmenter, pytest.raises(MachineError):
        done.extend(FrameLoop(segmenter, jobs, readers=2))
    assert [result.key for result in done] == [0, 1, 2, 3, 4]
    assert all(result.error is None for result in done)


class LostDevice(FakeDeviceBackend):
    """Works until it meets a frame of a certain brightness, and never again."""

    lost = False

    def __init__(self, error, *, where="encode"):
        super().__init__()
        self.error, self.where = error, where

    def encode(self, images):
        self.lost = self.lost or any(frame[0, 0, 0] == 13 for frame in images)
        if self.lost and self.where == "encode":
            raise self.error
        return super().encode(images)

    def decode_later(self, features, prompts):
        decoded, lost = self.decode(features, prompts), self.lost

        def fetch():
            if lost and self.where == "wait":
                raise self.error
            return decoded

        return fetch


@pytest.mark.parametrize("where", ["encode", "wait"])
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("an error that no list of words knows"),
        DeviceMemoryError("the GPU has no memory left"),
        MemoryError(),
    ],
    ids=str,
)
def test_a_device_that_is_lost_ends_the_loop_and_no_frame_is_blamed(error, where):
    jobs = [FrameJob(i, lambda i=i: image(i), boxes_at(1)) for i in range(20)]
    done = []
    with Segmenter(LostDevice(error, where=where)) as segmenter, pytest.raises(MachineError):
        done.extend(FrameLoop(segmenter, jobs, readers=2))
    assert [result.key for result in done] == list(range(13))
    assert all(result.error is None for result in done)


def test_a_mask_that_does_not_fit_into_memory_is_no_answer(monkeypatch):
    with Segmenter(FakeDeviceBackend()) as segmenter:
        monkeypatch.setattr(segmenter, "finish", Mock(side_effect=MemoryError))
        with pytest.raises(MachineError, match="MemoryError"):
            list(FrameLoop(segmenter, [FrameJob(0, lambda: image(1), boxes_at(1))]))
