"""FiftyOne's App as a service: `python -m flows.machine.app_process PORT`, until SIGTERM."""

from __future__ import annotations

import signal
import sys
import threading

from tasks.review.app import run_app


def main() -> None:
    """Run the App until SIGTERM, or until it ends by itself."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with run_app(int(sys.argv[1])) as app:
        while not stop.wait(1.0) and app.process.poll() is None:
            pass


if __name__ == "__main__":
    main()
