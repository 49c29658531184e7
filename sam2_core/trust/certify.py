"""Certificates: what an engine was held against, how far apart it was, and whether it may label.

A certificate is for one engine: weights, graphs, backend, precision, code, device and the versions
of the libraries that compute. Another driver's GPU, another ONNX Runtime or other graphs are
another engine, which has to prove itself anew.
"""

import importlib.util
import logging
import platform
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco_mask

from sam2_core.backends.protocol import BackendInfo
from sam2_core.cache import cache_folder, write_whole
from sam2_core.find_weights import RANDOM, Weights, bundled_checkpoint, resolve_weights
from sam2_core.machine import installed_versions
from sam2_core.machine_errors import as_machine_error
from sam2_core.mask_geometry import (
    SIZES,
    SMALL_AREA_PX,
    boundary_f,
    boundary_tolerance_px,
    mask_iou,
    size_class,
)
from sam2_core.model_download import SOURCES, checkpoint_path
from sam2_core.presets import preset_named
from sam2_core.segmenter import Segmenter
from sam2_core.trust.calibration import (
    Answers,
    Calibration,
    CalibrationImage,
    ImageAnswers,
    answers_of,
    bundled_calibration,
    digest_of,
    file_name,
    read_signed,
    signed_text,
    write_difference,
)
from sam2_core.types import (
    BOX_BOTTOM_RIGHT,
    BOX_TOP_LEFT,
    POINT_PADDING,
    AutolabelError,
    FloatArray,
    MachineError,
    ModelStamp,
    Prompts,
)

FORMAT = 2
# Libraries whose version belongs to an engine: those of every engine, and those of a backend.
_EVERYWHERE = ("numpy", "pillow")
_LIBRARIES = {
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime"),
    "torch": ("torch",),
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-rtx-cu13-libs"),
}


# How far an engine may be from PyTorch in float32: the least mean IoU of all masks, and mean and
# first percentile of those over 32x32 px; at most so far apart may half of the logits be, in
# deviations, and half of the predicted IoU. fp32: what other exports are held to (mean 0.999), and
# the goal for original frames (0.98). fp16: what half precision was measured to reach, see
# lab/RESULTS.md.
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
        engine = self.engine
        return f"{engine['name']} on {engine['backend']}, {engine['precision']}, {engine['device']}"

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

    def keep(self) -> None:
        """Write it, signed, in the place of an earlier one."""
        write_whole(self.path(), signed_text(self.as_json()))

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


def read_certificate(engine: Mapping[str, Any]) -> Certificate | None:
    """Return the certificate of an engine, None where it has none.

    One that is damaged, or that is for another engine although it lies in this one's place, counts
    for nothing: the engine has to prove itself anew.
    """
    found = _read(certificate_path(engine))
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
    found = [
        f"{name} {value:g}, needed {needed:g}" for name, value, needed in least if value < needed
    ]
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
    sizes = {size: [row for row in rows if size_class(row["area_px"]) == size] for size in SIZES}
    return {
        **_agreement(rows),
        "over_32x32": _agreement([row for row in rows if row["area_px"] >= SMALL_AREA_PX]),
        "by_size": {size: _agreement(some) for size, some in sizes.items()},
        "predicted_iou_apart": _most([row["predicted_apart"] for row in rows]),
        "logits_apart": _most([row["logits_apart"] for row in rows]),
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
    iou: npt.NDArray[np.float64] = np.array([row["iou"] for row in rows])
    low = np.percentile(iou, [1, 5, 10])
    return {
        "masks": len(rows),
        "iou": {
            "mean": _rounded(iou.mean()), "p1": _rounded(low[0]), "p5": _rounded(low[1]),
            "p10": _rounded(low[2]), "min": _rounded(iou.min()),
        },
        "boundary_f": _rounded(np.mean([row["boundary_f"] for row in rows])),
    }  # fmt: skip


logger = logging.getLogger(__name__)
WORST = 6


def engine_answers(
    segmenter: Segmenter, images: Sequence[CalibrationImage], together: int = 1
) -> tuple[list[ImageAnswers], float]:
    """Segment boxes of pictures as labeling does, so many frames at a time.

    Returns:
        The engine's answers, and milliseconds for a call (the median; the first one's are not
        counted where there are several).

    """
    found: list[ImageAnswers] = []
    seconds = []
    for start in range(0, len(images), together):
        started = time.perf_counter()
        some = images[start : start + together]
        prepared = [segmenter.prepare(image.pixels, image.boxes) for image in some]
        for frame, low_res in zip(prepared, segmenter.run(prepared), strict=True):
            found.append(answers_of(segmenter.finish(frame, low_res).rle, low_res))
        seconds.append(time.perf_counter() - started)
    return found, float(np.median(seconds[1:] or seconds)) * 1e3


def beside_reference(
    calibration: Calibration, found: Sequence[ImageAnswers], answers: Answers
) -> list[dict[str, Any]]:
    """Return every mask of an engine beside the reference's.

    Returns:
        Of each `image` and `row` of its box, `iou`, `boundary_f`, `area_px` of the reference's,
        `predicted_apart`: how far the two predictions of IoU are apart, and `logits_apart`: root
        mean square of the difference in the reference's deviations.

    """
    rows: list[dict[str, Any]] = []
    together = zip(calibration.images, found, answers.images, strict=True)
    for index, (image, own, expected) in enumerate(together):
        apart, size_hw = _logits_apart(own, expected), image.size_hw
        tolerance_px = boundary_tolerance_px(size_hw)
        predicted_apart = np.abs(own.predicted_iou.astype(float) - expected.predicted_iou)
        for row, (mask, true) in enumerate(zip(own.rle, expected.rle, strict=True)):
            rows.append({
                "image": index, "row": row, "iou": mask_iou(mask, true, size_hw),
                "boundary_f": boundary_f(mask, true, size_hw, tolerance_px),
                "area_px": int(coco_mask.area({"counts": true, "size": list(size_hw)})),
                "predicted_apart": float(predicted_apart[row]), "logits_apart": float(apart[row]),
            })  # fmt: skip
    return rows


def _logits_apart(given: ImageAnswers, expected: ImageAnswers) -> npt.NDArray[np.float64]:
    """Root mean square of the logits' difference, in deviations: (N,), infinite for NaN."""
    reference = expected.logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        squares = ((given.logits - reference) ** 2).mean(axis=(1, 2))
    apart: npt.NDArray[np.float64] = np.sqrt(squares) / np.maximum(reference.std(axis=(1, 2)), 1e-6)
    return np.nan_to_num(apart, nan=np.inf, posinf=np.inf)


def close_boxes(size: int) -> tuple[FloatArray, npt.NDArray[np.int32]]:
    """Return points (2, 3, 2) and labels (2, 3) of two boxes that are one in half precision."""
    corners = np.array([[0.55, 0.55], [0.9, 0.9]]) * size
    corners = corners.astype(np.float16).astype(np.float32)
    points = np.zeros((2, 3, 2), np.float32)
    points[0, :2], points[1, :2] = corners, corners + np.float32(size / 8192)
    labels = np.tile(np.array([BOX_TOP_LEFT, BOX_BOTTOM_RIGHT, POINT_PADDING], np.int32), (2, 1))
    return points, labels


def coordinates_kept(segmenter: Segmenter, image: CalibrationImage) -> bool:
    """Whether the engine keeps coordinates finer than half precision does.

    Two boxes that lie a quarter of a half's step apart are the same box in half precision, and then
    their logits are equal to the last bit; else they are not, in any precision of the features.
    """
    prepared = segmenter.prepare(image.pixels, image.boxes)
    prompts = Prompts(*close_boxes(segmenter.image_size), np.zeros(2, np.int64))
    pair = replace(
        prepared, images_model=prepared.images_model[:1], prompts=prompts, rows=np.arange(2),
        reasons=("", ""), regions_xyxy_px=None,
    )  # fmt: skip
    (low_res,) = segmenter.run([pair])
    return not np.array_equal(low_res.logits[0], low_res.logits[1])


def recorded_answers(source: str | Path, segmenter: Segmenter) -> Answers:
    """Return PyTorch's answers to the bundled pictures: recorded ones, else made and recorded.

    Args:
        source: what was loaded: a model's folder, or weights.
        segmenter: the loaded engine.

    Raises:
        UncertifiedEngineError: there are none, and no PyTorch or no weights to make them.

    """
    calibration, close_ups = bundled_calibration(), segmenter.close_ups
    checkpoint = segmenter.backend.info.stamp.checkpoint_sha256
    wanted = (checkpoint, close_ups, calibration.digest)
    return recorded_or_made(
        source, file_name(close_ups=close_ups), wanted,
        lambda: judged(source, segmenter, calibration),
    )  # fmt: skip


def recorded_or_made(
    source: str | Path,
    name: str,
    wanted: tuple[str, bool, str],
    make: Callable[[], Answers],
) -> Answers:
    """Return the answers in a file beside the graphs or in the cache, else make and keep them.

    Args:
        source: what was loaded.
        name: of the file.
        wanted: their checkpoint, whether of close-ups, and the digest of the pictures.
        make: has PyTorch make them.

    """
    own = Path(source).expanduser() / name
    kept = cache_folder() / "references" / wanted[0] / name
    for path in (own, kept):
        try:
            found = Answers.read(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if (found.checkpoint_sha256, found.close_ups, found.calibration) == wanted:
            return found
    answers = make()
    try:
        answers.write(kept)
    except OSError as error:
        logger.warning("cannot remember PyTorch's answers: %s", error)
    return answers


def judged(source: str | Path, segmenter: Segmenter, calibration: Calibration) -> Answers:
    """Have PyTorch segment a calibration set with the weights of a loaded engine.

    Raises:
        UncertifiedEngineError: there is no PyTorch here, or the weights are not.

    """
    stamp = segmenter.backend.info.stamp
    weights = weights_of(source, stamp)  # where there is no PyTorch, it says so
    from sam2_core.trust.torch_judge import torch_answers

    return torch_answers(
        weights.load(), calibration, close_ups=segmenter.close_ups,
        checkpoint_sha256=stamp.checkpoint_sha256,
    )  # fmt: skip


def weights_of(source: str | Path, stamp: ModelStamp) -> Weights:
    """Return the weights of a loaded engine, for PyTorch to judge it.

    Raises:
        UncertifiedEngineError: there is no PyTorch here, or the weights are not.

    """
    preset, sha256 = preset_named(stamp.name.partition("/")[0]), stamp.checkpoint_sha256
    candidates: list[str | Path] = [source]
    exported = Path(source).expanduser().is_dir()
    if exported and sha256.startswith("random-"):
        candidates = [f"{RANDOM}{preset.name}"]
    elif exported:
        files = [bundled_checkpoint(preset)]
        if preset.checkpoint:
            files += [checkpoint_path(preset, source) for source in SOURCES]
        candidates = [path for path in files if path is not None and path.is_file()]
    every = (resolve_weights(candidate) for candidate in candidates)
    weights = next((weights for weights in every if not exported or weights.sha256 == sha256), None)
    if importlib.util.find_spec("torch") is None or weights is None:
        lacking = "PyTorch" if weights is not None else "the checkpoint that it was exported from"
        raise UncertifiedEngineError(
            f"nothing here can tell whether {stamp.name} on {stamp.backend} computes "
            f"what it should: its folder holds no answers of PyTorch, and {lacking} is not here. "
            "Export the model again (`autolabel models export`, answers are recorded with it), or "
            "label with --allow-uncertified, and every label says so"
        )
    return weights


def certify(
    segmenter: Segmenter,
    calibration: Calibration,
    answers: Answers,
    *,
    kind: str = "quick",
    source: str | Path = "",
) -> tuple[Certificate, list[ImageAnswers]]:
    """Hold an engine against answers.

    Where labeling segments several frames at once, pictures are segmented alone and so, and what
    is farther from the reference counts.

    Args:
        segmenter: the loaded engine.
        calibration: the pictures.
        answers: of PyTorch to these.
        kind: what to call the set.
        source: what was loaded.

    Returns:
        The certificate, not written yet, and the engine's masks.

    Raises:
        AutolabelError: the answers are those for other pictures or another way to segment.

    """
    if (answers.calibration, answers.close_ups) != (calibration.digest, segmenter.close_ups):
        raise AutolabelError("the reference's answers are those to other pictures")
    batch = segmenter.frame_batch
    # Several frames at once may be decoded by another graph than single ones.
    batched = engine_answers(segmenter, calibration.images, batch)[0] if batch > 1 else []
    found, latency_ms = engine_answers(segmenter, calibration.images)
    for index, (other, expected) in enumerate(zip(batched, answers.images, strict=False)):
        alone, together = (_logits_apart(answer, expected) for answer in (found[index], other))
        if together.max(initial=0) > alone.max(initial=0):
            found[index] = other
    rows = beside_reference(calibration, found, answers)
    certificate = certificate_of(
        engine_facts(segmenter.backend.info), calibration, answers, rows, kind=kind, source=source,
        latency_ms=latency_ms,
        coordinates_kept=coordinates_kept(segmenter, calibration.images[0]),
    )  # fmt: skip
    return certificate, found


def certificate_of(
    engine: Mapping[str, Any],
    calibration: Calibration,
    answers: Answers,
    rows: Sequence[dict[str, Any]],
    *,
    source: str | Path,
    latency_ms: float,
    coordinates_kept: bool,
    kind: str = "quick",
) -> Certificate:
    """Return the certificate of an engine whose masks were measured, not written yet.

    Args:
        engine: what makes it the one that it is.
        calibration: the pictures.
        answers: of PyTorch to these.
        rows: every mask beside the reference's, of `beside_reference`.
        source: what was loaded.
        latency_ms: for a picture.
        coordinates_kept: whether coordinates are finer than half precision.
        kind: what to call the set.

    """
    measured: dict[str, Any] = summary(rows) | {
        "latency_ms": round(latency_ms, 1), "coordinates_kept": coordinates_kept,
    }  # fmt: skip
    path = Path(source).expanduser()
    worst = sorted(rows, key=lambda row: float(row["iou"]))[:WORST]
    return Certificate(
        engine,
        {"kind": kind, "digest": calibration.digest, "pictures": len(calibration.images),
         "boxes": calibration.boxes, "bundled": bundled_calibration().digest},
        answers.made_by, measured, failures_of(measured, engine["precision"]),
        tuple({"picture": calibration.images[row["image"]].name, "image": row["image"],
               "row": row["row"], "iou": round(row["iou"], 5), "area_px": row["area_px"]}
              for row in worst),
        # Found from any folder.
        str(path.resolve()) if str(source) and path.exists() else str(source),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


def ensure_certified(segmenter: Segmenter, source: str | Path) -> Certificate:
    """Return the certificate of a loaded engine, which proves itself now where it has none yet.

    That takes a second or two for close-ups on a CPU, once on each machine.

    Raises:
        UncertifiedEngineError: it fails, or nothing can tell.
        MachineError: the device failed meanwhile.

    """

    def certified() -> Certificate:
        answers = recorded_answers(source, segmenter)
        return certify(segmenter, bundled_calibration(), answers, source=source)[0]

    return proven(engine_facts(segmenter.backend.info), certified)


def proven(engine: Mapping[str, Any], certify: Callable[[], Certificate]) -> Certificate:
    """Return the certificate of an engine: the one there is, else one that is made and kept now.

    Raises:
        UncertifiedEngineError: it fails, or nothing can tell.
        MachineError: the device failed meanwhile.

    """
    found = read_certificate(engine)
    if found is None or found.calibration["bundled"] != bundled_calibration().digest:
        try:
            found = certify()
        except AutolabelError:
            raise
        except Exception as error:  # sound pictures and boxes: it can only be the machine
            raise as_machine_error(error, "certifying the model") from error
        try:
            found.keep()
        except OSError as error:
            logger.warning("cannot keep the certificate: %s", error)
        logger.info("%s: %s (%s)", found.title, found.verdict, found.path())
    found.refuse()
    return found


def with_pictures(
    certificate: Certificate, calibration: Calibration, answers: Answers,
    found: Sequence[ImageAnswers],
) -> Certificate:  # fmt: skip
    """Draw the worst masks beside the certificate, and return it with their files' names."""
    folder = certificate.path().with_suffix("")
    for earlier in folder.glob("*-iou-*.png"):
        earlier.unlink(missing_ok=True)
    shown = []
    for number, worst in enumerate(certificate.worst):
        image, row = calibration.images[worst["image"]], worst["row"]
        path = folder / f"{number + 1}-iou-{worst['iou']:.4f}.png"
        masks = found[worst["image"]].rle[row], answers.images[worst["image"]].rle[row]
        write_difference(path, image.pixels, *masks, image.boxes_xyxy_px[row])
        shown.append({**worst, "file": str(path)})
    return replace(certificate, worst=tuple(shown))
