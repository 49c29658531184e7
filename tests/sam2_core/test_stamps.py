"""A stamp says which weights and which code made a mask, and nothing else may make it."""

import ast
import gc
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sam2_core import decisive_code
from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import OnnxRuntimeBackend
from sam2_core.cache import file_sha256
from sam2_core.decisive_code import (
    ROOT,
    decisive_modules,
    decisive_source,
    following_modules,
    mask_code,
    source_digest,
)
from sam2_core.types import AutolabelError
from tests.planted_graphs import as_exported

MICRO = ROOT / "tests" / "data" / "micro"

# Reached when masks are made, and no mask depends on them. Why:
NOT_DECISIVE = {
    "arrays": "refuses values; changes none",
    "backends.device_owner": "which thread works",
    "backends.model_folder": "finds files; their content is in the stamp",
    "backends.onnx_batches": "of detectors' networks",
    "backends.protocol": "declarations",
    "backends.triton_backend": "carries; masks are those of the server's backend, which is stamped",
    "serving.contract": "names",
    "serving.client": "carries",
    "serving.transport": "carries",
    "cache": "finds files",
    "decisive_code": "the list itself, and the digest",
    "mask_geometry": "outlines of masks that are made",
    "model_download": "finds files; their content is in the stamp",
    "export": "makes graph files; their content is in the stamp",
    "frame_loop": "order and threads; frames go through the segmenter one by one",
    "images": "reads pictures that are no frames",
    "backend_choice": "the backend that it chooses is in the stamp",
    "load": "loads what is listed",
    "machine": "texts; how many threads and processes, which ports",
    "machine_errors": "errors",
    "presets": "sizes; those of graphs and checkpoints are in their files",
    "redaction": "texts",
    "trust.calibration": "judges; makes no mask",
    "trust.certify": "judges and refuses; makes no mask",
    "trust.following": "judges and refuses; makes no mask",
    "trust.torch_judge": "judges; makes no mask",
    "types": "declarations",
}  # fmt: skip


def source_of(module):
    path = ROOT.joinpath("sam2_core", *module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports_of(module):
    for node in ast.walk(ast.parse(source_of(module).read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            own = name.removeprefix("sam2_core.")
            if own != name and source_of(own).is_file():
                yield own


def test_every_module_that_labeling_reaches_decides_masks_or_says_why_not():
    seen, todo = set(), ["load", "frame_loop", "segmenter", "follow"]
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo += imports_of(module)
    reached = {module for module in seen if source_of(module).name != "__init__.py"}
    listed = {
        name.removeprefix("sam2_core.")
        for backend in decisive_code._BACKENDS
        for name in (*decisive_modules(backend), *following_modules())
    }
    assert not listed & set(NOT_DECISIVE)
    assert reached - listed - set(NOT_DECISIVE) == set(), (
        "new modules: list them in sam2_core/decisive_code.py, or here with the reason why no mask "
        "depends on them"
    )
    assert (listed | set(NOT_DECISIVE)) - reached == set(), "no longer there"


SOURCE = '''"""What it does."""

import numpy as np


def mask(x: float) -> bool:
    """Say it."""
    # why
    return x > 0.5  # the bound
'''


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# why", "# another reason"), ("  # the bound", ""), ("Say it.", "Say it.\n\n    Twice."),
        ("What it does.", "What else."), ("import numpy as np", "from numpy import array"),
        ("\n\n\n", "\n"), ("x > 0.5", "x > 0.5   "),
    ],
)  # fmt: skip
def test_words_about_the_code_are_not_the_code(before, after):
    assert before in SOURCE
    assert decisive_source(SOURCE.replace(before, after)) == decisive_source(SOURCE)


@pytest.mark.parametrize(
    ("before", "after"), [("0.5", "0.4"), ("x >", "x >="), ("    return", "    x += 1\n    return")]
)
def test_any_change_of_the_code_is_another_stamp(tmp_path, monkeypatch, before, after):
    assert decisive_source(SOURCE.replace(before, after)) != decisive_source(SOURCE)
    monkeypatch.setattr("sam2_core.decisive_code.ROOT", tmp_path)
    digests = set()
    for text in (SOURCE, SOURCE.replace(before, after)):
        (tmp_path / "one.py").write_text(text)
        source_digest.cache_clear()
        digests.add(source_digest(("one",)))
    source_digest.cache_clear()
    assert len(digests) == 2


class Garbage:
    """What lets other threads run while it is collected, wherever that is."""

    def __init__(self):
        self.me = self

    def __del__(self):
        time.sleep(0)


def test_threads_read_sources_at_once():
    text, often = source_of("decisive_code").read_text(), gc.get_threshold()
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(4) as pool:
            # Garbage was collected amid a syntax tree, which another thread then broke.
            read = pool.map(lambda _: (Garbage(), decisive_source(text))[1], range(200))
            assert len(set(read)) == 1
    finally:
        gc.set_threshold(*often)


def test_the_stamp_of_a_backend_covers_its_own_code_and_no_other():
    codes = {name: mask_code(name) for name in decisive_code._BACKENDS}
    assert len(set(codes.values())) == len(codes)
    assert mask_code("torch-compiled-2.13") == codes["torch"]
    assert all("postprocess" in " ".join(decisive_modules(name)) for name in codes)


@pytest.fixture
def micro(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOLABEL_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(MICRO, tmp_path / "micro"))


def rewrite(path):
    """Replace a file by one of the same size and time, as a careful copy does."""
    status = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[:-1] + b"\x00")
    other.replace(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)


def test_a_graph_that_is_replaced_while_the_model_is_in_use_is_not_opened(micro):
    backend = OnnxRuntimeBackend(ModelFolder.open(micro))
    stamp = backend.info.stamp
    assert backend._session("decoder")
    rewrite(micro / "decoder_mask.onnx")
    with pytest.raises(AutolabelError, match=r"replaced while it was in use.*run again"):
        backend._session("decoder_mask")
    as_exported(micro / "decoder_mask.onnx")
    assert ModelFolder.open(micro).stamp("onnxruntime-cpu") != stamp


def test_a_file_that_is_replaced_by_one_of_its_size_and_time_is_hashed_anew(micro):
    path = micro / "decoder.onnx"
    before = file_sha256(path)
    rewrite(path)
    assert file_sha256(path) != before


def test_a_checkpoint_that_is_replaced_while_it_is_read_makes_no_labels(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from sam2_core.load import resolve_weights

    path = tmp_path / "weights.pt"
    path.write_bytes(np.zeros(9).tobytes())
    monkeypatch.setattr("sam2_core.load.load_checkpoint", rewrite)
    weights = resolve_weights(path)
    with pytest.raises(AutolabelError, match=r"checkpoint .* was replaced"):
        weights.load()
