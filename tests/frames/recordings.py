"""Small archives and recordings, written by the formats' own libraries."""

import io
import json
import struct
import tarfile
from fractions import Fraction

import av
import cv2
import numpy as np
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
    timestamp_pb2,
)

T0_NS = 1_532_402_927_600_000_000
HEADER = "std_msgs/Header header\n"
_STAMPED = """
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
================================================================================
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""
COMPRESSED = f"{HEADER}string format\nuint8[] data{_STAMPED}"
RAW = (
    f"{HEADER}uint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\n"
    f"uint8[] data{_STAMPED}"
)
FLOAT = "float64 data\n"


def jpeg(seed, size_hw=(48, 64)):
    pixels = np.random.default_rng(seed).integers(0, 255, (*size_hw, 3), np.uint8)
    return cv2.imencode(".jpg", pixels)[1].tobytes()


def tar(path, members):
    """An archive of (name, bytes)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as file:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


def header(time_ns):
    return {
        "stamp": {"sec": time_ns // 10**9, "nanosec": time_ns % 10**9}, "frame_id": "camera",
    }  # fmt: skip


def raw(pixels, encoding, time_ns, step=0, data=None):
    height, width = pixels.shape[:2]
    row = pixels[0].tobytes()
    return {
        "header": header(time_ns), "height": height, "width": width, "encoding": encoding,
        "is_bigendian": 0, "step": step or len(row), "data": data or pixels.tobytes(),
    }  # fmt: skip


def ros2(path, messages, chunk_size=1 << 20):
    """A recording of (topic, schema, fields, time); schemas are "compressed", "raw", "float"."""
    from mcap_ros2.writer import Writer

    texts = {
        "compressed": ("sensor_msgs/msg/CompressedImage", COMPRESSED),
        "raw": ("sensor_msgs/msg/Image", RAW), "float": ("std_msgs/msg/Float64", FLOAT),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, Writer(file, chunk_size=chunk_size) as writer:
        known = {}
        for topic, kind, fields, time_ns in messages:
            if kind not in known:
                known[kind] = writer.register_msgdef(*texts[kind])
            writer.write_message(topic, known[kind], fields, time_ns, time_ns)
    return path


def compressed(seed, time_ns, data=None):
    return {"header": header(time_ns), "format": "jpeg", "data": data or jpeg(seed)}


def drive(path, count=3, first=0, **options):
    """Two cameras and something else; picture n is taken 10 ms before it is written."""
    messages = []
    for number in range(first, first + count):
        time_ns = T0_NS + number * 10**8
        for camera in ("front", "rear"):
            fields = compressed(number, time_ns - 10**7)
            topic = f"/sensing/camera/{camera}/image_color/compressed"
            messages.append((topic, "compressed", fields, time_ns))
        messages.append(("/speed", "float", {"data": 1.0}, time_ns))
    return ros2(path, messages, **options)


def packets(count=6, size_hw=(96, 128), codec="libx264"):
    """Packets of a video, each of one frame, as Foxglove's CompressedVideo wants them."""
    stream = av.CodecContext.create(codec, "w")
    stream.height, stream.width = size_hw
    stream.pix_fmt, stream.framerate = "yuv420p", 10
    stream.time_base = Fraction(1, 10)
    stream.options = {"tune": "zerolatency", "bf": "0"}
    pictures = [np.full((*size_hw, 3), 30 * number, np.uint8) for number in range(count)]
    frames = [av.VideoFrame.from_ndarray(pixels, format="bgr24") for pixels in pictures]
    for number, frame in enumerate(frames):
        frame.pts = number
    found = [bytes(packet) for frame in [*frames, None] for packet in stream.encode(frame)]
    assert len(found) == count
    return found


def foxglove_json(path, schema, messages, topic="/cam/video"):
    """A recording of Foxglove's messages as JSON: (fields, time)."""
    from mcap.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema_id = writer.register_schema(schema, "jsonschema", b"{}")
        channel = writer.register_channel(topic, "json", schema_id)
        for fields, time_ns in messages:
            writer.add_message(channel, time_ns, json.dumps(fields).encode(), time_ns)
        writer.finish()
    return path


def _foxglove_class(name):
    """Foxglove's message, as its .proto says (foxglove/foxglove-sdk, schemas/proto)."""
    video = ("timestamp", "frame_id", "data", "format")
    names = ("timestamp", "data", "format", "frame_id") if name == "CompressedImage" else video
    kinds = {"timestamp": "TYPE_MESSAGE", "data": "TYPE_BYTES"}
    fields = [
        {"name": one, "number": number, "type": kinds.get(one, "TYPE_STRING")}
        for number, one in enumerate(names, 1)
    ]
    fields[0]["typeName"] = ".google.protobuf.Timestamp"
    file = {
        "name": f"foxglove/{name}.proto", "package": "foxglove", "syntax": "proto3",
        "dependency": ["google/protobuf/timestamp.proto"],
        "messageType": [{"name": name, "field": fields}],
    }  # fmt: skip
    made = json_format.ParseDict(file, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(made)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"foxglove.{name}"))


def foxglove_protobuf(path, name, messages, topic="/cam"):
    """A recording of Foxglove's messages as Protobuf: (bytes, format, time)."""
    from mcap_protobuf.writer import Writer

    kind = _foxglove_class(name)
    with path.open("wb") as file, Writer(file) as writer:
        for data, format_, time_ns in messages:
            message = kind(frame_id="cam", data=data, format=format_)
            message.timestamp.seconds, message.timestamp.nanos = divmod(time_ns, 10**9)
            writer.write_message(topic, message, time_ns + 5, time_ns + 5)
    return path


def ros1(path, name, messages, topic="/cam"):
    """A recording as `mcap convert` makes it of a bag: (fields after the header, time)."""
    from mcap.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file)
        writer.start("ros1")
        schema = writer.register_schema(name, "ros1msg", b"Header header")
        channel = writer.register_channel(topic, "ros1", schema)
        for number, (fields, time_ns) in enumerate(messages):
            head = struct.pack("<III", number, *divmod(time_ns, 10**9)) + counted(b"cam")
            writer.add_message(channel, time_ns + 5, head + fields, time_ns + 5)
        writer.finish()
    return path


def counted(data):
    """Bytes behind their number, as ROS 1 writes strings and arrays."""
    return len(data).to_bytes(4, "little") + data
