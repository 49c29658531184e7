"""Modules compiled ahead of time, on the CPU; on a GPU: tests/gpu/test_torch_compiled.py."""

import gc
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import types
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from sam2_core.backends import torch_toolchain  # noqa: E402
from sam2_core.backends.torch_artifact import LoadedArtifact, mapped_files  # noqa: E402
from sam2_core.backends.torch_compiled import CompiledModules  # noqa: E402
from sam2_core.backends.torch_modules import build_modules  # noqa: E402
from sam2_core.resolve import Wanted, resolve_weights  # noqa: E402
from sam2_core.types import AutolabelError  # noqa: E402

CPU = torch.device("cpu")
ABOUT = {"preset": "none"}
INPUTS = (torch.linspace(-1, 1, 8).reshape(2, 4), torch.ones(3))


class Small(torch.nn.Module):
    """Weights that a compiler would like to make a part of its code: equal, small and scalar."""

    def __init__(self, fill: float | None = None) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.register_buffer("few", torch.zeros(3))
        self.register_buffer("one", torch.ones(()), persistent=False)
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.requires_grad_(False)
            if fill is None:
                tensor.normal_()
            else:
                tensor.fill_(fill)

    def forward(self, x, shift):
        y = self.norm(self.linear(x)) * self.one
        return torch.relu(y), y[:, :3] * self.few + shift


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def compiled(folder, module, inputs=INPUTS):
    return CompiledModules(folder, ABOUT, CPU).function("small", module, inputs)


def assert_same(function, module):
    for found, expected in zip(function(*INPUTS), module(*INPUTS), strict=True):
        torch.testing.assert_close(found, expected)


def artifact(folder, module=None, inputs=INPUTS, **about):
    module = module or Small()
    return CompiledModules(folder, ABOUT | about, CPU).artifact("small", module, inputs)


def test_an_artifact_is_of_shapes_model_and_code_not_of_weights(tmp_path, monkeypatch):
    first = artifact(tmp_path)
    assert artifact(tmp_path, Small(1.0)) == first
    wider = Small()
    wider.few = torch.zeros(1)
    others = {
        artifact(tmp_path, preset="other"),
        artifact(tmp_path, inputs=(INPUTS[0].double(), INPUTS[1])),
        artifact(tmp_path, inputs=(INPUTS[0].t().contiguous().t(), INPUTS[1])),
        artifact(tmp_path, inputs=(INPUTS[0][:1], INPUTS[1])),
        artifact(tmp_path, Small().half()),
        artifact(tmp_path, wider),
    }
    monkeypatch.setattr(torch, "__version__", "0.1")
    others.add(artifact(tmp_path))
    monkeypatch.undo()
    monkeypatch.setattr("sam2_core.backends.torch_compiled.source_digest", lambda names: "code")
    others.add(artifact(tmp_path))
    assert len(others - {first}) == 8


def test_the_architecture_is_a_part_of_the_key(monkeypatch, tmp_path):
    read = []
    monkeypatch.setattr(
        "sam2_core.backends.torch_compiled.source_digest", lambda names: read.extend(names) or ""
    )
    artifact(tmp_path)
    assert {"sam2_core.architecture.lean_decoder", "sam2_core.backends.torch_modules"} <= {*read}


@pytest.mark.ci
def test_without_a_compiler_every_process_compiles_and_that_is_said_once(
    tmp_path, monkeypatch, caplog
):
    from torch._inductor import config

    monkeypatch.setattr(torch.export, "export", lambda *_: pytest.fail("traced in vain"))
    functions = CompiledModules(tmp_path, ABOUT, CPU)
    with config.patch({"cpp.cxx": ("/nonexistent/g++",)}):
        for _ in range(2):
            found = functions.function("small", Small(), INPUTS)
            assert not isinstance(found, LoadedArtifact)
    (told,) = [r.getMessage() for r in caplog.records if "every process" in r.getMessage()]
    assert "no C++ compiler" in told
    assert not list(tmp_path.glob("small*"))


def test_memory_that_does_not_suffice_is_not_taken_for_a_failed_compilation(tmp_path, monkeypatch):
    functions = CompiledModules(tmp_path, ABOUT, CPU)

    def full(*_):
        try:
            raise torch.OutOfMemoryError("no memory")
        except torch.OutOfMemoryError as error:
            raise RuntimeError("while compiling") from error

    monkeypatch.setattr(functions, "_compile", full)
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        functions.function("small", Small(), INPUTS)


@pytest.mark.parametrize("graph", ["restructured", "published"])
def test_the_models_hold_every_tensor_where_artifacts_are_given_it(graph):
    model = resolve_weights("random:micro", Wanted(graph=graph)).load()
    modules = build_modules(model, graph, torch.float32, "cpu")
    parts = [
        part
        for module in (modules.encoder, modules.decoder, modules.decoder_single)
        for part in module.modules()
    ]
    assert len(parts) > 100
    for part in parts:
        assert not [name for name, value in vars(part).items() if isinstance(value, torch.Tensor)]


class Failing:
    """A loader whose device fails in the way that is given."""

    def __init__(self, monkeypatch, problem: str) -> None:
        self.counts = iter([3, 4 if problem == "memory" else 3])
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"num_ooms": next(self.counts)})
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: problem == "capture")
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)

    def synchronize(self):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def run(self, inputs):
        raise RuntimeError("run_func_ API call failed at model_container_runner.cpp, line 153")


@pytest.mark.parametrize(
    ("problem", "kind", "told"),
    [
        ("memory", torch.OutOfMemoryError, "out of memory"),
        ("sticky", RuntimeError, "illegal memory access"),
        ("capture", RuntimeError, "API call failed"),
    ],
)
def test_a_failure_on_the_device_is_told_by_its_own_name(monkeypatch, problem, kind, told):
    loaded = object.__new__(LoadedArtifact)
    loaded._loader = Failing(monkeypatch, problem)
    with pytest.raises(kind, match=told) as caught:
        loaded(types.SimpleNamespace(is_cuda=True))
    assert isinstance(caught.value, torch.OutOfMemoryError) == (problem == "memory")


def test_headers_of_python_packages_do_where_they_are_complete(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    spec = types.SimpleNamespace(submodule_search_locations=["/nowhere", str(tmp_path)])
    monkeypatch.setattr(torch_toolchain, "find_spec", lambda name: spec)
    include = tmp_path / "cu13" / "include"
    (include / "nv").mkdir(parents=True)
    (include / "cuda.h").touch()
    (include / "nv" / "target").touch()
    with pytest.raises(AutolabelError, match=r"no CUDA toolkit.*nvidia-cuda-crt"):
        torch_toolchain._cuda_headers()
    (include / "crt").mkdir()
    assert torch_toolchain._cuda_headers() == str(tmp_path / "cu13")


@pytest.mark.parametrize("before", [None, "/own"])
def test_the_linker_finds_the_libraries_that_are_loaded(tmp_path, monkeypatch, before):
    loaded = {"libcuda.so": "libcuda.so.580.1", "libloaded_stdcxx.so": "libstdc++.so.6.0.33"}
    (tmp_path / "of_system").mkdir()
    paths = [tmp_path / "of_system" / name for name in loaded.values()]
    for path in paths:
        path.write_text(path.name)
    files = ["/lib/libc.so.6", *map(str, paths)]
    monkeypatch.setattr(torch_toolchain, "mapped_files", lambda: files)
    monkeypatch.setenv("LIBRARY_PATH", before or "")
    if before is None:
        monkeypatch.delenv("LIBRARY_PATH")
    with torch_toolchain.libraries_to_link(tmp_path) as libraries:
        *first, last = os.environ["LIBRARY_PATH"].split(os.pathsep)
        assert first == ([before] if before else [])
        assert {link: (Path(last) / link).read_text() for link in loaded} == loaded
        assert libraries == ["loaded_stdcxx"]
    assert os.environ.get("LIBRARY_PATH") == before


def test_nothing_is_linked_that_is_not_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_toolchain, "mapped_files", list)
    with torch_toolchain.libraries_to_link(tmp_path) as libraries:
        assert libraries == []
    assert list(tmp_path.iterdir()) == []


def test_the_libraries_of_this_process_are_known():
    assert any("libtorch_cpu" in path for path in mapped_files())


needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler: g++")


# Links the static C++ library, as a compiler does that does not find the shared one.
STATIC = """#!/bin/sh
case " $* " in
*" -shared "*) exec g++ "$@" -static-libstdc++ ;;
*) exec g++ "$@" ;;
esac
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the artifact of a module whose weights are all alike."""
    from torch._inductor import config

    folder = tmp_path_factory.mktemp("cache") / "torch"
    static = script(folder.with_name("static-g++"), STATIC)
    with pytest.MonkeyPatch.context() as patched, config.patch({"cpp.cxx": (static,)}):
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder.with_name("inductor")))
        assert isinstance(compiled(folder, Small(1.0)), LoadedArtifact)
    return folder


def unpacked(path, folder):
    """Return the one shared library of an artifact."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    (library,) = folder.rglob("*.so")
    return library


@pytest.mark.ci
@needs_compiler
def test_an_artifact_uses_the_cpp_library_of_its_process(made, tmp_path):
    (path,) = made.glob("*.pt2")
    command = ["nm", "--dynamic", str(unpacked(path, tmp_path))]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    facets = [line.split()[-2:] for line in listed.splitlines() if "5ctypeIcE2id" in line]
    assert [kind for kind, _ in facets] == ["U"], listed
    assert "codecvt" not in listed  # no part of an own locale


@pytest.mark.ci
@needs_compiler
def test_an_artifact_serves_any_weights_without_tracing(made, monkeypatch):
    monkeypatch.setattr(torch.export, "export", lambda *_: pytest.fail("traced"))
    for module in (Small(1.0), Small(), Small()):
        assert_same(compiled(made, module), module)


LOAD = """
import os, sys, torch
from pathlib import Path
from tests.sam2_core.test_torch_compiled import Small, compiled, assert_same
torch.manual_seed(1)
module = Small()
function = compiled(Path(sys.argv[1]), module)
compiler = [name for name in ("_dynamo", "_inductor") if f"torch.{name}" in sys.modules]
print(type(function).__name__, compiler)
assert_same(function, module)
sys.stdout.flush()
os._exit(0)
"""


def run(folder, **env):
    return subprocess.Popen(
        [sys.executable, "-c", LOAD, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=Path(__file__).parents[2], env=os.environ | env,
    )  # fmt: skip


@pytest.mark.ci
@needs_compiler
def test_a_warm_start_imports_no_compiler_and_leaves_no_files(made):
    (path,) = made.glob("small*.pt2")
    told, problems = run(made).communicate()
    assert told == "LoadedArtifact []\n", problems
    assert not list(Path(tempfile.gettempdir()).glob(f"*/{path.stem}"))


@pytest.mark.ci
@needs_compiler
def test_the_weights_are_released_with_the_function(made):
    module = Small()
    weights = module.linear.weight.untyped_storage()

    def users():
        return torch._C._storage_Use_Count(weights._cdata)

    before = users()
    function = compiled(made, module)
    assert users() > before
    del function
    gc.collect()
    assert users() == before


@pytest.mark.ci
@needs_compiler
def test_a_damaged_artifact_is_compiled_again_by_one_of_two_processes(made, tmp_path):
    folder = tmp_path / "torch"
    shutil.copytree(made, folder)
    (path,) = folder.glob("*.pt2")
    path.write_bytes(path.read_bytes()[:-1000])
    cache = str(made.with_name("inductor"))
    both = [run(folder, TORCHINDUCTOR_CACHE_DIR=cache) for _ in range(2)]
    found = [one.communicate() for one in both]
    assert [told.split()[0] for told, _ in found] == ["LoadedArtifact"] * 2, found
    problems = "".join(problem for _, problem in found)
    assert problems.count("its content is not what was written): it is compiled again") == 1
    assert problems.count("waiting for another process") <= 1
    assert {one.suffix for one in folder.glob("small*")} == {".pt2", ".sha256"}


@pytest.mark.ci
@needs_compiler
def test_an_artifact_that_does_not_run_is_remembered(made, tmp_path, monkeypatch, caplog):
    folder = tmp_path / "torch"
    shutil.copytree(made, folder)
    (path,) = folder.glob("*.pt2")

    def no(*_):
        raise RuntimeError("no kernel image")

    monkeypatch.setattr("sam2_core.backends.torch_compiled.LoadedArtifact", no)
    monkeypatch.setattr(
        CompiledModules, "_compile", lambda self, path, *_: shutil.copy(made / path.name, path)
    )
    for _ in range(2):
        compiled(folder, Small())
        monkeypatch.setattr(CompiledModules, "_compile", lambda *_: pytest.fail("compiled again"))
    told = [r.getMessage() for r in caplog.records if "every process" in r.getMessage()]
    assert len(told) == 2
    assert all("no kernel image" in text for text in told)
    assert path.with_suffix(".refused").read_text().startswith("no kernel image (`autolabel")


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        RuntimeError("Failed to extract zip file, mz_zip error string: write callback failed"),
    ],
)
def test_a_sound_artifact_is_kept_where_the_machine_cannot_load_it(
    tmp_path, monkeypatch, caplog, error
):
    path = artifact(tmp_path)
    path.write_bytes(b"sound")
    path.with_suffix(".sha256").write_text(hashlib.sha256(b"sound").hexdigest())

    def cannot(*_):
        raise error

    monkeypatch.setattr("sam2_core.backends.torch_compiled.LoadedArtifact", cannot)
    monkeypatch.setattr(torch.export, "export", lambda *_: pytest.fail("compiled again"))
    assert not isinstance(compiled(tmp_path, Small()), LoadedArtifact)
    assert "cannot be loaded" in caplog.text  # compiled in this process, for now
    assert {one.suffix for one in tmp_path.glob("small*")} == {".pt2", ".sha256"}
