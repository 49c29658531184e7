"""What a measurement ran on: hardware, versions, memory."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "sam2-autolabel", "numpy", "onnxruntime", "onnxruntime-gpu", "torch", "transformers",
    "tensorrt-cu13", "simplejpeg", "pillow",
)  # fmt: skip


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def gpu_names() -> list[str]:
    """Name, memory and driver of every NVIDIA GPU; none where nothing tells."""
    command = [
        "nvidia-smi",
        "--query-gpu=name,memory.total,driver_version",
        "--format=csv,noheader",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [
        line.strip() for line in done.stdout.splitlines() if line.strip() and not done.returncode
    ]


def product_version() -> str:
    """Return this package's version; "unknown" where a copy runs that is not installed."""
    try:
        return version("sam2-autolabel")
    except PackageNotFoundError:
        return "unknown"


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def describe_machine() -> dict[str, Any]:
    """Return hardware and versions; nothing that names the machine or its user."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "cpu": _cpu_name(),
        "cores": cores,
        "memory_gb": _total_memory_gb(),
        "gpus": gpu_names(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": _versions(),
        # Above the number of cores the machine was busy with something else.
        "load_average_before": None if load is None else round(load, 2),
    }


def _total_memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError, AttributeError):
        return None
