"""How much of the masks their polygons lost."""

from __future__ import annotations

from typing import Any


class PolygonLoss:
    """Mean and worst IoU of polygons with the masks that they stand for."""

    def __init__(self) -> None:
        self._count, self._sum, self._worst = 0, 0.0, 1.0

    def note(self, iou: float) -> None:
        """Count one mask."""
        self._count += 1
        self._sum += iou
        self._worst = min(self._worst, iou)

    def facts(self) -> dict[str, Any]:
        """Return the figures for the report."""
        if not self._count:
            return {}
        mean = self._sum / self._count
        return {"polygon_iou_mean": round(mean, 6), "polygon_iou_worst": round(self._worst, 6)}
