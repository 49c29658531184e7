"""Parameters of the flows: the only configuration, of the CLI, Prefect's form and backfills."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from sam2_core.types import AutolabelError

DETECTOR_MIN_SCORE = 0.3

_SELECTION = re.compile(r"^(\d*):(\d*)(?::(\d*))?$")
_DATASET = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._ -]*$")


def _frame_selection(text: str) -> str:
    found = _SELECTION.match(text)
    if not found:
        raise ValueError(f"{text!r} is not START:STOP or START:STOP:STEP with numbers from 0")
    start, stop, step = (int(part) if part else None for part in (*found.groups(), None)[:3])
    if step == 0:
        raise ValueError(f"{text!r}: STEP must be at least 1")
    if stop is not None and stop <= (start or 0):
        raise ValueError(f"{text!r} selects no frame: STOP must be greater than START")
    return text


def without_secrets(address: str) -> str:
    """Return an address, or a name, that may be stored and logged."""
    from tasks.store.addresses import checked

    try:
        return checked(address)
    except AutolabelError as error:
        raise ValueError(str(error)) from error


def absolute(address: str) -> str:
    """Return an address that means the same in any folder: workers run in one of their own."""
    from tasks.store import storage

    try:
        return storage.absolute(address)
    except AutolabelError as error:
        raise ValueError(str(error)) from error


Uri = Annotated[str, AfterValidator(without_secrets)]
Place = Annotated[Uri, AfterValidator(absolute)]


class LabelParams(BaseModel):
    """What to label, with what, and where the labels go."""

    # What is refused may be a secret: it is not repeated.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    sources: tuple[Place, ...] = Field(
        min_length=1,
        description="Folders of images, folders of camera folders, videos, or a parent folder "
        "of any of these; local paths or any fsspec URL (s3://, https://).",
    )
    out: Place = Field(description="Folder or URL below which all labels and reports are written.")
    sequence: str = Field(default="", description="What the one sequence of the sources is called.")
    dataset: str | None = Field(
        default=None, description="FiftyOne dataset; by default the last part of `out`."
    )
    load_dataset: bool = Field(default=True, description="Load the labels into FiftyOne.")
    model: Uri = Field(
        default="auto",
        description="compact, tiny, small, base_plus, large, or the folder of an exported model; "
        "auto takes the largest one on this machine.",
    )
    backend: Literal[
        "auto", "onnxruntime", "onnxruntime-cpu", "onnxruntime-cuda", "torch", "tensorrt"
    ] = Field(
        default="auto",
        description="What runs the model: part of a run's key. `auto` is this machine's best; a "
        "backfill asks the pool's workers.",
    )
    precision: Literal["auto", "fp32", "fp16"] = Field(
        default="auto", description="fp16 on a GPU and fp32 on a CPU by default; part of the key."
    )
    detector: Uri | None = Field(
        default=None,
        description="compact, yolox_nano, yolox_tiny, yolox_s, yolox_m, or an .onnx file.",
    )
    boxes: Place | None = Field(
        default=None, description="Boxes to use instead of a detector: COCO json or text files."
    )
    box_names: Place | None = Field(
        default=None,
        description="Names of the classes of boxes in YOLO's text form: a line each, or data.yaml.",
    )
    classes: tuple[str, ...] = Field(default=(), description="Only these classes; all if empty.")
    min_score: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Only boxes scored at least so; by default 0.3 for a detector's boxes and 0 "
        "for imported ones.",
    )
    frames: Annotated[str, AfterValidator(_frame_selection)] = Field(
        default="::", description="START:STOP:STEP of every camera's frames, counted from 0."
    )
    chunk_frames: int = Field(default=64, ge=1, le=64, description="Frames an artifact holds.")

    @model_validator(mode="before")
    @classmethod
    def _drop_nones(cls, values: Any) -> Any:
        if isinstance(values, dict):
            return {name: value for name, value in values.items() if value is not None}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.detector and self.boxes:
            raise ValueError("give either a detector or boxes, not both")
        if self.box_names and not self.boxes:
            raise ValueError("box_names are names of the classes of boxes: give boxes, too")
        if self.dataset is not None and not _DATASET.match(self.dataset):
            raise ValueError(
                f"dataset {self.dataset!r}: use letters, digits, '.', '_', '-' and spaces"
            )
        return self

    def absolute(self) -> LabelParams:
        """Return a copy whose model and detector, where they are files, are so in any folder."""

        def if_path(name: str | None) -> str | None:
            return absolute(name) if name and Path(name).exists() else name

        changes = {"model": if_path(self.model), "detector": if_path(self.detector)}
        return self.model_copy(update=changes)

    @property
    def dataset_name(self) -> str | None:
        """FiftyOne dataset's name, or None where none is wanted."""
        if not self.load_dataset:
            return None
        if self.dataset:
            return self.dataset
        last = re.sub(r"[^A-Za-z0-9._-]+", "-", self.out.rstrip("/").rsplit("/", 1)[-1])
        return last.strip("-._") or "autolabel"

    @property
    def detector_name(self) -> str:
        """The detector to use where no boxes are given."""
        return self.detector or "compact"

    @property
    def least_score(self) -> float:
        """Score that a box needs."""
        if self.min_score is not None:
            return self.min_score
        return 0.0 if self.boxes else DETECTOR_MIN_SCORE

    def deciding(self) -> dict[str, Any]:
        """Return the parameters that change labels, besides the detector's and the model's stamps.

        Frame selection is not among them: a chunk's key names its frames. The limit of a picture's
        size is, where it is another than usual: it decides which frames have labels.
        """
        from tasks.frames.images import DEFAULT_MEGAPIXELS, max_megapixels

        limit = max_megapixels()
        size = {} if limit == DEFAULT_MEGAPIXELS else {"max_megapixels": limit}
        return {"classes": sorted(self.classes), "min_score": self.least_score} | size
