"""What a machine is tested for before its worker takes work."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.machine import self_test
from flows.machine.self_test import check_host, device_offers
from sam2_core import backend_choice, devices
from sam2_core.types import AutolabelError


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path, own_cache):
    """Folders of a worker that is well."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(self_test, "WRITTEN_BYTES", 1 << 20)
    return tmp_path


TEST = [sys.executable, "-m", "flows.machine.self_test"]


def failing(monkeypatch, module, name, part, code):
    """Let a function of the system fail for paths, or files, with this part."""
    works = getattr(module, name)

    def fails(what, *given, **options):
        path = str(Path(f"/proc/self/fd/{what}").readlink()) if isinstance(what, int) else str(what)
        if part in path:
            raise OSError(code, os.strerror(code))
        return works(what, *given, **options)

    monkeypatch.setattr(module, name, fails)


def test_a_machine_that_is_well_has_no_problem_and_keeps_nothing(machine):
    check_host()
    for folder in ("temporary", "cache"):
        assert list((machine / folder).iterdir()) == []


@pytest.mark.parametrize("folder", ["temporary", "cache"])
def test_a_disk_that_takes_nothing_is_a_problem(monkeypatch, machine, folder):
    failing(monkeypatch, os, "fsync", str(machine / folder), errno.ENOSPC)
    expected = f"{machine / folder} cannot be written: No space left on device"
    with pytest.raises(AutolabelError, match=expected):
        check_host()


def test_a_machine_without_memory_takes_no_work(monkeypatch):
    monkeypatch.setattr(self_test, "LEAST_MEMORY_BYTES", 1 << 60)
    with pytest.raises(AutolabelError, match="memory is short: "):
        check_host()


def test_the_test_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(backend_choice, "tensorrt_problem", lambda: "not here")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    absent = subprocess.run(TEST, capture_output=True, text=True, check=False)
    assert (absent.returncode, absent.stdout) == (1, "")
    assert "the driver shows no GPU 0" in absent.stderr.splitlines()[-1]
    monkeypatch.setattr(devices, "cuda_devices", lambda: 1)
    with pytest.raises(AutolabelError, match="GPU 0 is there, but"):
        device_offers()


def test_a_device_without_nvrtc_cuts_no_frames_and_is_refused(monkeypatch):
    def without_nvrtc():
        raise AutolabelError("NVRTC cannot be used: make setup EXTRAS=gpu brings it")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(devices, "cuda_devices", lambda: 1)
    offered = ("torch", "onnxruntime-cuda", "onnxruntime-cpu")
    monkeypatch.setattr(backend_choice, "offered_backends", lambda: offered)
    monkeypatch.setattr("sam2_core.backends.gpu.process_gpu", without_nvrtc)
    with pytest.raises(
        AutolabelError, match="GPU 0 failed: NVRTC cannot be used: make setup EXTRAS=gpu"
    ):
        device_offers()
