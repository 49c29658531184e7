"""Small sources in the formats of the field, made from their specifications."""

import json

import cv2
import numpy as np

T0_US = 1_532_402_927_600_000


def picture(path, seed=0, size_hw=(48, 64)):
    """A picture of noise, so that files differ."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (*size_hw, 3), np.uint8)
    assert cv2.imwrite(str(path), pixels)
    return path


def nuscenes(root, scenes=("scene-0061", "scene-0103"), tables="v1.0-mini", data="samples"):
    """Two cameras, two moments a scene, a lidar; after docs/schema_nuscenes.md."""
    cameras = ("CAM_FRONT", "CAM_BACK")
    rows = {name: [] for name in ("scene", "sample", "sample_data", "ego_pose", "log")}
    sensors = [("CAM_FRONT", "camera"), ("CAM_BACK", "camera"), ("LIDAR_TOP", "lidar")]
    rows["sensor"] = [
        {"token": f"sensor-{channel}", "channel": channel, "modality": modality}
        for channel, modality in sensors
    ]
    rows["calibrated_sensor"] = [
        {"token": f"calibrated-{channel}", "sensor_token": f"sensor-{channel}"}
        for channel, _ in sensors
    ]
    for number, scene in enumerate(scenes):
        rows["scene"].append({"token": f"token-{scene}", "name": scene, "log_token": "log"})
        for moment in range(2):
            sample = f"sample-{scene}-{moment}"
            time_us = T0_US + number * 10_000_000 + moment * 500_000
            rows["sample"].append(
                {"token": sample, "timestamp": time_us, "scene_token": f"token-{scene}"}
            )
            for channel in cameras:
                name = f"{data}/{channel}/{scene}__{channel}__{time_us}.jpg"
                picture(root / name, hash((scene, moment, channel)) % 1000)
                rows["sample_data"].append(sample_data(sample, channel, name, time_us))
            cloud = f"{data}/LIDAR_TOP/{scene}{moment}.pcd.bin"
            rows["sample_data"].append(sample_data(sample, "LIDAR_TOP", cloud, time_us))
    write_tables(root / tables, rows)
    return root


def sample_data(sample, channel, name, time_us, **more):
    return {
        "token": f"data-{name}", "sample_token": sample, "ego_pose_token": "pose",
        "calibrated_sensor_token": f"calibrated-{channel}", "timestamp": time_us,
        "fileformat": "jpg", "is_key_frame": True, "height": 48, "width": 64, "filename": name,
        "prev": "", "next": "",
    } | more  # fmt: skip


def write_tables(folder, rows):
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in rows.items():
        (folder / f"{name}.json").write_text(json.dumps(table, indent=1))


def change_table(path, change):
    """Let `change` work on the rows of a table."""
    rows = json.loads(path.read_text())
    change(rows)
    path.write_text(json.dumps(rows))


def nuimages(root):
    """No scenes: a log with two samples, and a sweep that was not downloaded."""
    rows = {
        "log": [{"token": "log", "logfile": "n003-2018-01-02-11-48-43+0800"}],
        "sample": [], "sample_data": [],
        "sensor": [{"token": "sensor-CAM_FRONT", "channel": "CAM_FRONT", "modality": "camera"}],
        "calibrated_sensor": [
            {"token": "calibrated-CAM_FRONT", "sensor_token": "sensor-CAM_FRONT"}
        ],
    }  # fmt: skip
    for moment in range(2):
        time_us = T0_US + moment * 500_000
        name = f"samples/CAM_FRONT/{time_us}.jpg"
        picture(root / name, moment)
        rows["sample"].append({"token": f"s{moment}", "log_token": "log", "timestamp": time_us})
        rows["sample_data"] += [
            sample_data(f"s{moment}", "CAM_FRONT", name, time_us),
            sample_data(
                f"s{moment}", "CAM_FRONT", f"sweeps/CAM_FRONT/{moment}.jpg", time_us - 9,
                is_key_frame=False,
            ),
        ]  # fmt: skip
    write_tables(root / "v1.0-train", rows)
    return root


def kitti_raw(root):
    """A drive with two cameras; the clock of the second began a frame earlier."""
    drive = root / "2011_09_26" / "2011_09_26_drive_0001_sync"
    for camera, first in (("image_02", 0), ("image_03", 1)):
        for number in range(2):
            picture(drive / camera / "data" / f"{number + first:010d}.png", number)
        times = [f"2011-09-26 13:02:2{5 + line}.964389445" for line in range(3)]
        (drive / camera / "timestamps.txt").write_text("\n".join(times) + "\n")
    (drive / "oxts").mkdir()
    (drive / "oxts" / "timestamps.txt").write_text("2011-09-26 13:02:25.9\n")
    return root


def kitti_tracking(root):
    """Two sequences, with labels beside the pictures."""
    for sequence in ("0000", "0001"):
        for number in range(2):
            picture(root / "training" / "image_02" / sequence / f"{number:06d}.png", number)
    (root / "training" / "label_02").mkdir()
    (root / "training" / "label_02" / "0000.txt").write_text(
        "0 7 Car 0 0 -1.57 10.0 12.0 40.0 36.0 1.5 1.6 3.9 -1.0 1.7 9.0 -1.6\n"
        "0 -1 DontCare -1 -1 -10 0 0 5 5 -1 -1 -1 -1000 -1000 -1000 -10\n"
        "1 7 Car 0 0 -1.57 11.0 12.0 41.0 36.0 1.5 1.6 3.9 -1.0 1.7 9.0 -1.6 0.5\n"
    )
    return root


def cityscapes(root):
    """Pictures of two cities; the labels beside them are PNG files as well."""
    for city, frame in (("aachen", 19), ("bochum", 313)):
        name = f"{city}_000000_{frame:06d}"
        picture(root / "leftImg8bit" / "train" / city / f"{name}_leftImg8bit.png", frame)
        picture(root / "gtFine" / "train" / city / f"{name}_gtFine_labelIds.png", frame)
    return root


def coco(root):
    """A json beside its pictures in two folders, one of which is not in the json."""
    images = []
    for number, name in enumerate(("a/0001.jpg", "a/0002.jpg", "b/0001.jpg")):
        picture(root / "images" / name, number)
        images.append({"id": number, "file_name": name, "width": 64, "height": 48})
    picture(root / "images" / "a" / "0003.jpg", 9)
    (root / "annotations").mkdir()
    path = root / "annotations" / "instances.json"
    path.write_text(json.dumps({"images": images, "annotations": [], "categories": []}))
    return path


def parquet(root):
    """A table that a query may have made: sequences, cameras and times of its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for number in range(4):
        path = picture(root / "raw" / f"{number}.jpg", number)
        rows.append({
            "path": str(path) if number % 2 else f"raw/{number}.jpg", "scene": "tunnel/night",
            "channel": "left" if number < 2 else "right", "timestamp": 10**15 - number * 10**6,
        })  # fmt: skip
    table = pa.Table.from_pylist(rows)
    times = table["timestamp"].cast(pa.timestamp("us", tz="UTC"))
    pq.write_table(table.set_column(3, "timestamp", times), root / "frames.parquet")
    return root / "frames.parquet"
