"""Batched SAM 2: boxes in, instance masks out. numpy only at import."""

import os

# ONNX Runtime queues events about machine and interpreter for its maker in the user's cache folder,
# and reads this when it is loaded. A user's own choice stands.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
