"""Certificates: what an engine was held against, how far apart it was, and whether it may label.

A certificate is for one engine: weights, graphs, backend, precision, code, device and the versions
of the libraries that compute. Another driver's GPU, another ONNX Runtime or other graphs are
another engine, which has to prove itself anew.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sam2_core.backends.protocol import BackendInfo
from sam2_core.cache import cache_folder, write_whole
from sam2_core.trust.answers import digest_of, read_signed, signed_text
from sam2_core.types import AutolabelError, MachineError

FORMAT = 2
# What every certificate says of its engine and its set.
_ENGINE = {"name", "backend", "precision", "device", "close_ups", "versions", "checkpoint_sha256"}
_SET = {"kind", "pictures", "boxes", "bundled", "images", "due"}
# Libraries whose version belongs to an engine: those of every engine, and those of a backend.
_EVERYWHERE = ("numpy", "pillow")
_LIBRARIES = {
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime"),
    "torch": ("torch",),
    "tensorrt": ("tensorrt", "tensorrt-cu13"),
}


@dataclass(frozen=True)
class Limits:
    """How far an engine may be from PyTorch in float32.

    Attributes:
        iou_mean, iou_p1: least mean and first percentile of the IoU of masks over 32x32 px.
        iou_mean_all: least mean of all masks, small ones included.
        logits_median: most that half of the masks' logits may be apart, in deviations.
        predicted_iou_median: most that half of the masks' predicted IoU may be apart.

    """

    iou_mean: float
    iou_p1: float
    iou_mean_all: float
    logits_median: float
    predicted_iou_median: float


# fp32: what other exports are held to (mean 0.999), and the goal for original frames (0.98).
# fp16: the goals that half precision was measured to reach; see BENCHMARKS.md.
LIMITS = {
    "fp32": Limits(0.999, 0.98, 0.998, 0.0005, 0.002),
    "fp16": Limits(0.995, 0.95, 0.99, 0.1, 0.02),
}


class UncertifiedEngineError(MachineError):
    """An engine that may not label here: it failed, or nothing can tell whether it is right."""


@dataclass(frozen=True)
class Certificate:
    """What was measured, and what follows.

    Attributes:
        engine: what it is for; see `engine_facts`.
        calibration: digest, pictures, boxes and `kind` of the set; digests of its `images`, and of
            those that are `due`: an earlier set with them failed.
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
        return "passed" if self.passed else "failed"

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

    def keep(self, cache: Path | None = None) -> Certificate:
        """Write it, signed, unless an earlier one of the engine counts; return the one that does.

        A failure counts until all that it was found on passes; a lesser set does not replace a
        greater one.
        """
        before = read_certificate(self.engine, cache)
        counts = self if before is None else self._after(before)
        if counts is not before:
            write_whole(self.path(cache), signed_text(counts.as_json()))
        return counts

    def counts(self, cache: Path | None = None) -> bool:
        """Whether `keep` would write it, and no earlier one counts on."""
        before = read_certificate(self.engine, cache)
        return before is None or self._after(before) is not before

    def _after(self, before: Certificate) -> Certificate:
        own = set(self.calibration["images"])
        missing = {*before.calibration["images"], *before.calibration["due"]} - own
        if not missing:
            return self
        if before.passed:
            more = self.calibration["boxes"] >= before.calibration["boxes"]
            return self if self.failures or more else before
        if self.passed:
            return before
        return replace(self, calibration={**self.calibration, "due": sorted(missing)})

    @property
    def shown_by(self) -> str:
        """What a user types, or opens, to see what was found."""
        if self.calibration["kind"] != "quick":  # of pictures that somebody chose
            return f"{self.path()} and the pictures beside it show"
        model = self.source or str(self.engine["name"]).partition("/")[0]
        backend, precision = str(self.engine["backend"]), str(self.engine["precision"])
        words = ["autolabel", "models", "certify", model, "--backend", backend]
        return f"`{shlex.join([*words, '--precision', precision, '--quick'])}` shows"

    def refuse(self) -> None:
        """Raise `UncertifiedEngineError` where the engine failed."""
        if self.failures:
            raise UncertifiedEngineError(
                f"{self.title} does not compute what PyTorch does in float32, and may not label: "
                f"{'; '.join(self.failures)} ({self.calibration['pictures']} pictures). "
                f"{self.shown_by} where; another --precision or --backend may be right; "
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
    names = (*_EVERYWHERE, *_LIBRARIES[family])
    return {name: found for name in names if (found := _version(name))}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def certificate_path(engine: Mapping[str, Any], cache: Path | None = None) -> Path:
    """Return where the certificate of an engine belongs."""
    return cache_folder(cache) / "certificates" / f"{digest_of(engine)[:24]}.json"


def _of(values: Mapping[str, Any], path: Path) -> Certificate:
    if values.get("format") != FORMAT:
        raise AutolabelError(f"{path} is of another version. Remove it to have it made again")
    if not values["engine"].keys() >= _ENGINE or not values["calibration"].keys() >= _SET:
        raise AutolabelError(f"{path} is no certificate. Remove it to have it made again")
    return Certificate(
        values["engine"], values["calibration"], values["reference"], values["measured"],
        tuple(values["failures"]), tuple(values["worst"]), values["source"], values["made"],
    )  # fmt: skip


def read_certificate(engine: Mapping[str, Any], cache: Path | None = None) -> Certificate | None:
    """Return the certificate of an engine, None where it has none.

    One that is damaged, or that is for another engine although it lies in this one's place, counts
    for nothing: the engine has to prove itself anew.
    """
    path = certificate_path(engine, cache)
    try:
        found = _of(read_signed(path), path)
    except (OSError, AutolabelError, KeyError, TypeError, AttributeError):
        return None
    return found if dict(found.engine) == dict(engine) else None


def certificates(cache: Path | None = None) -> Iterator[Certificate]:
    """Yield every sound certificate of this machine."""
    for path in sorted((cache_folder(cache) / "certificates").glob("*.json")):
        try:
            yield _of(read_signed(path), path)
        except (OSError, AutolabelError, KeyError, TypeError, AttributeError):
            continue


def failures_of(measured: Mapping[str, Any], precision: str) -> tuple[str, ...]:
    """Return, in words, which limits of a precision something measured does not keep."""
    limits, over = LIMITS[precision], measured["over_32x32"]
    checks = [
        ("mean mask IoU", measured["iou"]["mean"], limits.iou_mean_all),
        *(
            [
                ("mean mask IoU over 32x32 px", over["iou"]["mean"], limits.iou_mean),
                ("1st percentile of mask IoU over 32x32 px", over["iou"]["p1"], limits.iou_p1),
            ]
            if over["masks"]
            else []
        ),
    ]
    found = [
        f"{name} {value:g}, needed {least:g}" for name, value, least in checks if value < least
    ]
    apart = measured["logits_apart"]["median"]
    if apart > limits.logits_median:
        found.append(f"logits {apart:g} deviations apart, at most {limits.logits_median:g}")
    predicted = measured["predicted_iou_apart"]
    if predicted["median"] > limits.predicted_iou_median:
        most = limits.predicted_iou_median
        found.append(f"predicted IoU {predicted['median']:g} apart, at most {most:g}")
    if predicted["max"] > 1:
        found.append("a predicted IoU is no number between 0 and 1")
    if not measured["coordinates_kept"]:
        found.append("coordinates of boxes are rounded to half precision")
    return tuple(found)
