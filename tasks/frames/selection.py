"""Which frames of a source are wanted."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sam2_core.types import AutolabelError


@dataclass(frozen=True)
class FrameSelection:
    """`START:STOP:STEP` over each camera's frames, as Python slices them; nothing negative."""

    start: int = 0
    stop: int | None = None
    step: int = 1

    @staticmethod
    def parse(text: str) -> FrameSelection:
        """Read `START:STOP:STEP`, each part optional.

        Raises:
            AutolabelError: not of this form.

        """
        match = re.fullmatch(r"(\d*):(\d*)(?::(\d*))?", text.strip())
        step = int(match[3] or 1) if match else 0
        if not match or step == 0:
            raise AutolabelError(
                f"--frames {text!r}: expected START:STOP:STEP, such as 0:100:5 or ::2 or 10:"
            )
        return FrameSelection(int(match[1] or 0), int(match[2]) if match[2] else None, step)

    def __str__(self) -> str:
        return f"{self.start}:{'' if self.stop is None else self.stop}:{self.step}"

    def __contains__(self, index: int) -> bool:
        below = self.stop is None or index < self.stop
        return index >= self.start and below and (index - self.start) % self.step == 0


ALL_FRAMES = FrameSelection()
