"""Variables of the environment that hold a whole number: names, bounds, and how they are read.

Most are read where work begins, in another process, or beside a GPU only, and what is wrong with
them would be told late there, or never: so the command looks at all of them when it starts. This
is imported by every start, and before NumPy; so it imports next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class NumberVariable:
    """A variable with a whole number between bounds.

    Attributes:
        name: of the variable.
        means: what it may be, after "expected".
        least: the smallest number.
        most: the largest number.

    """

    name: str
    means: str
    least: int
    most: int = 2**31

    def usable(self, environment: Mapping[str, str] = os.environ) -> int | None:
        """Return the number; None where the variable is not set, or holds none that it may."""
        text = environment.get(self.name, "").strip()
        number = int(text) if text.isdecimal() and text.isascii() and len(text) < 20 else -1
        return number if self.least <= number <= self.most else None

    def read(self, environment: Mapping[str, str] = os.environ) -> int | None:
        """Return the number; None where the variable is not set, or empty.

        Raises:
            AutolabelError: it holds none, or one out of bounds.

        """
        number = self.usable(environment)
        if number is None and (text := environment.get(self.name, "").strip()):
            from sam2_core.types import AutolabelError  # which imports NumPy

            raise AutolabelError(f"{self.name}={text}: expected {self.means}; or unset it")
        return number


# Set for each of several workers on a machine: its share.
CORES = NumberVariable("AUTOLABEL_CORES", "how many CPU cores to use, 1 or more", 1)
DEVICE_PROCESSES = NumberVariable(
    "AUTOLABEL_DEVICE_PROCESSES",
    "how many processes share a GPU, 0 for none beside the run's own",
    0,
)
METRICS_PORT = NumberVariable("AUTOLABEL_METRICS_PORT", "a port, 1 to 65535", 1, 65535)
NUMBERS = (DEVICE_PROCESSES, CORES, METRICS_PORT)
