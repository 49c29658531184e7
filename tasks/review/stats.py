"""How the review goes: progress, agreement, error rates, speed, worth of the unreviewed part.

Also what decisions say of a dataset's risk (`autolabel review calibrate`). What the shipped weights
know comes from rendered streets. Once enough objects have been decided on, two numbers turn their
risk into the chance that a reviewer finds a label of this footage wrong. They lie in storage beside
the decisions, so a load, a relabeling and a rebuild use them, too.
"""

import datetime
import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from sam2_core.types import AutolabelError
from tasks.dataset.documents import detections_of
from tasks.dataset.layout import sample_collection
from tasks.dataset.schema import (
    DONE,
    LOG_FIELD,
    MACHINE_FIELD,
    REVIEWED_FIELD,
    STATUS_FIELD,
    dataset_lock,
)
from tasks.review.events import (
    ACCEPTED,
    ADDED,
    CORRECTED,
    EDITED,
    OPEN_RISK,
    WRONG,
    reviews_uri,
    said,
    standing_entries,
    storage_of,
)
from tasks.review.opinions import Opinions, second_opinions_given, unsettled
from tasks.review.queue import (
    Standing,
    control_labels,
    object_of,
    queue_standing,
    sequence_risks,
)
from tasks.review.set_aside import SetAside, count_set_aside
from tasks.risk.compute_risk import Recalibration, calibration_error, reliability_picture
from tasks.risk.geometry import Numbers
from tasks.store import storage
from tasks.store.checksums import decode_json, encode_json
from tasks.wording import counted, plain

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
    return Recalibration(**values) if values else Recalibration()


def recall_calibration(dataset: Any) -> None:
    """Give a dataset that is built anew the calibration that its storage keeps."""
    folder = reviews_uri(storage_of(dataset), dataset.name)
    if recalibration_of(dataset).decisions or FILE not in storage.list_names(folder):
        return
    uri = storage.join(folder, FILE)
    try:
        kept = Recalibration(**decode_json(storage.read_bytes(uri), storage.redact(uri)))
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


PAUSE_S = 300.0  # a longer gap between two decisions is not work
LEAST_FOR_SPEED = 10  # decisions; the pace of fewer says nothing


@dataclass(frozen=True)
class Rate:
    """A share with its 95% confidence interval (Clopper and Pearson, Biometrika 1934)."""

    wrong: int
    of: int

    @property
    def share(self) -> float:
        """The estimate."""
        return self.wrong / self.of if self.of else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Exact bounds; (0, 1) when nothing has been looked at."""
        from scipy.stats import binomtest

        if not self.of:
            return 0.0, 1.0
        exact = binomtest(self.wrong, self.of).proportion_ci(method="exact")
        return float(exact.low), float(exact.high)

    def text(self) -> str:
        """Write it for people."""
        low, high = self.interval
        return f"{self.share:.1%} (95% interval {low:.1%} to {high:.1%}, n = {self.of})"


@dataclass(frozen=True)
class Stats:
    """State of a review.

    Attributes:
        frames, frames_done: frames, and those marked as done or without a label left to decide.
        labels: machine labels, those too that were followed to their frame.
        decisions: how many labels by decision; "added" are objects that the machine missed.
        disagreement: decided labels that were wrong.
        by_class, by_reason: the same by class name and by reason.
        by_reviewer: labels with a decision that each person has decided on.
        per_hour: decisions per hour while at work; 0 while there are too few to say.
        control: wrong labels in the control sample: what the unreviewed part is worth.
        control_size: how many labels the control sample has.
        by_sequence: risk of the sequences with open frames, riskiest first.
        set_aside: decisions whose frame is gone or has changed; counted nowhere else.
        queue: how far the queue of this reviewer is.
        opinions: labels that two people have decided on.

    """

    frames: int
    frames_done: int
    labels: int
    decisions: Mapping[str, int]
    disagreement: Rate
    by_class: Mapping[str, Rate]
    by_reason: Mapping[str, Rate]
    by_reviewer: Mapping[str, int]
    per_hour: float
    control: Rate
    control_size: int
    by_sequence: Mapping[str, float]
    set_aside: SetAside
    queue: Standing
    opinions: Sequence[Opinions]

    @property
    def decided(self) -> int:
        """Labels with a decision that stands."""
        return sum(n for name, n in self.decisions.items() if name != ADDED)


def review_stats(dataset: Any) -> Stats:
    """Count everything again; reads the labels of frames with decisions only."""
    collection = sample_collection(dataset)
    decisions = Counter[str]()
    of, wrong = Counter[tuple[str, str]](), Counter[tuple[str, str]]()  # by kind and name
    drawn = control_labels(dataset)
    by_reviewer = Counter[str]()
    done = followed = 0
    acts: list[Mapping[str, Any]] = []
    fields = [f"{MACHINE_FIELD}.detections.{name}" for name in _OF_LABELS]
    fields.append(f"{REVIEWED_FIELD}.detections.sources")
    with_log = {f"{LOG_FIELD}.0": {"$exists": True}}
    fields += [LOG_FIELD, STATUS_FIELD, "instances"]
    for sample in collection.find(with_log, dict.fromkeys(fields, 1)):
        own = [one for one in standing_entries(sample) if one["action"] != "done"]
        acts += own
        people = {(one["by"], label) for one in own for label in said(one)}
        labels = detections_of(sample, MACHINE_FIELD)
        followed += max(0, len(labels) - (sample.get("instances") or 0))
        left = [one for one in labels if not one.get("decision")]
        decisions[ADDED] += sum(
            not one.get("sources") for one in detections_of(sample, REVIEWED_FIELD)
        )
        done += sample.get(STATUS_FIELD) == DONE or (bool(labels) and not left)
        for label in labels:
            decision = label.get("decision") or ""
            decisions[decision] += 1
            kinds = [("any", ""), ("class", label["label"])]
            kinds += [("reason", one) for one in label.get("reasons") or ["none"]]
            kinds += [("control", "")] if str(label["_id"]) in drawn else []
            if decision in {ACCEPTED, *WRONG}:
                of.update(kinds)
                by_reviewer.update(who for who, one in people if one == str(label["_id"]))
            if decision in WRONG:
                wrong.update(kinds)
    del decisions[""]

    def rates(kind: str) -> dict[str, Rate]:
        return {
            name: Rate(wrong[kind, name], of[kind, name]) for k, name in sorted(of) if k == kind
        }

    return Stats(
        collection.count_documents({}),
        done,
        _instances(collection) + followed,
        dict(decisions),
        rates("any").get("", Rate(0, 0)),
        rates("class"),
        rates("reason"),
        dict(sorted(by_reviewer.items())),
        _per_hour(acts),
        rates("control").get("", Rate(0, 0)),
        len(drawn),
        sequence_risks(dataset),
        count_set_aside(dataset),
        queue_standing(dataset),
        second_opinions_given(dataset),
    )


_OF_LABELS = ("_id", "decision", "label", "reasons")


def _instances(collection: Any) -> int:
    groups = collection.aggregate([{"$group": {"_id": None, "n": {"$sum": "$instances"}}}])
    return sum(int(group["n"]) for group in groups)


def _per_hour(acts: Sequence[Mapping[str, Any]]) -> float:
    """Decisions per hour, person by person, long pauses left out; 0 if there are too few."""
    seconds, count = 0.0, 0
    ordered = sorted(acts, key=lambda act: (act["by"], act["at"]))
    for before, act in pairwise(ordered):
        first, now = (datetime.datetime.fromisoformat(one["at"]) for one in (before, act))
        paused = (now - first).total_seconds()
        if before["by"] == act["by"] and paused <= PAUSE_S:
            seconds += paused
            count += len(said(act))
    return 3600 * count / seconds if seconds and count >= LEAST_FOR_SPEED else 0.0


@dataclass(frozen=True)
class Agreement:
    """How far two reviewers agree.

    Attributes:
        people: the two.
        disagree: on how many of their labels they do not agree.
        by_class: the same by the machine's class.
        kappa: Cohen's; None where both have only one and the same verdict, as it says nothing then.

    """

    people: tuple[str, str]
    disagree: Rate
    by_class: Mapping[str, Rate]
    kappa: float | None

    def text(self) -> str:
        """Write it for people."""
        kappa = (
            "says nothing: all verdicts are alike"
            if self.kappa is None
            else f"{self.kappa:.2f}".replace("-0.00", "0.00")
        )
        return (
            f"{' and '.join(self.people)} agree on {1 - self.disagree.share:.1%} of "
            f"{counted(self.disagree.of, 'label')} where the second one did not see the first "
            f"decision; Cohen's kappa {kappa} (1 is full agreement, 0 what chance would give)"
        )


def agreements(opinions: Sequence[Opinions]) -> list[Agreement]:
    """Compare every two reviewers by second opinions that nothing was known of."""
    found = []
    opinions = [one for one in opinions if one.unseen]
    for people in sorted({one.people for one in opinions}):
        theirs = [one for one in opinions if one.people == people]
        differ = _disagreement(theirs)
        first, second = map(Counter, zip(*(one.verdicts for one in theirs), strict=True))
        by_chance = sum(first[what] * second[what] for what in first) / differ.of**2
        kappa = None if by_chance == 1 else 1 - differ.share / (1 - by_chance)
        by_class = {
            name: _disagreement([one for one in theirs if one.label == name])
            for name in sorted({one.label for one in theirs})
        }
        found.append(Agreement(people, differ, by_class, kappa))
    return found


def _disagreement(opinions: Sequence[Opinions]) -> Rate:
    return Rate(sum(not one.agree for one in opinions), len(opinions))


_ORANGE, _GREY, _RED = "#ff6d04", "#6b7280", "#ff4d6d"
# The same colours as in fiftyone_plugin/marks.js.
DECISION_COLOURS = {
    "accepted": "#22c55e", "rejected": "#ef4444", "corrected": "#fde047", "edited": "#fde047",
    "merged": "#c084fc", "deleted": "#9ca3af", "added": "#a3e635",
}  # fmt: skip


MOST_RISKS = 12  # bars of sequences, the riskiest
MOST_LETTERS = 36  # of a name beside a bar: reasons with their counts are shorter


def decided_by(stats: Stats) -> str:
    """Say who has decided on how many labels, and why that is more than there are."""
    people = ", ".join(f"{who} {count}" for who, count in stats.by_reviewer.items())
    total = sum(stats.by_reviewer.values())
    if total > stats.decided:
        people += (
            f": {total:,} decisions on {counted(stats.decided, 'label')}, "
            f"{total - stats.decided:,} of them by a second person"
        )
    return people or "nobody yet (drawing a label decides on none of the machine's)"


def summary(stats: Stats) -> str:
    """Say in words how the review goes."""
    agreement = Rate(stats.disagreement.of - stats.disagreement.wrong, stats.disagreement.of)
    agreed = agreement.text() if agreement.of else "nothing decided"
    pairs = "; ".join(one.text() for one in agreements(stats.opinions))
    control = _of(stats.control.of, stats.control_size)
    if stats.control.of:
        control += f"; wrong: {stats.control.text()}, and about as much of what nobody reviews"
    speed = f"{stats.per_hour:,.0f} decisions per hour of a person"
    queue = stats.queue
    lines = [
        f"| Decided in the queue '{queue.view}' | "
        f"{_of(len(queue.decided), len(queue.label_ids))}, {queue.left:,} left |",
        "|---|---|",
        f"| Labels decided, in the queue or not | {_of(stats.decided, stats.labels)} |",
        "| Frames done: all labels decided, or marked as done (Shift+E) | "
        f"**{stats.frames_done:,}** of {stats.frames:,} |",
        f"| Agreement with the machine | {agreed} |",
        f"| Speed | {speed if stats.per_hour else 'too few decisions'} |",
        f"| Decisions by | {plain(decided_by(stats))} |",
        f"| Agreement of reviewers | {plain(pairs) or 'nobody has given a second opinion yet'} |",
        f"| Disagreements that nobody has settled | {unsettled(stats.opinions)} |",
    ]
    if stats.control_size:
        told = "Decided in the control sample: random labels that nobody else reviews"
        lines.insert(2, f"| {told} | {control} |")
    if stats.set_aside.frames:
        lines.append(f"| Set aside | {stats.set_aside.text()} |")
    return "\n".join(lines)


def _of(count: int, whole: int) -> str:
    return f"**{count:,}** of {whole:,} ({count / whole if whole else 0:.1%})"


def decisions_plot(stats: Stats) -> list[dict[str, Any]]:
    """Bars of what was decided, always in the same order."""
    names = [name for name in DECISION_COLOURS if name != EDITED][::-1]
    counts = Counter(stats.decisions)
    counts[CORRECTED] += counts.pop(EDITED, 0)  # an edit in the tab Annotate is a correction
    return [
        {
            "type": "bar", "x": [counts[name] for name in names],
            "y": names,
            "orientation": "h",
            "hovertemplate": "%{x} %{y}<extra></extra>",
            "marker": {"color": [DECISION_COLOURS[name] for name in names]},
        }
    ]  # fmt: skip


def rates_plot(rates: Mapping[str, Rate]) -> list[dict[str, Any]]:
    """Bars of error rates with their confidence intervals, the highest on top."""
    chosen = sorted(rates.items(), key=lambda one: one[1].share)
    bounds = [rate.interval for _, rate in chosen]
    shares = [rate.share for _, rate in chosen]
    return [
        {
            "type": "bar", "orientation": "h", "x": shares,
            "hovertemplate": "%{customdata}<extra></extra>",
            "customdata": [
                html.escape(f"{name}: {rate.wrong} of {rate.of} wrong, {rate.text()}")
                for name, rate in chosen
            ],
            "y": [html.escape(f"{name} ({rate.of})") for name, rate in chosen],
            "marker": {"color": _ORANGE},
            "error_x": {
                "type": "data", "symmetric": False, "color": _GREY,
                "array": [high - share for share, (_, high) in zip(shares, bounds, strict=True)],
                "arrayminus": [share - low for share, (low, _) in zip(shares, bounds, strict=True)],
            },
        }
    ]  # fmt: skip


def risks_plot(risks: Mapping[str, float]) -> list[dict[str, Any]]:
    """Bars of the risk of sequences, the riskiest on top."""
    names = list(risks)[:MOST_RISKS][::-1]  # no character of HTML is in the name of a sequence
    return [
        {
            "type": "bar", "orientation": "h", "x": [risks[name] for name in names], "y": names,
            "hovertemplate": "%{y}: %{x:.0%}<extra></extra>",
            "marker": {"color": _RED},
        }
    ]  # fmt: skip


def shown_names(plot: list[dict[str, Any]]) -> dict[str, Any]:
    """Axis of a plot's names, long ones without their middle; pointing at a bar shows all of it."""
    names = [str(name) for name in plot[0]["y"]]
    short = [html.escape(_shortened(html.unescape(one))) for one in names]
    return {"tickmode": "array", "tickvals": names, "ticktext": short}


def _shortened(name: str) -> str:
    half = MOST_LETTERS // 2
    return name if len(name) <= MOST_LETTERS else f"{name[: half - 1]}…{name[-half:]}"
