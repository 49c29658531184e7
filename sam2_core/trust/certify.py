"""Certifying an engine, and refusing one that does not pass, before it labels."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sam2_core.cache import cache_folder, file_sha256
from sam2_core.machine_errors import as_machine_error
from sam2_core.segmenter import Segmenter
from sam2_core.trust.answers import Answers, ImageAnswers, file_name
from sam2_core.trust.calibration import Calibration, bundled_calibration
from sam2_core.trust.certificate import (
    Certificate,
    UncertifiedEngineError,
    certificate_path,
    engine_facts,
    failures_of,
    read_certificate,
)
from sam2_core.trust.measure import Compared, compared, coordinates_kept, summary
from sam2_core.types import AutolabelError

if TYPE_CHECKING:
    from sam2_core.resolve import Weights

logger = logging.getLogger(__name__)
WORST = 6


def recorded_answers(
    source: str | Path, segmenter: Segmenter, cache: Path | None = None
) -> Answers:
    """Return PyTorch's answers to the bundled pictures: recorded ones, else made and recorded.

    Args:
        source: what was loaded: a model's folder, or weights.
        segmenter: the loaded engine.
        cache: the cache folder.

    Raises:
        UncertifiedEngineError: there are none, and no PyTorch or no weights to make them.

    """
    calibration, close_ups = bundled_calibration(), segmenter.close_ups
    checkpoint = segmenter.backend.info.stamp.checkpoint_sha256
    own = Path(source).expanduser() / file_name(close_ups=close_ups)
    kept = cache_folder(cache) / "references" / checkpoint / own.name
    for path in (own, kept):
        try:
            found = Answers.read(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        wanted = (checkpoint, close_ups, calibration.digest)
        if (found.checkpoint_sha256, found.close_ups, found.calibration) == wanted:
            return found
    answers = judged(source, segmenter, calibration, cache)
    try:
        answers.write(kept)
    except OSError as error:
        logger.warning("cannot remember PyTorch's answers: %s", error)
    return answers


def judged(
    source: str | Path, segmenter: Segmenter, calibration: Calibration, cache: Path | None = None
) -> Answers:
    """Have PyTorch segment a calibration set with the weights of a loaded engine.

    Raises:
        UncertifiedEngineError: there is no PyTorch here, or the weights are not.

    """
    info = segmenter.backend.info
    weights = _weights(source, info.stamp.checkpoint_sha256, info.stamp.name, cache)
    if importlib.util.find_spec("torch") is None or weights is None:
        lacking = "PyTorch" if weights is not None else "the checkpoint that it was exported from"
        raise UncertifiedEngineError(
            f"nothing here can tell whether {info.stamp.name} on {info.stamp.backend} computes "
            f"what it should: its folder holds no answers of PyTorch, and {lacking} is not here. "
            "Export the model again (`autolabel models export`, answers are recorded with it), or "
            "label with --allow-uncertified, and every label says so"
        )
    from sam2_core.trust.judge import torch_answers

    return torch_answers(
        weights.load(), calibration, close_ups=segmenter.close_ups,
        checkpoint_sha256=info.stamp.checkpoint_sha256,
    )  # fmt: skip


def _weights(source: str | Path, sha256: str, name: str, cache: Path | None) -> Weights | None:
    """Find the weights that a loaded engine was made of, None where they are not here."""
    from sam2_core.model_download import SOURCES, checkpoint_path
    from sam2_core.presets import preset_named
    from sam2_core.resolve import RANDOM, Wanted, bundled_checkpoint, resolve_weights

    if not Path(source).expanduser().is_dir():
        return resolve_weights(source, Wanted(cache=cache))
    preset = preset_named(name.partition("/")[0])
    if sha256.startswith("random-"):
        found = resolve_weights(f"{RANDOM}{preset.name}")
        return found if found.sha256 == sha256 else None
    files = [bundled_checkpoint(preset)]
    if preset.checkpoint:
        files += [checkpoint_path(preset, one, cache) for one in SOURCES]
    for path in files:
        if path is not None and path.is_file() and file_sha256(path, cache) == sha256:
            return resolve_weights(path, Wanted(cache=cache))
    return None


def certify(
    segmenter: Segmenter,
    calibration: Calibration,
    answers: Answers,
    *,
    kind: str = "quick",
    source: str | Path = "",
) -> tuple[Certificate, list[Compared], list[ImageAnswers]]:
    """Hold an engine against answers.

    Args:
        segmenter: the loaded engine.
        calibration: the pictures.
        answers: of PyTorch to these.
        kind: what to call the set.
        source: what was loaded.

    Returns:
        The certificate, not written yet, every mask beside the reference's, and the engine's own.

    """
    rows, found, latency_ms = compared(segmenter, calibration, answers)
    measured: dict[str, Any] = summary(rows) | {
        "latency_ms": round(latency_ms, 1),
        "coordinates_kept": coordinates_kept(segmenter, calibration.images[0]),
    }
    engine = engine_facts(segmenter.backend.info)
    worst = sorted(rows, key=lambda one: one.iou)[:WORST]
    certificate = Certificate(
        engine,
        {"kind": kind, "digest": calibration.digest, "pictures": len(calibration.images),
         "boxes": calibration.boxes, "bundled": bundled_calibration().digest,
         "images": sorted(one.digest for one in calibration.images), "due": []},
        answers.made_by, measured, failures_of(measured, engine["precision"]),
        tuple({"picture": calibration.images[one.image].name, "image": one.image, "row": one.row,
               "iou": round(one.iou, 5), "area_px": one.area_px} for one in worst),
        _placed(source), datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip
    return certificate, rows, found


def _placed(source: str | Path) -> str:
    """Return what was loaded so that it is found from any folder."""
    path = Path(source).expanduser()
    return str(path.resolve()) if str(source) and path.exists() else str(source)


def ensure_certified(
    segmenter: Segmenter, source: str | Path, cache: Path | None = None
) -> Certificate:
    """Return the certificate of a loaded engine, which proves itself now where it has none yet.

    That takes a second or two for close-ups on a CPU, once on each machine.

    Raises:
        UncertifiedEngineError: it fails, or nothing can tell.
        MachineError: the device failed meanwhile.

    """
    engine = engine_facts(segmenter.backend.info)
    found = read_certificate(engine, cache)
    if found is None or found.calibration["bundled"] != bundled_calibration().digest:
        answers = recorded_answers(source, segmenter, cache)
        try:
            found, *_ = certify(segmenter, bundled_calibration(), answers, source=source)
        except AutolabelError:
            raise
        except Exception as error:  # sound pictures and boxes: it can only be the machine
            raise as_machine_error(error, "certifying the model") from error
        try:
            found = found.keep(cache)
        except OSError as error:
            logger.warning("cannot keep the certificate: %s", error)
        logger.info("%s: %s (%s)", found.title, found.verdict, certificate_path(engine, cache))
    found.refuse()
    return found


def with_pictures(
    certificate: Certificate, calibration: Calibration, answers: Answers,
    found: Sequence[ImageAnswers], cache: Path | None = None,
) -> Certificate:  # fmt: skip
    """Draw the worst masks beside the certificate, and return it with their files' names."""
    from sam2_core.trust.calibration import write_difference

    folder = certificate.path(cache).with_suffix("")
    if not certificate.counts(cache):
        folder /= "lesser"  # beside those of the certificate that counts on
    for earlier in folder.glob("*-iou-*.png"):
        earlier.unlink(missing_ok=True)
    shown = []
    for number, one in enumerate(certificate.worst):
        image, row = calibration.images[one["image"]], one["row"]
        path = folder / f"{number + 1}-iou-{one['iou']:.4f}.png"
        masks = found[one["image"]].rle[row], answers.images[one["image"]].rle[row]
        write_difference(path, image.pixels, *masks, image.boxes_xyxy_px[row])
        shown.append({**one, "file": str(path)})
    return replace(certificate, worst=tuple(shown))
