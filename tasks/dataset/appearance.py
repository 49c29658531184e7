"""How a dataset looks in the App: colours by class, the fields that a reviewer needs first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

# Distinct on dark and light pictures; by class name, so that a class keeps its colour everywhere.
CLASS_COLOURS = {
    "person": "#ff4d6d", "bicycle": "#ffd166", "car": "#3fa7ff", "motorcycle": "#ff9f1c",
    "bus": "#b388ff", "truck": "#2ee6a6", "traffic light": "#f15bb5", "fire hydrant": "#ff6b35",
    "stop sign": "#ef233c", "traffic sign": "#00d4d8", "rider": "#ffadad", "train": "#9bf6ff",
}  # fmt: skip
COLOUR_POOL = [*CLASS_COLOURS.values(), "#caffbf", "#fdffb6", "#a0c4ff", "#ffc6ff"]
# For all other classes, chosen by their names; none is like a decision's colour.
OTHER_COLOURS = (
    "#00bbf9", "#4361ee", "#7aa2ff", "#00f5d4", "#f72585", "#ff70a6", "#e0aaff", "#b5838d",
    "#a0c4ff", "#5e60ce", "#80ffdb", "#ffc8dd",
)  # fmt: skip
SIDEBAR = {
    "review": ["reasons", "risk", "review_status", "relabel", "control"],
    "labels": ["detections", "reviewed", "ground_truth", "previous"],
    "frame": ["sequence_id", "camera", "frame_number", "timestamp_ns", "instances"],
    "origin": ["model", "previous_model", "run_key", "frame_uri", "frame_key", "stamp"],
}
# What a view that shows label by label has instead of a frame's own: there a sample is a label.
OF_PATCHES = ["detections.risk", "detections.reasons", "detections.decision"]
EDITABLE = "reviewed"
# FiftyOne 1.22 saves an edit by the label's place in the list that the view shows, and most of our
# views show a part of the machine's labels: the edit would land on another one.
_NEVER_EDITABLE = "detections"
_LABEL_SCHEMA: dict[str, Any] = {
    "type": "detections", "component": "dropdown", "attributes": [
        {"name": name, "type": kind, "component": "text", "read_only": True}
        for name, kind in (("confidence", "float"), ("risk", "float"), ("reasons", "list<str>"))
    ],
}  # fmt: skip
_CLOSED = ("origin", "metadata", "other")


def arrange_app(dataset: Any) -> None:
    """Set colours, sidebar and visible fields of a dataset; a person's own choices stay."""
    import fiftyone as fo

    config = dataset.app_config
    if config.color_scheme is None:
        colours = [{"value": name, "color": colour} for name, colour in CLASS_COLOURS.items()]
        by_class = {"colorByAttribute": "label", "valueColors": colours}
        config.color_scheme = fo.ColorScheme(
            color_by="value",
            color_pool=COLOUR_POOL,
            opacity=0.55,
            fields=[{"path": field, **by_class} for field in SIDEBAR["labels"]],
        )
    if config.sidebar_groups is None:
        config.sidebar_groups = _sidebar(dataset)
    if config.active_fields is None:
        config.active_fields = fo.ActiveFields(exclude=False, paths=["detections", "reviewed"])


def colour_classes(dataset: Any, classes: Iterable[str]) -> None:
    """Give classes that have no colour yet the one of their names; FiftyOne's own vary by page."""
    scheme = dataset.app_config.color_scheme
    for field in (scheme.fields or ()) if scheme else ():
        if field.get("colorByAttribute") == "label":
            colours = list(field.get("valueColors") or ())
            for name in sorted({*classes} - {one["value"] for one in colours}):
                number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
                colour = OTHER_COLOURS[number % len(OTHER_COLOURS)]
                colours.append({"value": name, "color": colour})
            field["valueColors"] = colours


def offer_classes(dataset: Any, classes: Iterable[str]) -> None:
    """Let the App's own annotation tools offer these classes, and those that they offer already.

    They edit reviewed labels only. Measurements are shown and cannot be changed; whatever else
    somebody has set stays.
    """
    schema = dict(dataset.label_schemas.get(EDITABLE) or _LABEL_SCHEMA)
    wanted = sorted({*classes, *(schema.get("classes") or ())})
    if wanted != schema.get("classes"):
        dataset.update_label_schema(EDITABLE, {**schema, "classes": wanted})
    dataset.activate_label_schemas(EDITABLE)
    if _NEVER_EDITABLE in dataset.active_label_schemas:
        dataset.deactivate_label_schemas(_NEVER_EDITABLE)


def offered_classes(dataset: Any) -> list[str]:
    """Classes that the App's own tools offer; none before a queue was built."""
    return list((dataset.label_schemas.get(EDITABLE) or {}).get("classes") or ())


def _sidebar(dataset: Any) -> list[Any]:
    import fiftyone as fo

    known = set(dataset.get_field_schema())
    placed = {path for paths in SIDEBAR.values() for path in paths}
    groups = [fo.SidebarGroupDocument(name="tags")]
    for name, paths in SIDEBAR.items():
        present = [path for path in paths if path in known]
        groups.append(_group(name, [*present, *(OF_PATCHES if name == "review" else ())]))
    inner = [f"metadata.{name}" for name in ("size_bytes", "mime_type", "width", "height")]
    groups.append(_group("metadata", [*inner, "metadata.num_channels"]))
    groups.append(_group("other", sorted(known - placed - {"tags", "metadata"})))
    return groups


def _group(name: str, paths: list[str]) -> Any:
    import fiftyone as fo

    return fo.SidebarGroupDocument(name=name, paths=paths, expanded=name not in _CLOSED)
