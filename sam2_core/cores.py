"""How many CPU cores there are for us."""

from __future__ import annotations

import os

# Set for each of several workers on a machine: its share.
CORES_VARIABLE = "AUTOLABEL_CORES"


def usable_cores() -> int:
    """Return the number of cores this process may use.

    Containers and taskset limit it, and `AUTOLABEL_CORES` where others work beside it.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    share = os.environ.get(CORES_VARIABLE, "")
    return min(cores, int(share)) if share.isdigit() and int(share) else cores
