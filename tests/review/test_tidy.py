"""Masks of clicks lose crumbs, pinholes and what is outside a dragged box, and nothing else."""

import numpy as np
import pytest

from tasks.review.tidy import tidied


def object_with_flaws() -> np.ndarray:
    """A square of 40 pixels with a pinhole and a hole; a crumb and a smaller part beside it."""
    mask = np.zeros((60, 120), bool)
    mask[10:50, 10:50] = True
    mask[20:23, 20:23] = False  # a pinhole
    mask[30:40, 30:40] = False  # a hole
    mask[5:8, 80:83] = True  # a crumb
    mask[30:50, 70:90] = True  # a part behind a pole
    return mask


@pytest.mark.parametrize(
    ("points", "box", "pinhole", "hole", "crumb", "part"),
    [
        ([], None, True, False, False, True),
        ([(181, 106, True)], None, True, False, True, True),
        ([(121, 121, False)], None, False, False, False, True),
        ([], (105, 100, 155, 160), True, False, False, False),
        ([(175, 135, True)], (105, 100, 155, 160), True, False, False, True),
    ],
)
def test_what_nobody_meant_goes(points, box, pinhole, hole, crumb, part):
    corner = (100, 100)
    made = tidied(object_with_flaws(), corner, points, box)
    assert made.shape == (60, 120)
    assert made[12, 12]
    assert (made[21, 21], made[35, 35], made[6, 81]) == (pinhole, hole, crumb)
    assert made[35, 72] == part
    assert not made[:, 95:].any()


def test_a_mask_outside_the_box_is_nothing():
    assert not tidied(object_with_flaws(), (0, 0), [], (100, 0, 120, 20)).any()
