"""Parameters of a run: what the options of `autolabel label` and Prefect's form fill in."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sam2_core.backend_choice import FOLLOWING
from sam2_core.types import AutolabelError
from tasks.boxes.detector_files import (
    ALL_CLASSES,
    BUNDLED,
    RELEASES,
    ROAD_CLASSES,
    prompts_in,
    with_prompt,
)
from tasks.dataset.schema import check_name
from tasks.frames.identity import Format
from tasks.masks.rules import MaskRules
from tasks.pipeline.open_boxes import dataset_and_field, is_field
from tasks.store import storage
from tasks.store.addresses import checked
from tasks.types import FrameSelection

DETECTOR_MIN_SCORE = 0.3
# Of the bundled detector: measured, see sam2_core/weights/README.md.
BUNDLED_MIN_SCORE = 0.25


def _passing(check: Callable[[str], object]) -> AfterValidator:
    """Refuse, as a wrong value, what a check of ours refuses."""

    def validate(text: str) -> str:
        try:
            check(text)
        except AutolabelError as error:
            raise ValueError(str(error)) from error
        return text

    return AfterValidator(validate)


def _as_text(place: Any) -> Any:
    return os.fspath(place) if isinstance(place, os.PathLike) else place


Uri = Annotated[str, BeforeValidator(_as_text), _passing(checked)]
# The same in any folder: workers run in one of their own.
Place = Annotated[Uri, _passing(storage.absolute), AfterValidator(storage.absolute)]


def _boxes_address(text: str) -> str:
    """Return the address of boxes, the same in any folder; a field of a dataset as it is."""
    if is_field(text):
        check_name(dataset_and_field(text)[0])
        return text
    return storage.absolute(checked(text))


BoxesPlace = Annotated[
    str, BeforeValidator(_as_text), _passing(_boxes_address), AfterValidator(_boxes_address)
]


def _one_or_more(sources: Any) -> Any:
    return (sources,) if isinstance(sources, str | os.PathLike) else sources


class LabelParams(BaseModel):
    """What to label, with what, and where the labels go."""

    # What is refused may be a secret: it is not repeated.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    sources: Annotated[tuple[Place, ...], BeforeValidator(_one_or_more)] = Field(
        min_length=1,
        description="Folders of images, folders of camera folders, videos, or a folder of any of "
        "these; local paths or any fsspec URL (s3://, https://).",
    )
    layout: Format = Field(
        default="auto",
        description="Layout of the sources. nuscenes includes nuImages and T4; coco and parquet "
        "are lists of frames; `auto` detects that of each source.",
    )
    out: Place = Field(description="Folder or URL of the labels.")
    root: Place | None = Field(
        default=None,
        description="Folder around the sources from which sequences are named. Default: the one "
        "that `out` has recorded, else that of the sources.",
    )
    sequence: str = Field(default="", description="Name of the only sequence in the sources.")
    dataset: Annotated[str, _passing(check_name)] | None = Field(
        default=None,
        description="FiftyOne dataset of the labels. Labeling names it after `out` by default.",
    )
    load_dataset: bool = Field(default=True, description="Load the labels into FiftyOne.")
    clean_masks: float = Field(
        allow_inf_nan=False,
        default=0,
        ge=0,
        le=0.2,
        description="Fill holes and remove specks of at most this share of a mask, such as 0.01. "
        "0: off.",
    )
    overlap: Literal["keep", "score", "depth"] = Field(
        default="keep",
        description="Which mask owns a pixel that several claim: all (keep), the one with the "
        "higher score, or the nearer object (its box reaches further down).",
    )
    tracks: bool = Field(
        default=True,
        description="Give labels of one object over time one track id and one class.",
    )
    follow: bool = Field(
        default=False,
        description="Follow objects with the model's memory through frames on which they are not "
        "detected, for at most 10 frames.",
    )
    fill_gaps: int = Field(
        default=0,
        ge=0,
        le=3,
        description="Add masks where a track lost its object for at most this many frames, if they "
        "agree with those before and after. 0: off.",
    )
    model: Uri = Field(
        default="auto",
        description="compact, tiny, small, base_plus, large, the folder of an exported model, or a "
        "checkpoint. auto: the largest on this machine, else the bundled compact model.",
    )
    backend: Literal[
        "auto", "onnxruntime", "onnxruntime-cpu", "onnxruntime-cuda", "torch", "tensorrt", "triton"
    ] = Field(
        default="auto",
        description="What runs the model; part of the run's key. auto: the best on this machine, "
        "or for a backfill on its workers. triton: the servers in AUTOLABEL_TRITON_URLS.",
    )
    precision: Literal["auto", "fp32", "fp16"] = Field(
        default="auto", description="Part of the run's key. auto: fp16 on a GPU, fp32 on a CPU."
    )
    allow_uncertified: bool = Field(
        default=False,
        description="Label even if the model is not certified to compute what PyTorch does (see "
        "`autolabel models certify`). Part of the run's key; every label says so.",
    )
    detector: Uri | None = Field(
        default=None,
        description="compact (default), yolox_nano, yolox_tiny, yolox_s, yolox_m, or an .onnx file "
        "of YOLOX, Ultralytics (YOLOv5 to YOLO26, RT-DETR), RT-DETR, D-FINE or RF-DETR.",
    )
    detector_classes: Annotated[str, _passing(prompts_in)] | None = Field(
        default=None,
        description="Names of the classes of the detector's .onnx file, in order, in place of its "
        "own: 'car, truck', or 'coco' for COCO's 80.",
    )
    prompt: Annotated[str, _passing(prompts_in)] | None = Field(
        default=None,
        description="What an open-vocabulary detector (an .onnx file that takes texts) looks for: "
        "'car, traffic cone'.",
    )
    boxes: BoxesPlace | None = Field(
        default=None,
        description="Your boxes instead of a detector's: COCO json, CVAT or Pascal VOC xml, KITTI "
        "label files, a nuImages or T4 dataset, text files 'label score x1 y1 x2 y2', YOLO's with "
        "--box-names, or dataset:NAME.FIELD, a field of a FiftyOne dataset.",
    )
    box_names: Place | None = Field(
        default=None,
        description="The boxes are YOLO text files 'class x y width height'. File with the class "
        "names, one per line, or data.yaml. Or they are COCO results: the COCO json with their "
        "ids.",
    )
    classes: tuple[str, ...] = Field(
        default=(),
        description="Only these classes. Default: all; of detectors yolox_* those found on roads "
        "(`all` keeps every class).",
    )
    min_score: float | None = Field(
        allow_inf_nan=False,
        default=None,
        ge=0,
        le=1,
        description="Lowest score of a box. Labeling takes 0.25 for the bundled detector, 0.3 for "
        "others by default, and all imported boxes.",
    )
    tiles: int = Field(
        default=1,
        ge=1,
        le=8,
        description="Also run the detector on N x N overlapping tiles of each frame, for small "
        "objects in large frames: N x N + 1 times the work.",
    )
    frames: Annotated[str, _passing(FrameSelection.parse)] = Field(
        default="::", description="START:STOP:STEP of each camera's frames, counted from 0."
    )
    chunk_frames: int = Field(default=64, ge=1, le=64, description="Frames per chunk.")
    relabel_reviewed: bool = Field(
        default=False,
        description="Label sequences anew, too, on which people have decided as they are.",
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nones(cls, values: Any) -> Any:
        if isinstance(values, dict):
            return {name: value for name, value in values.items() if value is not None}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        source = dataset_and_field(self.boxes)[0] if self.boxes and is_field(self.boxes) else ""
        rules = {
            "give either a detector or boxes, not both": self.detector and self.boxes,
            "a prompt is for an open-vocabulary detector: give its .onnx file": (
                self.prompt and not (self.detector or "").endswith(".onnx")
            ),
            "detector_classes are for an .onnx file whose classes are its own: give it, without a "
            "prompt": self.detector_classes
            and (self.prompt or not (self.detector or "").endswith(".onnx")),
            f"following runs on the backends {' and '.join(FOLLOWING)}: choose one of them": (
                self.follow and self.backend not in {"auto", "onnxruntime", *FOLLOWING}
            ),
            "follow goes from frame to frame of a chunk: give chunk_frames of at least 2": (
                self.follow and self.chunk_frames < 2
            ),
            "fill_gaps follows tracks: leave no_tracks out": self.fill_gaps and not self.tracks,
            f"labels would be loaded into {source}, which the boxes are from: name another dataset "
            "for them": source and source == self.dataset_name,
            "tiles are for a detector, and boxes are given": self.tiles > 1 and self.boxes,
            "box_names are names of the classes of boxes: give boxes, too": (
                self.box_names and not self.boxes
            ),
        }
        for message, broken in rules.items():
            if broken:
                raise ValueError(message)
        return self

    def absolute(self) -> LabelParams:
        """Return a copy whose model and detector, where they are files, are so in any folder."""

        def if_path(name: str | None) -> str | None:
            return storage.absolute(name) if name and Path(name).exists() else name

        changes = {"model": if_path(self.model), "detector": if_path(self.detector)}
        return self.model_copy(update=changes)

    @property
    def dataset_name(self) -> str | None:
        """FiftyOne dataset's name, or None where none is wanted."""
        if not self.load_dataset:
            return None
        if self.dataset:
            return self.dataset
        last = self.out.rstrip("/").rsplit("/", 1)[-1]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._") or "autolabel"
        if last.isascii():
            return name
        # FiftyOne takes Latin letters only: what tells other names apart stands behind them.
        return f"{name}-{hashlib.sha256(last.encode()).hexdigest()[:6]}"

    @property
    def detector_name(self) -> str:
        """The detector to use where no boxes are given."""
        return with_prompt(self.detector or "compact", self.prompt, self.detector_classes)

    @property
    def wanted_classes(self) -> tuple[str, ...]:
        """Classes of boxes to keep; all when empty.

        The published YOLOX know sofas and pizzas, too: without a word they take what is on roads.
        """
        if self.classes == ALL_CLASSES:
            return ()
        if self.classes or self.boxes or self.detector_name not in RELEASES:
            return self.classes
        return ROAD_CLASSES

    @property
    def least_score(self) -> float:
        """Score that a box needs."""
        if self.min_score is not None:
            return self.min_score
        if self.boxes:
            return 0.0
        return BUNDLED_MIN_SCORE if self.detector_name in BUNDLED else DETECTOR_MIN_SCORE

    @property
    def selection(self) -> FrameSelection:
        """Which frames of every camera."""
        return FrameSelection.parse(self.frames)

    @property
    def mask_rules(self) -> MaskRules:
        """What is done to masks after the model."""
        return MaskRules(self.clean_masks, self.overlap)

    def deciding(self) -> dict[str, Any]:
        """Return the parameters that change labels, besides the detector's and the model's stamps.

        Frame selection is not among them: a chunk's key names its frames. The limit of a picture's
        size is, where it is another than usual: it decides which frames have labels.
        """
        from sam2_core.images import DEFAULT_MEGAPIXELS, max_megapixels
        from tasks.tracks.linking import settings

        limit = max_megapixels()
        return {
            "classes": sorted(self.wanted_classes),
            "min_score": self.least_score,
            **({"max_megapixels": limit} if limit != DEFAULT_MEGAPIXELS else {}),
            **({"tiles": self.tiles} if self.tiles > 1 else {}),
            **({"allow_uncertified": True} if self.allow_uncertified else {}),
            **self.mask_rules.as_parameters(),
            **({"fill_gaps": self.fill_gaps, "tracks": settings()} if self.fill_gaps else {}),
        }
