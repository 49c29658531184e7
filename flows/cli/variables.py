"""Variables of the environment that hold a number: refused where they hold none, on any machine.

Most are read where work begins, in another process, or beside a GPU only; what is wrong with them
would be told late there, or never.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from sam2_core.cores import CORES_VARIABLE
from sam2_core.types import AutolabelError


@dataclass(frozen=True)
class _Number:
    """A whole number between bounds, and what it says."""

    means: str
    least: int
    most: int = 2**31


_NUMBERS = {
    "AUTOLABEL_DEVICE_PROCESSES": _Number(
        "how many processes share a GPU, 0 for none beside the run's own", 0
    ),
    "AUTOLABEL_SPARE_PROCESS": _Number(
        "1 to keep a process ready for the next flow run, or 0", 0, 1
    ),
    CORES_VARIABLE: _Number("how many CPU cores to use, 1 or more", 1),
    "AUTOLABEL_METRICS_PORT": _Number("a port, 1 to 65535", 1, 65535),
}


def check_variables() -> None:
    """Refuse numbers of the environment that are none.

    Raises:
        AutolabelError: naming the first such variable, its value and what it may be.

    """
    for name, number in _NUMBERS.items():
        value = os.environ.get(name, "").strip()
        if value and not (
            value.isdecimal() and value.isascii() and number.least <= int(value) <= number.most
        ):
            raise AutolabelError(f"{name}={value}: expected {number.means}; or unset it")
