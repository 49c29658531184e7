"""The GPUs of this machine that a process may use, by their names."""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Mapping

from sam2_core.types import AutolabelError

LISTED_WITHIN_S = 60.0
TOLD_AFTER_S = 3.0

log = logging.getLogger(__name__)
_OTHERWISE = "CUDA_VISIBLE_DEVICES names GPUs without it, and empty it means the processor"


class UnlistedError(AutolabelError):
    """An NVIDIA driver is here, and which GPUs may be used is not known."""


class UnnamedError(UnlistedError):
    """No GPU is named by the variable that names them: to ask again is of no use."""


def gpu_ids(environment: Mapping[str, str] = os.environ) -> list[str]:
    """GPUs that this process may use: `CUDA_VISIBLE_DEVICES`, else all that nvidia-smi lists.

    As CUDA reads the variable: indices, and UUIDs of GPUs and MIG devices or their beginnings, up
    to the first that names nothing. None where it is empty or -1, or where no nvidia-smi is.

    Raises:
        UnlistedError: nvidia-smi is here and cannot be run, hangs, fails or lists none.
        UnnamedError: it is here, and the variable names none.

    """
    chosen, smi = environment.get("CUDA_VISIBLE_DEVICES"), shutil.which("nvidia-smi")
    if chosen is not None:
        names = (one.strip() for one in chosen.split(","))
        known = re.compile(r"\d+|(GPU|MIG)-.*")
        valid = itertools.takewhile(known.fullmatch, names)
        found = list(dict.fromkeys(valid))
        if smi and not found and chosen.split(",")[0].strip() not in {"", "-1"}:
            raise UnnamedError(
                f"CUDA_VISIBLE_DEVICES={chosen} names no GPU: `nvidia-smi -L` lists what is here, "
                "and empty it means the processor"
            )
        return found
    return _listed(smi) if smi else []


def ask(smi: str = "nvidia-smi") -> subprocess.Popen[str]:
    """Begin to list the GPUs, in a session of its own: Ctrl-C is for whoever asks, who ends it.

    Raises:
        UnlistedError: it cannot be run.

    """
    try:
        return subprocess.Popen(
            [smi, "-L"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise UnlistedError(f"{smi} cannot be run ({error.strerror}); {_OTHERWISE}") from error


def _listed(smi: str) -> list[str]:
    # Not `run`, which waits for what it kills: the driver may hold it for ever.
    asked = ask(smi)
    try:
        told = _answer(asked)
    except subprocess.TimeoutExpired:
        raise hangs() from None
    finally:
        if asked.poll() is None:  # after Ctrl-C, too
            asked.kill()
    return gpus_told(told, asked.returncode)


def _answer(asked: subprocess.Popen[str]) -> str:
    """Return what it prints; says what is waited for where that takes a while."""
    try:
        return asked.communicate(timeout=min(TOLD_AFTER_S, LISTED_WITHIN_S))[0]
    except subprocess.TimeoutExpired:
        left = LISTED_WITHIN_S - TOLD_AFTER_S
        if left <= 0:
            raise
        log.warning("waiting for `nvidia-smi -L`, %.0f s more at most", left)
        return asked.communicate(timeout=left)[0]


def hangs() -> UnlistedError:
    """Say that nvidia-smi has not answered."""
    return UnlistedError(
        f"nvidia-smi lists no GPU within {LISTED_WITHIN_S:g} s, so the driver hangs; {_OTHERWISE}"
    )


def gpus_told(printed: str, exit_code: int) -> list[str]:
    """Return the GPUs that nvidia-smi has listed.

    Raises:
        UnlistedError: it has failed, or listed none.

    """
    found = listed_gpus(printed) if exit_code == 0 else []
    if not found:
        said = " ".join(printed.split())[:200] or "nothing"
        raise UnlistedError(
            f"`nvidia-smi -L` lists no GPU (exit code {exit_code}, it says: {said}); {_OTHERWISE}"
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
