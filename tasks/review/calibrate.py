"""A dataset's risk fitted to its own decisions: `autolabel review calibrate`.

What the shipped weights know comes from rendered streets. Once enough objects have been decided
on, two numbers turn their risk into the chance that a reviewer finds a label of this footage wrong.
They lie in storage beside the decisions, so a load, a relabeling and a rebuild use them, too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sam2_core.types import AutolabelError
from tasks.dataset.documents import detections_of
from tasks.dataset.layout import sample_collection
from tasks.dataset.schema import LOG_FIELD, MACHINE_FIELD, dataset_lock
from tasks.review.events import ACCEPTED, OPEN_RISK, WRONG, reviews_uri, storage_of
from tasks.review.objects import object_of
from tasks.risk.calibration import Recalibration, calibration_error, reliability_picture
from tasks.risk.geometry import Numbers
from tasks.store import storage
from tasks.store.checksums import decode_json, encode_json

FEWEST = 200
_FEWEST_OBJECTS = 50
_FEWEST_OF_A_KIND = 10
_INNER = f"{MACHINE_FIELD}.detections"
_INFO = "calibration"
FILE = "calibration.json"


@dataclass(frozen=True)
class Calibrated:
    """What a calibration did.

    Attributes:
        made: slope and offset.
        labels: how many were decided on.
        wrong: of how many objects the label was wrong.
        error_before, error_after: how far risk and share of wrong labels were apart on the mean; of
            labels that the fit has not seen.
        uri: where it is kept; "" without a storage.

    """

    made: Recalibration
    labels: int
    wrong: int
    error_before: float
    error_after: float
    uri: str

    @property
    def picture_uri(self) -> str:
        """Where the picture is kept."""
        return self.uri.removesuffix("json") + "png" if self.uri else ""


def calibrate(dataset: Any) -> Calibrated:
    """Fit a dataset's risk to its decisions, and change the risk of all its labels accordingly.

    Raises:
        AutolabelError: too few decisions, or they have nothing to do with the risk.

    """
    known = recalibration_of(dataset)
    shown, wrong, labels = decided(dataset)
    kinds = (int(wrong.sum()), int(len(wrong) - wrong.sum()))
    enough = labels >= FEWEST and len(wrong) >= _FEWEST_OBJECTS
    if not enough or min(kinds) < _FEWEST_OF_A_KIND:
        raise AutolabelError(
            f"{dataset.name} has decisions on {labels} labels of {len(wrong)} objects, {kinds[0]} "
            f"of them wrong: a calibration needs {FEWEST} of {_FEWEST_OBJECTS}, and "
            f"{_FEWEST_OF_A_KIND} of either kind"
        )
    risk = known.before(shown)
    try:
        made = Recalibration.fit(risk, wrong)
    except ValueError as error:
        raise AutolabelError(f"the decisions on {dataset.name} do not fit: {error}") from error
    after = Recalibration.unseen(risk, wrong)
    title = f"{dataset.name}: decisions on {len(wrong):,} objects"
    picture = reliability_picture(title, {"before": shown, "calibrated": after}, wrong)
    errors = [calibration_error(one, wrong) for one in (shown, after)]
    out_uri = storage_of(dataset)
    uri = storage.join(reviews_uri(out_uri, dataset.name), FILE) if out_uri else ""
    done = Calibrated(made, labels, kinds[0], errors[0], errors[1], uri)
    if uri:
        storage.write_bytes(uri, encode_json(asdict(made)))
        storage.write_bytes(done.picture_uri, picture)
    _note(dataset, made)
    _change(dataset, *made.after(known))
    return done


def decided(dataset: Any) -> tuple[Numbers, Numbers, int]:
    """Risk and outcome of what was decided: float64 (N,), 1 where it was wrong; how many labels.

    An object counts once for right and once for wrong, by its riskiest label: a hundred labels that
    a decision was spread to are no hundred decisions.
    """
    fields = {f"{_INNER}.{name}": 1 for name in ("_id", "object", "risk", "decision")}
    with_log = {f"{LOG_FIELD}.0": {"$exists": True}}
    riskiest: dict[tuple[str, bool], float] = {}
    labels = 0
    for sample in sample_collection(dataset).find(with_log, fields).sort("_id", 1):
        for label in detections_of(sample, MACHINE_FIELD):
            decision, risk = label.get("decision"), label.get("risk")
            if risk is None or (decision != ACCEPTED and decision not in WRONG):
                continue
            labels += 1
            key = (object_of(label), decision in WRONG)
            riskiest[key] = max(float(risk), riskiest.get(key, 0.0))
    risks = np.array(list(riskiest.values()), np.float64)
    return risks, np.array([wrong for _, wrong in riskiest], np.float64), labels


def recalibration_of(dataset: Any) -> Recalibration:
    """Return what a dataset's own decisions have made of its risk; nothing by default."""
    values = dataset.info.get(_INFO)
    return Recalibration.from_json(values) if values else Recalibration()


def recall_calibration(dataset: Any) -> None:
    """Give a dataset that is built anew the calibration that its storage keeps."""
    folder = reviews_uri(storage_of(dataset), dataset.name)
    if recalibration_of(dataset).decisions or FILE not in storage.list_names(folder):
        return
    uri = storage.join(folder, FILE)
    try:
        kept = Recalibration.from_json(decode_json(storage.read_bytes(uri), storage.redact(uri)))
    except (ValueError, KeyError, TypeError) as error:
        raise AutolabelError(f"{storage.redact(uri)} is no calibration: {error!r}") from error
    _note(dataset, kept)


def _note(dataset: Any, made: Recalibration) -> None:
    with dataset_lock(dataset.name):
        dataset.reload()
        dataset.info[_INFO] = asdict(made)
        dataset.save()


def _change(dataset: Any, slope: float, offset: float) -> None:
    """Change the risk of all labels in the database, then that of their frames."""
    odds = {"$ln": {"$divide": [_SURE, {"$subtract": [1, _SURE]}]}}
    power = {"$multiply": [-1, {"$add": [{"$multiply": [slope, odds]}, offset]}]}
    changed = {"$divide": [1, {"$add": [1, {"$exp": power}]}]}
    has_risk = {"$isNumber": "$$this.risk"}
    label = {"$mergeObjects": ["$$this", {"risk": changed}]}
    each = {"$map": {"input": f"${_INNER}", "in": {"$cond": [has_risk, label, "$$this"]}}}
    # A frame that failed has no labels and keeps its risk.
    sample_collection(dataset).update_many(
        {f"{_INNER}.0": {"$exists": True}},
        [{"$set": {_INNER: each}}, {"$set": {"risk": OPEN_RISK}}],
    )


_SURE = {"$min": [{"$max": ["$$this.risk", 1e-6]}, 1 - 1e-6]}
