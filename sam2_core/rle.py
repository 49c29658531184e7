"""COCO run-length encoding from run boundaries, for many masks of one image at once.

A mask is a set of runs over the image flattened in column-major order. What is encoded here is the
list of positions where the mask's value changes, which post-processing gets from the low-resolution
logits without ever making a mask of the image.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

# COCO's code: five bits a character, least significant first, bit 0x20 "more follow", plus 48.
_MAX_CHARACTERS = 7  # 7 * 5 bits hold every difference of two runs of up to 2**34 pixels


def cancel_pairs(toggles: IntArray) -> IntArray:
    """Drop positions that occur an even number of times: the value changes there and back.

    Args:
        toggles: int64 ascending positions where the mask's value changes.

    """
    if not len(toggles):
        return toggles
    first = np.flatnonzero(np.concatenate(([True], toggles[1:] != toggles[:-1])))
    if len(first) == len(toggles):
        return toggles
    times = np.diff(np.append(first, len(toggles)))
    kept: IntArray = toggles[first[times % 2 == 1]]
    return kept


def _characters(values: IntArray) -> tuple[npt.NDArray[np.uint8], IntArray]:
    """All values' characters one after another, and how many each has."""
    lengths = np.ones(len(values), np.int64)
    for length in range(1, _MAX_CHARACTERS):
        bound = 1 << (5 * length - 1)
        longer = (values >= bound) | (values < -bound)
        if not longer.any():
            break
        lengths += longer
    most = int(lengths.max(initial=1))
    shifts = np.arange(most, dtype=np.int64)
    codes = (values[:, None] >> (5 * shifts)) & 0x1F
    codes |= np.where(shifts < lengths[:, None] - 1, 0x20, 0)
    return (codes + 48).astype(np.uint8)[shifts < lengths[:, None]], lengths


def encode_toggles(
    toggles: IntArray, per_mask: IntArray, size_hw: tuple[int, int]
) -> tuple[list[bytes], IntArray]:
    """Encode masks given by the positions where their values change.

    Args:
        toggles: int64, all masks' positions one mask after another, each mask's strictly ascending
            in [0, H * W), starting from background.
        per_mask: int64 (N,), how many positions each mask has.
        size_hw: (H, W).

    Returns:
        N COCO compressed `counts`, equal to pycocotools', and int64 (N,) areas in pixels.

    """
    masks = len(per_mask)
    pixels = size_hw[0] * size_hw[1]
    runs = per_mask + 1
    ends = np.cumsum(runs)
    starts = ends - runs
    # Each mask's positions followed by the end of the image; runs are their differences.
    edges = np.full(int(runs.sum()), pixels, np.int64)
    last = np.zeros(len(edges), bool)
    last[ends - 1] = True
    edges[~last] = toggles
    counts = np.diff(edges, prepend=0)
    counts[starts] = edges[starts]
    position = np.arange(len(edges)) - np.repeat(starts, runs)
    area = np.zeros(masks, np.int64)
    np.add.at(area, np.repeat(np.arange(masks), runs), np.where(position % 2 == 1, counts, 0))
    values = counts.copy()
    delta = np.flatnonzero(position > 2)
    values[delta] -= counts[delta - 2]
    characters, lengths = _characters(values)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    text = characters.tobytes()
    strings = [text[offsets[start] : offsets[end]] for start, end in zip(starts, ends, strict=True)]
    return strings, area
