"""The GPUs of this machine that a process may use, by their names."""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Mapping

log = logging.getLogger(__name__)
LISTED_WITHIN_S = 60.0


def gpu_ids(environment: Mapping[str, str] = os.environ) -> list[str]:
    """GPUs that this process may use: `CUDA_VISIBLE_DEVICES`, else all that nvidia-smi lists.

    As CUDA reads the variable: indices, and UUIDs of GPUs and MIG devices or their beginnings, up
    to the first that names nothing.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        names = (one.strip() for one in chosen.split(","))
        known = re.compile(r"\d+|(GPU|MIG)-.*")
        valid = itertools.takewhile(known.fullmatch, names)
        return list(dict.fromkeys(valid))
    smi = shutil.which("nvidia-smi")
    if not smi:
        return []
    # Not `run`, which waits for what it kills: the driver may hold it for ever.
    asked = subprocess.Popen([smi, "-L"], stdout=subprocess.PIPE, text=True)
    try:
        listed, _ = asked.communicate(timeout=LISTED_WITHIN_S)
    except subprocess.TimeoutExpired:
        asked.kill()
        log.error(
            "no GPU is used: nvidia-smi lists none within %d s, so the driver hangs; "
            "CUDA_VISIBLE_DEVICES names GPUs without it", LISTED_WITHIN_S
        )  # fmt: skip
        return []
    return listed_gpus(listed) if asked.returncode == 0 else []


def listed_gpus(text: str) -> list[str]:
    """Return what `nvidia-smi -L` lists: indices of GPUs, UUIDs of the MIG devices of those cut."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if whole := re.match(r"GPU (\d+):", line):
            found.append([whole[1]])
        elif part := re.match(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)", line):
            found[-1].append(part[1])
    return [name for whole, *parts in found for name in (parts or [whole])]
