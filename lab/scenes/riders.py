"""A rider and what he rides as one object, as DAVIS and many people annotate them.

A box around both asks for both, a box around one of them for that one. Pictures of either kind of
truth teach a mask model to go by the box.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lab.scenes.types import RIDER_LABEL, Instance, Scene


def riders_as_one(scene: Scene) -> Scene:
    """Return a scene in which every rider and his mount are one instance, named `RIDER_LABEL`.

    What is dropped joins too, if its other half is not; a mount that nobody sees, and a rider whose
    mount nobody sees, stay as they are.
    """
    kept = {one.track_id: one for one in scene.instances}
    every = kept | {one.track_id: one for one in scene.dropped}
    pairs = [
        (one, every[one.rides_track_id])
        for one in every.values()
        if one.rides_track_id in every
        and not kept.keys().isdisjoint({one.track_id, one.rides_track_id})
    ]
    gone = {one.track_id for pair in pairs for one in pair}
    order = {one.track_id: place for place, one in enumerate(scene.instances)}
    joined = [(max(order.get(one.track_id, -1) for one in pair), _joined(*pair)) for pair in pairs]
    alone = [(place, scene.instances[place]) for i, place in order.items() if i not in gone]
    return replace(
        scene,
        instances=tuple(one for _, one in sorted([*alone, *joined], key=lambda one: one[0])),
        dropped=tuple(one for one in scene.dropped if one.track_id not in gone),
    )


def _joined(rider: Instance, mount: Instance) -> Instance:
    pair = rider, mount
    low = np.min([one.box_xyxy_px[:2] for one in pair], axis=0)
    high = np.max([one.box_xyxy_px[2:] for one in pair], axis=0)
    left, top = (int(one) for one in low)
    mask = np.zeros((int(high[1]) - top, int(high[0]) - left), bool)
    for one in pair:
        x, y = one.origin_xy_px[0] - left, one.origin_xy_px[1] - top
        mask[y : y + one.mask.shape[0], x : x + one.mask.shape[1]] |= one.mask
    area = rider.area_px + mount.area_px
    whole = sum(one.area_px / max(one.visible_fraction, 1e-6) for one in pair)
    return Instance(
        mask, (left, top), np.concatenate([low, high]).astype(np.float32), RIDER_LABEL,
        mount.track_id, min(rider.depth_m, mount.depth_m), min(1.0, area / whole), area,
    )  # fmt: skip
