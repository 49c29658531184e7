"""Loading that does not come back is ended, and the error says where it stood."""

import pytest

from sam2_core.serving.repository import RepositoryOptions, write_repository
from sam2_core.serving.server_model import ModelSettings
from sam2_core.serving.server_process import ServerOptions, TritonServer, find_server, new_prefix
from sam2_core.types import AutolabelError
from tests.integration.cluster import free_port
from tests.sam2_core.serving.conftest import MICRO

# The generated model, whose loading waits for ever in C, holding Python's lock.
_HANGS = """
import ctypes
from sam2_core.serving.server_model import ServerModel

class TritonPythonModel(ServerModel):
    def prepare(self):
        ctypes.PyDLL(None).pause()
"""


@pytest.fixture
def installed():
    try:
        return find_server()
    except AutolabelError as error:
        pytest.skip(str(error))


@pytest.mark.ci
def test_a_model_that_never_loads_is_ended_and_says_where_it_stood(installed, tmp_path):
    repository = tmp_path / "repository"
    options = RepositoryOptions(
        ModelSettings(backend="onnxruntime-cpu", store=str(tmp_path / "store"), loading_s=2)
    )
    names = write_repository(repository, [str(MICRO)], options)
    (repository / names[0] / "1" / "model.py").write_text(_HANGS)
    options = ServerOptions(grpc_port=free_port())
    server = TritonServer(
        installed, repository, names[:1], options, prefix=new_prefix(), log=tmp_path / "log",
        loading_s=2,
    )  # fmt: skip
    try:
        with pytest.raises(AutolabelError, match="was not loaded within 2 s") as caught:
            server.wait_ready()
    finally:
        server.stop()
    assert f"/{names[0]}/1/model.py" in str(caught.value)
    assert "in prepare" in str(caught.value)
    assert "within 2 s" in str(caught.value)
