"""The machine that a benchmark ran on: hardware and versions."""

import os
import platform
from pathlib import Path
from typing import Any

from sam2_core.machine import gpu_names, installed_versions

PACKAGES = (
    "sam2-autolabel", "numpy", "onnxruntime", "onnxruntime-gpu", "torch", "transformers",
    "tensorrt-cu13", "tensorrt-rtx-cu13-libs", "simplejpeg", "pillow",
)  # fmt: skip


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def describe_machine() -> dict[str, Any]:
    """Return hardware and versions; nothing that names the machine or its user."""
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _cpu_name(),
        "cores": cores,
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "gpus": gpu_names(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": installed_versions(PACKAGES),
        # Above the number of cores the machine was busy with something else.
        "load_average_before": round(psutil.getloadavg()[0], 2),
    }
