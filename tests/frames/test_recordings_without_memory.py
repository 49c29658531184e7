"""What a recording says is one thing, what memory this machine has is another."""

import errno
from pathlib import Path
from types import SimpleNamespace

import av.error
import mcap.stream_reader
import pytest
import zstandard

from sam2_core.types import MachineError
from tasks.frames.mcap_pictures import PacketDecoder, messages_in
from tests.frames import recordings


@pytest.fixture
def drive(tmp_path):
    return recordings.drive(tmp_path / "a.mcap", chunk_size=20_000)


def read(path: Path):
    with path.open("rb") as file:
        return list(messages_in(file))


def test_memory_that_a_chunk_lacks_is_no_damage(drive, monkeypatch):
    def none(*_, **__):
        raise MemoryError

    monkeypatch.setattr(mcap.stream_reader, "breakup_chunk", none)
    with pytest.raises(MachineError, match="reading a recording: MemoryError"):
        read(drive)


def test_a_chunk_that_asks_for_all_memory_is_damaged(drive):
    whole = [one for one in read(drive) if not isinstance(one, str)]
    data = drive.read_bytes()
    magic = b"\x28\xb5\x2f\xfd"  # of zstd; the size of the content comes next
    start = data.index(magic, data.index(magic) + 4)  # the first chunk names the channels
    changed = bytearray(data)
    changed[start + 4] |= 0xC0  # of eight bytes
    changed[start + 5 : start + 13] = (2**62).to_bytes(8, "little")
    with pytest.raises(MemoryError):
        zstandard.decompress(bytes(changed[start:]))
    drive.write_bytes(changed)
    found = read(drive)
    assert 0 < len([one for one in found if not isinstance(one, str)]) < len(whole)
    assert any("is damaged" in one for one in found if isinstance(one, str))


def test_memory_that_a_video_lacks_is_no_damage(monkeypatch):
    class Full:
        error = errno.ENOMEM

        def decode(self, packet):
            av.error.err_check(-self.error)

    monkeypatch.setattr(av, "CodecContext", SimpleNamespace(create=lambda *_: Full()))
    decoder = PacketDecoder(lambda number: True)
    with pytest.raises(MachineError, match="decoding a video"):
        list(decoder.feed(0, 0, "h264", b"\0\0\1"))
    with pytest.raises(MachineError, match="decoding a video"):
        list(decoder.end())
    monkeypatch.setattr(Full, "error", errno.EINVAL)
    (shot,) = decoder.feed(1, 0, "h264", b"\0\0\1")
    assert "cannot be decoded" in shot.problem
