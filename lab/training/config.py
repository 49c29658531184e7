"""What a training run is: one TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, ValidationError, model_validator

from sam2_core.types import AutolabelError

OptimizerName = Literal["adamw", "muon"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PictureConfig(_Section):
    """Where the pictures come from.

    Attributes:
        size_hw: pixels of a picture.
        photographs: folder with `truth.json` and the files it names; "" for none.
        photograph_share: share of pictures that are of photographs.
        photograph_shares: how often each source of photographs is drawn from, relative to the
            others; sources without an entry are not used.
        random_share: share of pictures of the "random" domain.
        close_share: share of pictures of the "close" domain; the others are streets.
        riders_as_one: share of scenes in which a rider and what he rides are one object for the
            mask model, and none for the detector.
        workers: processes that draw; 0 takes one per core.
        pool: pictures held on the training device; new ones replace the oldest.
        warm_up: pictures to wait for before the first step.
        first_seed: picture i is drawn with seed first_seed + i.

    """

    size_hw: tuple[int, int] = (720, 1280)
    photographs: str = ""
    photograph_share: float = Field(0.0, ge=0, le=1)
    photograph_shares: dict[str, PositiveFloat] = Field(default_factory=dict)
    random_share: float = Field(0.0, ge=0, le=1)
    close_share: float = Field(0.0, ge=0, le=1)
    riders_as_one: float = Field(0.0, ge=0, le=1)
    workers: int = Field(0, ge=0)
    pool: int = Field(4096, ge=2)
    warm_up: int = Field(512, ge=2)
    first_seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _photographs_are_somewhere(self) -> PictureConfig:
        if (self.photograph_share > 0) != bool(self.photographs):
            raise ValueError("photographs and photograph_share go together")
        return self


class MaskPhase(_Section):
    """What steps of the mask model's training learn from.

    Attributes:
        image_size: of the model's input.
        batch: views a device.
        boxes: prompts per view that are boxes.
        points: prompts per view that are points.
        refined: of the first boxes per view, how many masks are refined with a correcting point.
        close_ups: close-ups cut from each picture, with one box each: then `batch` is pictures,
            and `boxes`, `points` and `whole_share` say nothing. 0: views of many objects.
        whole_share: share of views that are whole pictures.
        strength: share of views whose appearance is changed.
        exact_boxes: share of close-ups whose box is the true one; the others' are off as a
            detector's are.

    """

    image_size: int = 512
    batch: int = Field(32, ge=1)
    boxes: int = Field(10, ge=1)
    points: int = Field(3, ge=1)
    refined: int = Field(2, ge=0)
    close_ups: int = Field(0, ge=0)
    whole_share: float = Field(0.4, ge=0, le=1)
    strength: float = Field(1.0, ge=0, le=1)
    exact_boxes: float = Field(0.3, ge=0, le=1)


class MaskConfig(_Section):
    """The compact SAM 2.1.

    Attributes:
        preset: of `sam2_core.presets`.
        phase: what steps learn from.
        between: what every `between_every`-th step learns from instead, so that nothing is
            forgotten.
        between_every: 0 for never.
        learning_rate: peak.
        optimizer: "muon" for the matrices, with AdamW for the rest, or "adamw" for all.
        roi: points a side at which a mask's loss is taken around its object.
        emphasis: how often instances of a class are prompted for, relative to the others, which
            have 1; also of "rider" (one object with what he rides) and "hidden" (mostly).
        init_from: a `.safetensors` file of an earlier run to start from, "" for none, "bundled" for
            the weights of this package.
        init_steeper: factor by which the logits of that file have been multiplied; it is undone.
        steeper: factor by which the logits of what is kept are multiplied.

    """

    preset: str = "compact"
    phase: MaskPhase = MaskPhase()
    between: MaskPhase | None = None
    between_every: int = Field(0, ge=0)
    learning_rate: float = 1e-3
    optimizer: OptimizerName = "adamw"
    weight_decay: float = 0.05
    roi: int = 96
    emphasis: dict[str, PositiveFloat] = Field(default_factory=dict)
    init_from: str = ""
    init_steeper: float = Field(1.0, gt=0)
    steeper: float = Field(1.0, gt=0)

    @property
    def frame_size(self) -> int | None:
        """Input size of the views of many objects that are trained on, None without any."""
        phase = self.between or self.phase
        return None if phase.close_ups else phase.image_size


class DetectorConfig(_Section):
    """The compact detector.

    Attributes:
        input_hw: of the network, divisible by 32.
        width: channels of the first layer; the others up to stride 8 have multiples of it.
        depth: blocks a stage.
        deep: channels at strides 16 and 32.
        closing: share of the run at whose end pictures come as at inference, appearance unchanged.
        head: channels of the heads.
        init_from: a `.safetensors` file of an earlier run to start from, "" for none.

    """

    input_hw: tuple[int, int] = (544, 960)
    batch: int = 32
    width: int = 20
    depth: int = 2
    head: int = 56
    deep: tuple[int, int] = (160, 160)
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    closing: float = Field(0.12, ge=0, le=1)
    init_from: str = ""


class TrainingConfig(_Section):
    """A whole run, of one of the two models.

    Attributes:
        minutes: of training, counted without warm-up and over all resumed parts; the learning
            rate follows a cosine over it.
        steps: in place of minutes; 0 goes by time.
        device: "auto" takes CUDA when it is there.
        ema: decay a step of the weights' moving average, which is what is kept.

    """

    name: str
    seed: int = 0
    minutes: float = Field(gt=0)
    steps: int = Field(0, ge=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    ema: float = 0.999
    checkpoint_every_s: float = 60.0
    pictures: PictureConfig = PictureConfig()
    mask: MaskConfig | None = None
    detector: DetectorConfig | None = None

    @model_validator(mode="after")
    def _trains_one_model(self) -> TrainingConfig:
        if (self.mask is None) == (self.detector is None):
            raise ValueError("give one of the sections [mask] and [detector]")
        return self

    @property
    def job(self) -> str:
        """Name of the model that is trained."""
        return "mask" if self.mask else "detector"


def load_config(path: str | Path) -> TrainingConfig:
    """Read a configuration.

    Raises:
        AutolabelError: when it is missing or something in it is wrong.

    """
    try:
        content: dict[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        return TrainingConfig.model_validate(content)
    except OSError as error:
        raise AutolabelError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise AutolabelError(f"{path}: {error}") from error
