"""Workers of this machine: one `prefect worker` for each GPU, bound to it, started and stopped.

Each is a plain `prefect worker start`. What that does not do is stop politely: when it is told to
end it kills its flow run within seconds, and the shard lies there until somebody misses it.
Here SIGTERM goes to the flow runs first: they finish the chunk at hand and give their shard back;
then the workers are stopped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time

from flows.machine.refused import note_refused
from flows.machine.self_test import Verdict
from flows.machine.services import NONE_WORKS, WELL_AGAIN
from flows.machine.slot import Slot
from tasks import processes
from tasks.pipeline.stopping import handling

log = logging.getLogger(__name__)
POLL_S = 0.5
LONGEST_PAUSE_S = 60.0
HEALTHY_S = 60.0
STOP_S = 20.0
GIVEN_BACK_WITHIN_S = 2.0


def run_workers(places: list[Slot], grace_s: float) -> None:
    """Run workers until SIGTERM or Ctrl-C, restarting those that end by themselves.

    Args:
        places: what to start; those whose GPUs are listed only later are replaced by theirs.
        grace_s: the longest to wait for flow runs to give their shards back.

    """
    stop, told = threading.Event(), dict[str, str]()
    with handling(lambda *_: stop.set(), signal.SIGTERM, signal.SIGINT):
        while not stop.is_set():
            for place in places:
                _keep_alive(place, grace_s)
            places[:] = [one for place in places for one in _in_its_place(place)]
            told = _tell_refused(places, told)
            stop.wait(POLL_S)
        stop_workers(places, grace_s)
    note_refused({})


def _in_its_place(place: Slot) -> list[Slot]:
    if place.instead:
        names = ", ".join(one.name for one in place.instead)
        log.warning("%s %s: nvidia-smi lists GPUs, for %s", place.name, WELL_AGAIN, names)
    return place.instead or [place]


def _tell_refused(places: list[Slot], told: dict[str, str]) -> dict[str, str]:
    """Keep who is refused, where that changed, and say if all are: `up` waits for nothing then.

    Returns:
        Reasons by name, to be given again the next time.

    """
    refused = {place.name: place.refused for place in places if place.refused}
    if refused != told:
        note_refused(refused)
    if len(refused) == len(places) > len(told):
        reasons = (f"{name}: {reason}" for name, reason in refused.items())
        log.error("%s%s", NONE_WORKS, "; ".join(reasons))
    return refused


def _keep_alive(place: Slot, grace_s: float = 0.0) -> None:
    now = time.monotonic()
    if place.alive:
        end_if_sick(place)
    if place.alive or now < place.retry_at or _end_left(place):
        return
    if place.process is not None:  # it ended: at once again after a healthy life, else slower
        healthy = now - place.started > HEALTHY_S
        place.hear()
        place.find_left()
        place.left_until = now + grace_s
        if _ask(place, set(), late=False):
            log.warning("%s has died under its flow run, which gives its shard back", place.name)
        place.pause_s = 1.0 if healthy else min(place.pause_s * 2, LONGEST_PAUSE_S)
        place.process = None
        place.retry_at = now + place.pause_s
        return
    try:
        verdict = place.verdict()
        if verdict and not verdict.problem:
            place.start(verdict.offers)
    except OSError as error:  # no memory, no file handles, no room for its folder
        verdict = Verdict((), f"it cannot be started: {error}")
    if verdict is not None:
        _note_verdict(place, verdict)


def _note_verdict(place: Slot, verdict: Verdict) -> None:
    if verdict.problem:
        place.pause_s = min(place.pause_s * 2, LONGEST_PAUSE_S)
        place.retry_at = time.monotonic() + place.pause_s
        log.error("%s takes no work: %s", place.name, verdict.problem)
    elif place.refused:
        log.warning("%s %s and takes work", place.name, WELL_AGAIN)
    place.refused = verdict.problem


def end_if_sick(place: Slot) -> None:
    """End a worker under whose flow run this machine has failed, before it takes another one."""
    note = place.hear()
    if not note.why or place.process is None:
        return
    deadline = time.monotonic() + GIVEN_BACK_WITHIN_S
    while processes.born(note.process) is not None and time.monotonic() < deadline:
        time.sleep(processes.POLL_S)  # it gives its shard back
    held_s = time.monotonic() - place.noted_at
    if processes.born(note.process) is not None and held_s < STOP_S:
        return  # the driver holds it: the other workers are looked after meanwhile
    log.error("%s takes no more until this machine is tested: %s", place.name, note.why)
    processes.end(place.process, STOP_S)


def _end_left(place: Slot) -> bool:
    """Wait for the flow runs that a worker has died under: a new one must not share its device.

    They were asked to give their shards back, and are killed when they do not.

    Returns:
        Whether some still run; those that cannot be killed are left to the test of the device.

    """
    late_s = time.monotonic() - place.left_until
    running = bool(place.left) and _ask(place, {*place.left}, late=late_s > 0)
    if running and late_s > STOP_S:
        log.error("%s has died under its flow run, which cannot be killed", place.name)
        running = False
    if not running:
        place.left = {}
    return running


def stop_workers(places: list[Slot], grace_s: float) -> None:
    """Ask the flow runs to give their shards back, then stop the workers; kill what does not."""
    asked: set[int] = set()
    deadline = time.monotonic() + grace_s
    for place in places:
        if place.process is not None and not place.alive:
            place.find_left()
    waiting = [place for place in places if place.alive or place.left]
    while waiting:
        for place in tuple(waiting):
            late = time.monotonic() > deadline
            if not _ask(place, asked, late=late) or late:
                if place.process is not None:
                    processes.end(place.process, STOP_S)
                waiting.remove(place)
        time.sleep(0.1)
    for place in places:
        place.end_test()
        place.clean()


def _ask(place: Slot, asked: set[int], *, late: bool) -> bool:
    """Ask flow runs to give their shards back, each once, or kill them; False if none runs."""
    runs = place.flow_runs()
    for run in set(runs) - asked:
        _send(run, signal.SIGTERM)
        asked.add(run)
    for run in runs if late else ():
        _send(run, signal.SIGKILL)
    return bool(runs)


def _send(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)
