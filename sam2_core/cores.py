"""How many CPU cores there are for us."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return the number of cores this process may use, which containers and taskset limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
