"""A stamp says which weights made a mask, and nothing else may make it."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from sam2_core.backends.model_folder import ModelFolder
from sam2_core.backends.onnxruntime_backend import OnnxRuntimeBackend
from sam2_core.cache import file_sha256
from sam2_core.types import AutolabelError
from tests.planted_graphs import as_exported

MICRO = Path(__file__).parents[1] / "data" / "micro"


@pytest.fixture
def micro(tmp_path, own_cache):
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
    from sam2_core.find_weights import resolve_weights

    path = tmp_path / "weights.pt"
    path.write_bytes(np.zeros(9).tobytes())
    monkeypatch.setattr("sam2_core.find_weights.load_checkpoint", rewrite)
    weights = resolve_weights(path)
    with pytest.raises(AutolabelError, match=r"checkpoint .* was replaced"):
        weights.load()
