"""Read exports with the formats' own tools; `read_back.py` runs this in each tool's interpreter.

`truth.npz` holds what was labeled, by sequence: masks (frames, labels, H, W), who owns each pixel
(frames, H, W; -1 for nobody; `mots_owner` among what MOTS takes) and labels (frames, labels). Each
check returns what it read, in words, and ends with an exception where that is not what was labeled.
"""

import json
import sys
from pathlib import Path

import numpy as np

SEQUENCES = ("drive", "other")
MOTS_CLASSES = {"car": 1, "person": 2}
CITYSCAPES = {"car": 26, "truck": 27, "person": 24, "bicycle": 33}


def truth(folder):
    return np.load(folder / "truth.npz")


def same(found, expected):
    if np.asarray(found).astype(bool).tolist() != np.asarray(expected).astype(bool).tolist():
        raise SystemExit("a mask is not what was labeled")


def t4_devkit(folder):
    from t4_devkit import Tier4
    from t4_devkit.sanity import sanity_check

    count, told = 0, truth(folder)
    for name in SEQUENCES:
        root = folder / "t4" / name
        t4 = Tier4(str(root), verbose=False)
        ours = iter(told[f"{name}.masks"].reshape(-1, *told[f"{name}.masks"].shape[2:]))
        labels = iter(told[f"{name}.labels"].ravel())
        for one in t4.object_ann:
            same(one.mask.decode(), next(ours))
            if one.category_name != next(labels) or not one.automatic_annotation:
                raise SystemExit("a label is not what it was")
            count += 1
        result = sanity_check(str(root))
        if not result.is_passed(strict=False):
            raise SystemExit(f"t4sanity: {result}")
    return f"{count} masks identical; t4sanity passed"


def nuscenes_devkit(folder):
    from nuimages import NuImages
    from nuimages.utils.utils import mask_decode

    count, told = 0, truth(folder)
    for name in SEQUENCES:
        read = NuImages("annotation", str(folder / "t4" / name), lazy=False)
        shape = told[f"{name}.masks"].shape
        ours = told[f"{name}.masks"].reshape(-1, *shape[2:])
        for one, expected in zip(read.object_ann, ours, strict=True):
            same(mask_decode(one["mask"]), expected)
            picture = read.get("sample_data", one["sample_data_token"])
            read.get("calibrated_sensor", picture["calibrated_sensor_token"])
            count += 1
    return f"{count} masks identical"


def trackeval(folder):
    import trackeval as te

    both = []
    for name, given, kind in (
        ("mots", {"SPLIT_TO_EVAL": "all"}, te.datasets.KittiMOTS),
        ("davis", {"SEQ_INFO": dict.fromkeys(SEQUENCES, 6)}, te.datasets.DAVIS),
    ):
        gt, ours = folder / "te" / name / "gt", folder / "te" / name / "trackers/ours/data"
        if name == "mots":
            gt.mkdir(parents=True)
            source = folder / "mots" / "instances_txt"
            (gt / "label_02").symlink_to(source)
            (gt / "evaluate_mots.seqmap.all").symlink_to(folder / "mots/evaluate_mots.seqmap.all")
        else:
            source = folder / "davis/Annotations/Full-Resolution"
            gt.parent.mkdir(parents=True)
            gt.symlink_to(source)
        ours.parent.mkdir(parents=True)
        ours.symlink_to(source)
        config = {
            **kind.get_default_dataset_config(), **given, "PRINT_CONFIG": False,
            "GT_FOLDER": str(gt), "TRACKERS_FOLDER": str(ours.parents[1]),
        }  # fmt: skip
        dataset = kind(config)
        count = sum(
            _davis(dataset, place, folder) if name == "davis" else _mots(dataset, place, folder)
            for place in range(len(SEQUENCES))
        )
        both.append(f"{name}: {count} masks identical")
    return "; ".join(both)


def _mots(dataset, place, folder):
    from pycocotools import mask as coco_mask

    told, name = truth(folder), SEQUENCES[place]
    raw = dataset.get_raw_seq_data("ours", f"{place:04d}")
    count = 0
    for index, (ids, classes, dets) in enumerate(
        zip(raw["gt_ids"], raw["gt_classes"], raw["gt_dets"], strict=True)
    ):
        owner, labels = told[f"{name}.mots_owner"][index], told[f"{name}.labels"][index]
        expected = {
            (MOTS_CLASSES[label], (owner == number).tobytes())
            for number, label in enumerate(labels)
            if label in MOTS_CLASSES and (owner == number).any()
        }
        found = {
            (int(kind), (coco_mask.decode(one) > 0).tobytes())
            for kind, one in zip(classes, dets, strict=True)
        }  # fmt: skip
        if found != expected or len(set(ids.tolist())) != len(ids):
            raise SystemExit(f"mots, {name}, frame {index}: other masks")
        count += len(found)
    return count


def _davis(dataset, place, folder):
    from pycocotools import mask as coco_mask

    told, name = truth(folder), SEQUENCES[place]
    raw = dataset.get_raw_seq_data("ours", name)
    count = 0
    for index, dets in enumerate(raw["gt_dets"]):
        owner = told[f"{name}.owner"][index]
        expected = {(owner == n).tobytes() for n in np.unique(owner[owner >= 0])}
        found = {(coco_mask.decode(one) > 0).tobytes() for one in dets}
        if found != expected:
            raise SystemExit(f"davis, {name}, frame {index}: other masks")
        count += len(found)
    return count


def cityscapesscripts(folder):
    from cityscapesscripts.evaluation.instances2dict import instances2dict

    told, count = truth(folder), 0
    for name in SEQUENCES:
        files = sorted((folder / f"cityscapes/gtFine/train/{name}").glob("*_instanceIds.png"))
        found = instances2dict([str(one) for one in files])
        for index, file in enumerate(files):
            owner, labels = told[f"{name}.owner"][index], told[f"{name}.labels"][index]
            read = next(value for key, value in found.items() if Path(key).name == file.name)
            expected = sorted(
                (CITYSCAPES[label], int((owner == number).sum()))
                for number, label in enumerate(labels)
                if (owner == number).any()
            )
            ours = [(one["labelID"], one["pixelCount"]) for kind in read.values() for one in kind]
            if sorted(one for one in ours if one[0]) != expected:
                raise SystemExit(f"cityscapes, {file.name}: {sorted(ours)} and not {expected}")
            count += len(expected)
    return f"{count} instances of the same class and number of pixels"


def label_studio_sdk(folder):
    from label_studio_sdk.converter.brush import decode_rle
    from label_studio_sdk.label_interface import LabelInterface

    told, count = truth(folder), 0
    interface = LabelInterface((folder / "label-studio/labeling_config.xml").read_text())
    frames = np.concatenate([told[f"{name}.masks"] for name in SEQUENCES])
    tasks = json.loads((folder / "label-studio/tasks.json").read_text())
    for task, expected in zip(tasks, frames, strict=True):
        (prediction,) = task["predictions"]
        problems = interface.validate_prediction(prediction, return_errors=True)
        if problems:
            raise SystemExit(f"refused: {problems}")
        for one, mask in zip(prediction["result"], expected, strict=True):
            size_hw = (one["original_height"], one["original_width"])
            same(decode_rle(one["value"]["rle"]).reshape(*size_hw, 4)[:, :, 3], mask)
            count += 1
    return f"{count} masks identical; predictions valid under labeling_config.xml"


def datumaro(folder):
    import datumaro as dm

    told, both = truth(folder), []
    frames = {
        f"{name}/{index:06d}": told[f"{name}.masks"][index]
        for name in SEQUENCES
        for index in range(6)
    }
    for kind, path in (("cvat", "cvat"), ("coco_instances", "coco/annotations/instances.json")):
        count = 0
        for item in dm.Dataset.import_from(str(folder / path), kind):
            masks = [one for one in item.annotations if one.type == dm.AnnotationType.mask]
            if len(masks) != len(frames[item.id]):
                raise SystemExit(f"{kind}: {len(masks)} masks in {item.id}")
            found = {(np.asarray(one.image) > 0).tobytes() for one in masks}
            if found != {(mask > 0).tobytes() for mask in frames[item.id]}:
                raise SystemExit(f"{kind}: other masks in {item.id}")
            count += len(found)
        both.append(f"{kind.partition('_')[0]}: {count} masks identical")
    return "; ".join(both)


def ultralytics(folder):
    """YOLODataset's own check of each pair of picture and label; none may be corrupt."""
    from ultralytics.data.utils import check_det_dataset, polygon2mask, verify_image_label

    told, ious = truth(folder), []
    data = check_det_dataset(str(folder / "yolo/data.yaml"), autodownload=False)
    names = data["names"]
    for name in SEQUENCES:
        for index, expected in enumerate(told[f"{name}.masks"]):
            stem = f"train/{name}__{index:06d}"
            pair = (
                str(folder / f"yolo/images/{stem}.jpg"),
                str(folder / f"yolo/labels/{stem}.txt"),
            )
            read = verify_image_label((*pair, "", False, len(names), 0, 0, False))
            labels, size_hw, segments, corrupt = read[1], read[2], read[3], read[8]
            if corrupt or len(segments) != len(expected):
                raise SystemExit(f"{stem}: {read[-1]}")
            wanted = [names[int(one)] for one in labels[:, 0]]
            if wanted != told[f"{name}.labels"][index].tolist():
                raise SystemExit(f"{stem}: classes {wanted}")
            for points, mask in zip(segments, expected, strict=True):
                drawn = polygon2mask(size_hw, [(points * size_hw[::-1]).ravel()]) > 0
                ious.append((drawn & (mask > 0)).sum() / (drawn | (mask > 0)).sum())
    return f"{len(ious)} outlines; mean IoU {np.mean(ious):.4f}, least {min(ious):.4f}"


if __name__ == "__main__":
    print(globals()[sys.argv[1]](Path(sys.argv[2])))
