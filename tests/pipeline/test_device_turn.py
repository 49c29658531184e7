"""Waiting for the device is no chunk's work."""

import threading
import time

from tasks.pipeline.run_context import DeviceTurn


def test_turns_follow_each_other_and_tell_how_long_they_waited():
    device = threading.Lock()
    first, second = DeviceTurn(device), DeviceTurn(device)
    entered = threading.Event()
    order = []

    def use_first():
        with first:
            entered.set()
            time.sleep(0.4)
            order.append("first")

    thread = threading.Thread(target=use_first)
    thread.start()
    entered.wait()
    with second:
        order.append("second")
        assert second.waited_s > 0.25
    thread.join()
    assert order == ["first", "second"]
    assert first.waited_s < 0.1
    with first:  # again at once: what it waited is summed
        pass
    assert first.waited_s < 0.1
