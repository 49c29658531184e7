"""Waiting for the device is no chunk's work."""

import threading

from tasks.pipeline.run_context import DeviceTurn


def test_turns_follow_each_other_and_tell_how_long_they_waited():
    device = threading.Semaphore()
    first, second = DeviceTurn(device), DeviceTurn(device)
    device.acquire()
    ends = threading.Timer(0.4, device.release)
    ends.start()
    with second:
        ends.join()
        assert second.waited_s > 0.25
    for _ in range(2):  # at once: what it waited is summed
        with first:
            assert first.waited_s < 0.1
