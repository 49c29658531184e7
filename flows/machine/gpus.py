"""The GPUs of this machine that a process may use, by their names."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping

from sam2_core.types import AutolabelError

LISTED_WITHIN_S = 60.0
_OTHERWISE = "CUDA_VISIBLE_DEVICES names GPUs without it, and empty it means the processor"


class UnlistedError(AutolabelError):
    """An NVIDIA driver is here, and which GPUs may be used is not known."""


def gpu_ids(environment: Mapping[str, str] = os.environ) -> list[str]:
    """GPUs that this process may use: `CUDA_VISIBLE_DEVICES`, else all that nvidia-smi lists.

    As CUDA reads the variable: indices, and UUIDs of GPUs and MIG devices or their beginnings, up
    to the first that names nothing. None where it is empty or -1, or where no nvidia-smi is.

    Raises:
        UnlistedError: nvidia-smi is here and cannot be run, hangs, fails or lists none; or the
            variable names none.

    """
    chosen, smi = environment.get("CUDA_VISIBLE_DEVICES"), shutil.which("nvidia-smi")
    if chosen is None:
        return _listed(smi) if smi else []
    names = [one.strip() for one in chosen.split(",")]
    known = re.compile(r"\d+|(GPU|MIG)-.*")
    found = list(dict.fromkeys(itertools.takewhile(known.fullmatch, names)))
    if smi and not found and names[0] not in {"", "-1"}:
        raise UnlistedError(
            f"CUDA_VISIBLE_DEVICES={chosen} names no GPU: `nvidia-smi -L` lists what is here, "
            "and empty it means the processor"
        )
    return found


def _listed(smi: str) -> list[str]:
    try:
        asked = subprocess.Popen(
            [smi, "-L"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise UnlistedError(f"{smi} cannot be run ({error.strerror}); {_OTHERWISE}") from error
    try:
        printed = asked.communicate(timeout=LISTED_WITHIN_S)[0]
    except subprocess.TimeoutExpired:
        told = f"nvidia-smi lists no GPU within {LISTED_WITHIN_S:g} s, so the driver hangs"
        raise UnlistedError(f"{told}; {_OTHERWISE}") from None
    finally:  # after Ctrl-C, too; not waited for, as `subprocess.run` does: the driver may hold it
        if asked.poll() is None:
            asked.kill()
    found = listed_gpus(printed) if asked.returncode == 0 else []
    if not found:
        said = " ".join(printed.split())[:200] or "nothing"
        raise UnlistedError(
            f"`nvidia-smi -L` lists no GPU (exit code {asked.returncode}, it says: {said}); "
            f"{_OTHERWISE}"
        )
    return found


def listed_gpus(text: str) -> list[str]:
    """Return what `nvidia-smi -L` lists: indices of GPUs, UUIDs of the MIG devices of those cut."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if whole := re.match(r"GPU (\d+):", line):
            found.append([whole[1]])
        elif part := re.match(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)", line):
            found[-1].append(part[1])
    return [name for whole, *parts in found for name in (parts or [whole])]
