"""Buckets and optimisation profiles of TensorRT engines: plain logic, no TensorRT.

CUDA graphs and TensorRT's best kernels need fixed shapes, so prompts and images are padded to
buckets. Every box bucket is one optimisation profile (its kernels are tuned for that size); one
more profile takes clicked points and mask prompts, whose shapes vary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sam2_core.backends.gpu import Shape
from sam2_core.types import BOX_POINTS, AutolabelError

# A graph that is not the mask model's: one input of images, one output.
NETWORK = "network"
# Most prompts with clicked points or masks in one call, and most points of one.
_FREE_PROMPTS, _FREE_POINTS = 16, 16


@dataclass(frozen=True)
class Buckets:
    """Sizes that engines are built for.

    Attributes:
        boxes: prompts in one decoder call, ascending; more are split over calls.
        images: images in one encoder call, and of one decoder call's features, ascending.
        own_images: every box has an image of its own, as in close-ups: what decoders are tuned for.

    """

    boxes: tuple[int, ...] = (1, 8, 32, 64, 128)
    images: tuple[int, ...] = (1, 2, 4, 8)
    own_images: bool = False


# Of close-ups, small images of which a frame has dozens, each with one box.
CLOSE_UP_BUCKETS = Buckets((1, 8, 32, 64), (1, 8, 32, 64), own_images=True)


@dataclass(frozen=True)
class Profile:
    """One optimisation profile: input name -> (smallest, tuned for, largest) shape."""

    name: str
    shapes: Mapping[str, tuple[Shape, Shape, Shape]]

    def covers(self, shapes: Mapping[str, Shape]) -> bool:
        """Whether every given input's shape lies inside this profile."""
        return all(
            name in self.shapes and _inside(shape, *self.shapes[name])
            for name, shape in shapes.items()
        )

    def fixes(self, names: Sequence[str]) -> bool:
        """Whether each of these inputs, as far as there, has one shape only."""
        return all(
            self.shapes[name][0] == self.shapes[name][2] for name in names if name in self.shapes
        )


def _inside(shape: Shape, smallest: Shape, _tuned: Shape, largest: Shape) -> bool:
    return len(shape) == len(smallest) and all(
        low <= size <= high for low, size, high in zip(smallest, shape, largest, strict=True)
    )


def profiles_for(
    inputs: Iterable[tuple[str, Sequence[int | str | None]]], kind: str, buckets: Buckets
) -> list[Profile]:
    """Optimisation profiles of one graph.

    Args:
        inputs: (name, shape) of each of the graph's inputs; a size that is not a positive int
            is dynamic.
        kind: name of the graph: "encoder", "decoder" or "decoder_mask"; or `NETWORK`.
        buckets: what to build for.

    Raises:
        AutolabelError: for an input that the ONNX contract does not know.

    """
    declared = [
        (name, tuple(size if isinstance(size, int) and size > 0 else -1 for size in shape))
        for name, shape in inputs
    ]
    if kind in {NETWORK, "encoder"}:
        if kind == "encoder":
            _fill(declared, {"B": 1})  # refuses what is not of the contract
        return [
            Profile(
                f"images-{count}", {name: ((count, *shape[1:]),) * 3 for name, shape in declared}
            )
            for count in buckets.images
        ]
    profiles = []
    most = buckets.images[-1]
    takes_masks = any(name == "mask_input" for name, _ in declared)
    for count in () if takes_masks else buckets.boxes:
        tuned = min(count, most) if buckets.own_images else 1
        sizes = [{"B": images, "P": count, "K": BOX_POINTS} for images in (1, tuned, most)]
        profiles.append(Profile(f"boxes-{count}", _ranges(declared, sizes)))
    free = [
        {"B": 1, "P": 1, "K": 1},
        {"B": 1, "P": 1, "K": BOX_POINTS},
        {"B": most, "P": _FREE_PROMPTS, "K": _FREE_POINTS},
    ]
    profiles.append(Profile("points", _ranges(declared, free)))
    return profiles


# What the first sizes of each input mean (docs/MODELS.md); others are fixed.
_DYNAMIC = {
    "image": "B",
    "embedding": "B",
    "high_res_s0": "B",
    "high_res_s1": "B",
    "points": "PK",
    "labels": "PK",
    "image_index": "P",
    "mask_input": "P",
}


def _ranges(
    declared: Sequence[tuple[str, Shape]], sizes: Sequence[Mapping[str, int]]
) -> dict[str, tuple[Shape, Shape, Shape]]:
    low, tuned, high = (_fill(declared, one) for one in sizes)
    return {name: (low[name], tuned[name], high[name]) for name, _ in declared}


def _fill(declared: Sequence[tuple[str, Shape]], sizes: Mapping[str, int]) -> dict[str, Shape]:
    filled = {}
    for name, shape in declared:
        meaning = _DYNAMIC.get(name)
        if meaning is None or len(meaning) > len(shape):
            raise AutolabelError(
                f"input {name!r} of shape {shape} is not part of the ONNX contract "
                "(docs/MODELS.md); export the model again with this version"
            )
        axes = [sizes[axis] for axis in meaning]
        if min(shape[len(axes) :], default=1) < 0:
            raise AutolabelError(f"input {name!r}: only the first of {shape} may be dynamic")
        given = [*axes, *shape[len(axes) :]]
        filled[name] = tuple(
            one if one > 0 else size for one, size in zip(shape, given, strict=True)
        )
    return filled
