"""Artifacts are tried in a child before they count; its crash costs its parent nothing."""

import json
import shutil
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from sam2_core.backends import torch_trial  # noqa: E402
from sam2_core.backends.torch_artifact import (  # noqa: E402
    LoadedArtifact,
    UntriedError,
    UnusableError,
    raise_of_device,
)
from tests.sam2_core.test_torch_compiled import (  # noqa: E402
    CPU,
    INPUTS,
    Small,
    compiled,
    script,
)


@pytest.mark.parametrize(
    ("child", "kind", "told"),
    [
        ("kill -SEGV $$", UnusableError, r"crashes where it is loaded \(signal 11\)"),
        ("kill -KILL $$", UntriedError, "ended by signal 9"),
        ("exec sleep 600", UnusableError, "longer than 0.5 s"),
        ("echo CUDA error: an illegal memory access; exit 1", UnusableError, "illegal memory"),
        ("echo no module >&2; exit 1", UnusableError, "no module"),
        ("echo CUDA out of memory; exit 1", UntriedError, "out of memory"),
        ("echo CUDA error: uncorrectable ECC error; exit 1", UntriedError, "uncorrectable"),
        (
            "echo 'OSError: [Errno 28] No space left on device' >&2; exit 1",
            UntriedError,
            "Errno 28",
        ),
    ],
)
def test_a_trial_that_fails_is_told_and_costs_this_process_nothing(
    tmp_path, monkeypatch, child, kind, told
):
    monkeypatch.setattr(sys, "executable", script(tmp_path / "python", f"#!/bin/sh\n{child}\n"))
    monkeypatch.setattr(torch_trial, "_LIMIT_S", 0.5 if "sleep" in child else 60)
    with pytest.raises(kind, match=told) as caught:
        torch_trial.need_sound(tmp_path / "x.pt2", {}, INPUTS, CPU)
    raise_of_device(caught.value)  # the device of the child, not of this process


def test_a_trial_has_the_layouts_environment_and_path_of_this_process(tmp_path, monkeypatch):
    record = f"cat > {tmp_path}/given; echo $PYTHONPATH $CUDA_VISIBLE_DEVICES > {tmp_path}/env"
    monkeypatch.setattr(sys, "executable", script(tmp_path / "python", f"#!/bin/sh\n{record}\n"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setattr(sys, "path", [*sys.path, "/own/modules"])
    weights = {"w": torch.ones(3, 4).t(), "one": torch.ones(()), "wide": torch.ones(2).expand(3, 2)}
    torch_trial.need_sound(tmp_path / "x.pt2", weights, INPUTS, CPU)
    assert (tmp_path / "env").read_text().endswith("/own/modules 7\n")
    given = json.loads((tmp_path / "given").read_text())
    assert given["device"] == "cpu"
    made = [
        torch_trial._zeros(one, CPU) for one in (*given["constants"].values(), *given["inputs"])
    ]
    for found, wanted in zip(made, (*weights.values(), *INPUTS), strict=True):
        assert (found.shape, found.stride()) == (wanted.shape, wanted.stride())
        assert found.dtype == wanted.dtype


def assert_refused(folder, monkeypatch, caplog, reason):
    """Twice, of which the first compiles in vain, modules are compiled in the process."""
    for _ in range(2):
        module = Small()
        function = compiled(folder, module)
        assert not isinstance(function, LoadedArtifact)
        monkeypatch.setattr(torch.export, "export", lambda *_: pytest.fail("compiled again"))
    told = [r.getMessage() for r in caplog.records if "every process" in r.getMessage()]
    assert len(told) == 2
    assert all(reason in text and "autolabel cache clear torch" in text for text in told)
    kept = {path.suffix for path in folder.iterdir() if not path.name.startswith(".")}
    assert kept == {".refused"}


def test_a_module_that_crashes_in_its_trial_is_compiled_in_every_process(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(
        "torch._inductor.aoti_compile_and_package",
        lambda *_, package_path, inductor_configs: Path(package_path).write_bytes(b"crash"),
    )
    monkeypatch.setattr(torch.export, "export", lambda *_: None)
    monkeypatch.setattr("sam2_core.backends.torch_compiled.need_compilers", lambda device: None)
    child = script(tmp_path / "python", "#!/bin/sh\nkill -SEGV $$\n")
    monkeypatch.setattr(sys, "executable", child)
    assert_refused(tmp_path / "torch", monkeypatch, caplog, "crashes where it is loaded (signal 11")


def test_a_full_disk_of_temporary_files_says_nothing_of_an_artifact(tmp_path, monkeypatch):
    full = types.SimpleNamespace(free=10)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: full)
    child = script(tmp_path / "python", "#!/bin/sh\nkill -BUS $$\n")
    monkeypatch.setattr(sys, "executable", child)
    (tmp_path / "x.pt2").write_bytes(b"0" * 11)
    with pytest.raises(UntriedError, match="cannot be tried on this machine"):
        torch_trial.need_sound(tmp_path / "x.pt2", {}, INPUTS, CPU)
    full.free = 11
    with pytest.raises(UnusableError, match="signal 7"):
        torch_trial.need_sound(tmp_path / "x.pt2", {}, INPUTS, CPU)


CRASH = "#include <csignal>\n__attribute__((constructor)) void crash() { raise(SIGSEGV); }\n"


@pytest.mark.ci
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler: g++")
def test_a_library_that_crashes_takes_its_trial_with_it_and_not_this_process(tmp_path):
    (tmp_path / "crash.cpp").write_text(CRASH)
    library = tmp_path / "crash.so"
    build = ["g++", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "crash.cpp")]
    subprocess.run(build, check=True)
    path = tmp_path / "crash.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("crash/archive_format", "pt2")
        archive.writestr("crash/byteorder", "little")
        archive.writestr("crash/.data/version", "3\n")
        folder = "crash/data/aotinductor/model"
        archive.writestr(f"{folder}/a.wrapper_metadata.json", '{"AOTI_DEVICE_KEY": "cpu"}')
        archive.write(library, f"{folder}/a.wrapper.so")
    with pytest.raises(UnusableError, match=r"crashes where it is loaded \(signal 11\)"):
        torch_trial.need_sound(path, {}, INPUTS, CPU)
