"""Certificates: what an engine was held against, how far apart it was, and whether it may label.

A certificate is for one engine: weights, graphs, backend, precision, code, device and the versions
of the libraries that compute. Another driver's GPU, another ONNX Runtime or other graphs are
another engine, which has to prove itself anew.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sam2_core.backends.protocol import BackendInfo
from sam2_core.cache import cache_folder, write_whole
from sam2_core.machine import installed_versions
from sam2_core.mask_geometry import SIZES, SMALL_AREA_PX, size_class
from sam2_core.trust.calibration import digest_of, read_signed, signed_text
from sam2_core.types import AutolabelError, MachineError

FORMAT = 2
# Libraries whose version belongs to an engine: those of every engine, and those of a backend.
_EVERYWHERE = ("numpy", "pillow")
_LIBRARIES = {
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime"),
    "torch": ("torch",),
    "tensorrt": ("tensorrt", "tensorrt-cu13"),
}


# How far an engine may be from PyTorch in float32: the least mean IoU of all masks, and mean and
# first percentile of those over 32x32 px; at most so far apart may half of the logits be, in
# deviations, and half of the predicted IoU. fp32: what other exports are held to (mean 0.999), and
# the goal for original frames (0.98). fp16: what half precision was measured to reach, see
# BENCHMARKS.md.
LIMITS = {"fp32": (0.998, 0.999, 0.98, 0.0005, 0.002), "fp16": (0.99, 0.995, 0.95, 0.1, 0.02)}


class UncertifiedEngineError(MachineError):
    """An engine that may not label here: it failed, or nothing can tell whether it is right."""


@dataclass(frozen=True)
class Certificate:
    """What was measured, and what follows.

    Attributes:
        engine: what it is for; see `engine_facts`.
        calibration: digest, pictures, boxes and `kind` of the set; `bundled`: digest of the part
            that comes with the package.
        reference: what it was held against, in words.
        measured: see `sam2_core.trust.measure.summary`; `latency_ms`, `coordinates_kept`.
        failures: which limits it does not keep, in words; none for one that may label.
        worst: the worst masks: picture, row, IoU, and the file that shows it.
        source: what was loaded: a model's folder, or weights.
        made: when, ISO 8601.

    """

    engine: Mapping[str, Any]
    calibration: Mapping[str, Any]
    reference: str
    measured: Mapping[str, Any]
    failures: tuple[str, ...]
    worst: tuple[Mapping[str, Any], ...] = ()
    source: str = ""
    made: str = ""

    @property
    def passed(self) -> bool:
        """Whether the engine may label."""
        return not self.failures

    @property
    def verdict(self) -> str:
        """The verdict in a word."""
        return "failed" if self.failures else "passed"

    @property
    def title(self) -> str:
        """The engine in words."""
        one = self.engine
        return f"{one['name']} on {one['backend']}, {one['precision']}, {one['device']}"

    @property
    def short(self) -> dict[str, Any]:
        """What labels say of it."""
        over = self.measured["over_32x32"].get("iou", self.measured["iou"])
        return {"verdict": self.verdict, "reference": self.reference, "iou_mean": over["mean"],
                "iou_p1": over["p1"], "engine": self.path().stem,
                "pictures": self.calibration["pictures"]}  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"format": FORMAT, "verdict": self.verdict, **asdict(self)}

    def path(self, cache: Path | None = None) -> Path:
        """Where it belongs."""
        return certificate_path(self.engine, cache)

    def keep(self, cache: Path | None = None) -> None:
        """Write it, signed, in the place of an earlier one."""
        write_whole(self.path(cache), signed_text(self.as_json()))

    def refuse(self) -> None:
        """Raise `UncertifiedEngineError` where the engine failed."""
        if not self.failures:
            return
        shown_by = f"{self.path()} and the pictures beside it show"
        if self.calibration["kind"] == "quick":  # else of pictures that somebody chose
            model = self.source or str(self.engine["name"]).partition("/")[0]
            backend, precision = str(self.engine["backend"]), str(self.engine["precision"])
            words = ["autolabel", "models", "certify", model, "--backend", backend]
            shown_by = f"`{shlex.join([*words, '--precision', precision, '--quick'])}` shows"
        raise UncertifiedEngineError(
            f"{self.title} does not compute what PyTorch does in float32, and may not label: "
            f"{'; '.join(self.failures)} ({self.calibration['pictures']} pictures). "
            f"{shown_by} where; another --precision or --backend may be right; "
            "--allow-uncertified labels all the same, and the labels' stamp says so"
        )


def engine_facts(info: BackendInfo) -> dict[str, Any]:
    """Return what makes an engine the one that it is."""
    return {
        **asdict(info.stamp), "close_ups": info.close_ups, "device": info.device,
        "machine": platform.machine(), "versions": versions_of(info.stamp.backend),
    }  # fmt: skip


def versions_of(backend: str) -> dict[str, str]:
    """Return the versions of the libraries that belong to an engine of a backend."""
    family = next(name for name in _LIBRARIES if backend.startswith(name))
    return installed_versions((*_EVERYWHERE, *_LIBRARIES[family]))


def certificate_path(engine: Mapping[str, Any], cache: Path | None = None) -> Path:
    """Return where the certificate of an engine belongs."""
    return cache_folder(cache) / "certificates" / f"{digest_of(engine)[:24]}.json"


def _read(path: Path) -> Certificate | None:
    """Return a certificate, None where there is none or a damaged one."""
    try:
        values = read_signed(path)
        if values.pop("format") != FORMAT:
            return None
        del values["verdict"]
        return Certificate(
            **{**values, "failures": tuple(values["failures"]), "worst": tuple(values["worst"])}
        )
    except (OSError, AutolabelError, KeyError, TypeError):
        return None


def read_certificate(engine: Mapping[str, Any], cache: Path | None = None) -> Certificate | None:
    """Return the certificate of an engine, None where it has none.

    One that is damaged, or that is for another engine although it lies in this one's place, counts
    for nothing: the engine has to prove itself anew.
    """
    found = _read(certificate_path(engine, cache))
    return found if found is not None and dict(found.engine) == dict(engine) else None


def certificates(cache: Path | None = None) -> list[Certificate]:
    """Return every sound certificate of this machine."""
    paths = sorted((cache_folder(cache) / "certificates").glob("*.json"))
    return [found for path in paths if (found := _read(path)) is not None]


def failures_of(measured: Mapping[str, Any], precision: str) -> tuple[str, ...]:
    """Return, in words, which limits of a precision something measured does not keep."""
    least_all, least_mean, least_p1, most_logits, most_predicted = LIMITS[precision]
    over, predicted = measured["over_32x32"], measured["predicted_iou_apart"]
    least = [("mean mask IoU", measured["iou"]["mean"], least_all)]
    if over["masks"]:
        least.append(("mean mask IoU over 32x32 px", over["iou"]["mean"], least_mean))
        least.append(("1st percentile of mask IoU over 32x32 px", over["iou"]["p1"], least_p1))
    found = [f"{name} {value:g}, needed {one:g}" for name, value, one in least if value < one]
    apart = measured["logits_apart"]["median"]
    if apart > most_logits:
        found.append(f"logits {apart:g} deviations apart, at most {most_logits:g}")
    if predicted["median"] > most_predicted:
        found.append(f"predicted IoU {predicted['median']:g} apart, at most {most_predicted:g}")
    if predicted["max"] > 1:
        found.append("a predicted IoU is no number between 0 and 1")
    if not measured["coordinates_kept"]:
        found.append("coordinates of boxes are rounded to half precision")
    return tuple(found)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return means, percentiles and worst values, of all masks and by size."""
    sizes = {size: [one for one in rows if size_class(one["area_px"]) == size] for size in SIZES}
    return {
        **_agreement(rows),
        "over_32x32": _agreement([one for one in rows if one["area_px"] >= SMALL_AREA_PX]),
        "by_size": {size: _agreement(some) for size, some in sizes.items()},
        "predicted_iou_apart": _most([one["predicted_apart"] for one in rows]),
        "logits_apart": _most([one["logits_apart"] for one in rows]),
    }


def _most(values: Sequence[float]) -> dict[str, float]:
    """Median and largest value; what is not finite is a very large number, which JSON knows."""
    array = np.nan_to_num(np.array(values or [0.0]), nan=1e9, posinf=1e9)
    return {"median": _rounded(np.median(array)), "max": _rounded(array.max())}


def _rounded(value: float | np.floating[Any]) -> float:
    return float(f"{float(value):.5g}")


def _agreement(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not rows:
        return {"masks": 0}
    iou: npt.NDArray[np.float64] = np.array([one["iou"] for one in rows])
    low = np.percentile(iou, [1, 5, 10])
    return {
        "masks": len(rows),
        "iou": {
            "mean": _rounded(iou.mean()), "p1": _rounded(low[0]), "p5": _rounded(low[1]),
            "p10": _rounded(low[2]), "min": _rounded(iou.min()),
        },
        "boundary_f": _rounded(np.mean([one["boundary_f"] for one in rows])),
    }  # fmt: skip
