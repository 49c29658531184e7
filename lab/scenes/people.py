"""People: limbs with thickness on a walking skeleton, clothes, hair, bags."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lab.scenes.solid import BEHIND, Solid

Array = npt.NDArray[np.float64]
_SKIN = ((234, 192, 165), (205, 155, 120), (160, 110, 80), (105, 70, 50), (70, 46, 36))
_GOLDEN = (1 + 5**0.5) / 2
_BALL = np.array(
    [[s * a, t * b, 0.0] for a, b in ((1.0, _GOLDEN),) for s in (-1, 1) for t in (-1, 1)]
)
_BALL = np.concatenate([_BALL, _BALL[:, [2, 0, 1]], _BALL[:, [1, 2, 0]]])
_BALL = _BALL / np.linalg.norm(_BALL[0])


@dataclass(frozen=True, eq=False)
class Person:
    """What does not change from frame to frame."""

    height: float
    girth: float
    stride: float
    skin: Array
    hair: Array
    top: Array
    legs: Array
    shoes: Array
    coat: float
    skirt: bool
    bag: int
    long_sleeves: bool
    shorts: bool
    long_hair: bool
    hat: bool
    stance: float


def choose_person(rng: np.random.Generator) -> Person:
    """Draw build and clothes."""
    child = rng.random() < 0.1
    height = rng.uniform(1.05, 1.45) if child else rng.normal(1.7, 0.09)
    dark = rng.random(4) < [0.5, 0.65, 0.7, 0.5]
    tone = [rng.uniform(12, 70, 3) if d else rng.uniform(40, 235, 3) for d in dark]
    grey = [c.mean() + (c - c.mean()) * rng.uniform(0.1, 1.0) for c in tone]
    hair = np.array([[24, 20, 18], [70, 48, 30], [150, 120, 75], [120, 120, 122]], float)
    return Person(
        float(np.clip(height, 0.95, 2.0)), float(rng.uniform(0.85, 1.3)),
        float(rng.uniform(0.2, 0.5)), np.array(_SKIN[rng.integers(5)], float),
        hair[rng.choice(4, p=[0.5, 0.25, 0.1, 0.15])], grey[0], grey[1], grey[2],
        float(rng.choice([0.0, 0.12, 0.5], p=[0.6, 0.25, 0.15])), bool(rng.random() < 0.14),
        int(rng.choice([0, 1, 2, 3], p=[0.5, 0.2, 0.2, 0.1])), bool(rng.random() < 0.65),
        bool(rng.random() < 0.2), bool(rng.random() < 0.35), bool(rng.random() < 0.12),
        float(rng.uniform(0.0, 2 * np.pi)),
    )  # fmt: skip


def walking(person: Person, phase: float, moving: bool = True) -> dict[str, Array]:
    """Joints in metres of a walk at a phase in radians, for a height of 1."""
    swing = person.stride if moving else 0.08
    joints = {
        "pelvis": np.array([0.0, 0.0, 0.53]), "chest": np.array([0.015, 0.0, 0.79]),
        "neck": np.array([0.01, 0.0, 0.845]), "head": np.array([0.025, 0.0, 0.93]),
    }  # fmt: skip
    for name, sign, shift in (("left", 1.0, 0.0), ("right", -1.0, np.pi)):
        angle = swing * np.sin(phase + shift)
        bend = max(0.0, 0.9 * swing * np.sin(phase + shift + 1.9)) + 0.05
        hip = np.array([0.0, sign * 0.055, 0.51])
        knee = hip + 0.245 * np.array([np.sin(angle), 0, -np.cos(angle)])
        foot = knee + 0.235 * np.array([np.sin(angle - bend), 0, -np.cos(angle - bend)])
        arm = -0.8 * angle
        shoulder = np.array([0.01, sign * 0.112, 0.805])
        elbow = shoulder + 0.175 * np.array([np.sin(arm), sign * 0.16, -np.cos(arm)])
        fore = arm + 0.25 + 0.5 * swing
        hand = elbow + 0.155 * np.array([np.sin(fore), sign * 0.02, -np.cos(fore)])
        joints |= {
            f"{name} hip": hip, f"{name} knee": knee, f"{name} foot": foot,
            f"{name} shoulder": shoulder, f"{name} elbow": elbow, f"{name} hand": hand,
        }  # fmt: skip
    lowest = min(float(joints[f"{side} foot"][2]) for side in ("left", "right")) - 0.022
    return {k: v - [0, 0, lowest] for k, v in joints.items()}


def riding(person: Person, phase: float, seat_m: float, *, pedals: bool) -> dict[str, Array]:
    """Joints of somebody on two wheels, the seat at x = -0.2 m, for a height of 1."""
    seat = np.array([-0.22, 0.0, seat_m + 0.06]) / person.height
    lean = 0.35 if pedals else 0.12
    chest = seat + 0.27 * np.array([np.sin(lean), 0, np.cos(lean)])
    neck = chest + [0.02, 0, 0.055]
    joints = {"pelvis": seat, "chest": chest, "neck": neck, "head": neck + [0.03, 0, 0.08]}
    grip = np.array([0.34, 0.0, seat_m + 0.12]) / person.height
    for name, sign, shift in (("left", 1.0, 0.0), ("right", -1.0, np.pi)):
        if pedals:
            turn = phase + shift
            foot = np.array([0.02 + 0.15 * np.cos(turn), sign * 0.1, 0.33 + 0.15 * np.sin(turn)])
        else:
            foot = np.array([0.15, sign * 0.2, 0.32])
        foot = foot / person.height
        hip = seat + [0.0, sign * 0.055, -0.01]
        middle, reach = (hip + foot) / 2, float(np.linalg.norm(hip - foot))
        bend = max(0.24**2 - (reach / 2) ** 2, 0.0) ** 0.5
        knee = middle + bend * np.array([0.85, sign * 0.15, 0.5])
        shoulder = chest + [0.0, sign * 0.11, 0.015]
        hand = grip + [0.0, sign * 0.15, 0.0]
        elbow = (shoulder + hand) / 2 + [-0.03, sign * 0.03, -0.045]
        joints |= {
            f"{name} hip": hip, f"{name} knee": knee, f"{name} foot": foot,
            f"{name} shoulder": shoulder, f"{name} elbow": elbow, f"{name} hand": hand,
        }  # fmt: skip
    return joints


def dress(person: Person, joints: dict[str, Array]) -> Solid:
    """Solid of a person in a pose (joints for a height of 1)."""
    solid, g = Solid(), person.girth
    scale = person.height

    def limb(a: Array, b: Array, radius_a: float, radius_b: float, colour: Array) -> None:
        ends = [a + _BALL * radius_a, b + _BALL * radius_b]
        solid.add(np.concatenate(ends) * scale, colour, layer=BEHIND)

    for side in ("left", "right"):
        hip, knee, foot = (joints[f"{side} {n}"] for n in ("hip", "knee", "foot"))
        limb(hip, knee, 0.048 * g, 0.032 * g, person.legs)
        limb(knee, foot, 0.032 * g, 0.021 * g, person.skin if person.shorts else person.legs)
        limb(foot, foot + [0.075, 0, -0.005], 0.02, 0.016, person.shoes)
        shoulder, elbow, hand = (joints[f"{side} {n}"] for n in ("shoulder", "elbow", "hand"))
        limb(shoulder, elbow, 0.034 * g, 0.025 * g, person.top)
        sleeve = person.top if person.long_sleeves else person.skin
        limb(elbow, hand, 0.024 * g, 0.017 * g, sleeve)
        limb(hand, hand + [0.015, 0, -0.02], 0.018, 0.014, person.skin)
    pelvis, chest = joints["pelvis"], joints["chest"]
    wide = np.array([0.62, 1.0, 1.0])
    torso = [pelvis + _BALL * 0.08 * g * wide, chest + _BALL * 0.085 * g * wide]
    torso += [joints[f"{s} shoulder"] + _BALL * 0.032 for s in ("left", "right")]
    solid.add(np.concatenate(torso) * scale, person.top, layer=BEHIND)
    if person.coat or person.skirt:
        drop = pelvis - [0, 0, 0.22 if person.skirt else person.coat * 0.5]
        hem = [pelvis + _BALL * 0.082 * g * wide, drop + _BALL * [0.09, 0.1, 0.02]]
        solid.add(
            np.concatenate(hem) * scale, person.top if person.coat else person.legs, layer=BEHIND
        )
    limb(joints["neck"] - [0, 0, 0.01], joints["head"], 0.032, 0.034, person.skin)
    head = joints["head"]
    solid.add((head + _BALL * [0.052, 0.043, 0.062]) * scale, person.skin, layer=BEHIND)
    hair = person.hair if not person.hat else person.shoes
    solid.add(
        (head + [-0.016, 0, 0.018] + _BALL * [0.046, 0.046, 0.052]) * scale, hair, layer=BEHIND
    )
    if person.long_hair:
        limb(head + [-0.03, 0, 0.0], joints["neck"] + [-0.035, 0, -0.02], 0.036, 0.03, person.hair)
    _add_bag(solid, person, joints)
    return solid


def _add_bag(solid: Solid, person: Person, joints: dict[str, Array]) -> None:
    """Add a rucksack, a bag in the hand or one at the hip."""
    chest, scale = joints["chest"], person.height
    if person.bag == 1:
        bag = [chest + [-0.09, 0, dz] + _BALL * [0.045, 0.07, 0.05] for dz in (0.0, -0.15)]
        solid.add(np.concatenate(bag) * scale, person.shoes * 1.3 + 8, layer=BEHIND)
    elif person.bag == 2:
        at = joints["left hand"] - [0, 0, 0.09]
        solid.add((at + _BALL * [0.08, 0.02, 0.07]) * scale, person.hair + 20, layer=BEHIND)
    elif person.bag == 3:
        at = joints["right hip"] + [0.0, -0.06, 0.02]
        solid.add((at + _BALL * [0.07, 0.03, 0.06]) * scale, person.shoes + 15, layer=BEHIND)
