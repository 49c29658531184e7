"""Batched SAM 2: boxes in, instance masks out. numpy only at import."""

import os

from sam2_core.machine import CORES, share_of, usable_cores

# ONNX Runtime queues events about machine and interpreter for its maker in the user's cache folder,
# and reads this when it is loaded. A user's own choice stands.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Libraries read their numbers of threads when they are loaded, NumPy's BLAS first of all.
if CORES.usable() is not None:
    os.environ.update(share_of(usable_cores()))
