"""Pieces in processes of their own: the same labels, and a process that dies costs none."""

import contextlib
import os
import queue
import subprocess
import sys
from contextvars import ContextVar
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from flows import pipeline
from flows.pipeline import label_block
from sam2_core.machine import DEVICE_PROCESSES
from sam2_core.types import AutolabelError, DeviceLostError, DeviceMemoryError, MachineError
from tasks.frames.discover import FoundSequence
from tasks.observe.progress import DETECT, SEGMENT, Listener
from tasks.pipeline.chunk import ChunkState, detect_chunk, download_chunk, segment_chunk
from tasks.pipeline.device_processes import (
    DeviceProcesses,
    ProcessDiedError,
    ProcessKilledError,
    carried,
    labeled_beside,
    ready,
    wanted_processes,
    warm_in_background,
)
from tests.conftest import REPOSITORY
from tests.integration.cluster import wait_for
from tests.pipeline.fateful_steps import (
    ends_always,
    ends_once,
    is_killed,
    lacks_memory,
    loses_the_device,
    who,
)
from tests.pipeline.test_machine_errors import FRAMES, chunk_of, job_of, source, with_params

__all__ = ["source"]  # the fixture

pytestmark = pytest.mark.timeout(180)


class Heard(Listener):
    def __init__(self):
        self.frames, self.chunks = {}, []

    def chunk_done(self, seconds, instances):
        self.chunks.append(instances)

    def advanced(self, stage, frames, kept):
        self.frames[stage] = self.frames.get(stage, 0) + (0 if kept else frames)


def test_what_threads_of_a_run_log_is_told_to_be_of_it(monkeypatch):
    """Prefect knows whose a line is by the context of the thread that logs it."""
    run, seen = ContextVar("run", default=""), queue.Queue()
    monkeypatch.setattr(pipeline, "detect_and_segment", lambda *_: seen.put(run.get()))
    segmenters = SimpleNamespace(load=lambda _: seen.put(run.get()))
    model, context = SimpleNamespace(backend="torch"), SimpleNamespace(segmenters=segmenters)
    job = SimpleNamespace(model=model, params=SimpleNamespace(boxes="b"), context=context)
    before = run.set("this")
    pipeline.label_chunks(job, [None, None])
    warm_in_background(job)
    run.reset(before)
    assert [seen.get(timeout=60) for _ in range(3)] == ["this"] * 3


@pytest.mark.parametrize("imported", [False, True])
def test_chunks_labeled_by_processes_are_as_those_labeled_here(source, monkeypatch, imported):
    here, beside = (job_of(source, imported=imported) for _ in range(2))
    beside = with_params(beside, out=str(source / "beside"))
    begun = download_chunk(here, chunk_of(here, source))
    expected = segment_chunk(here, detect_chunk(here, begun))
    heard = Heard()
    monkeypatch.setenv(DEVICE_PROCESSES.name, "2")
    with beside.context.progress.listening(heard), ready(beside):
        chunk = chunk_of(beside, source)
        (state,) = label_block(beside, FoundSequence("drive", "x", work=(chunk,)), 0, 1)
        assert not beside.context.segmenters._loaded  # it was not this process
        beside.context.processes.run = None  # a chunk that is complete goes to no process
        there = replace(chunk, tables=frozenset({"frames"}))
        (again,) = label_block(beside, FoundSequence("drive", "x", work=(there,)), 0, 1)
        assert (again.record, again.computed) == (state.record, False)
        beside.context.processes.__dict__.pop("run")
    assert beside.context.processes is None
    assert state.record == expected.record
    assert heard.frames[DETECT] == heard.frames[SEGMENT] == FRAMES
    assert heard.chunks == [expected.record.instances]
    for name in ("masks", "frames"):
        path = state.chunk.path(name)
        assert (source / "beside" / path).read_bytes() == (source / "out" / path).read_bytes()


def test_one_process_with_a_gpu_leaves_loading_to_another(source, monkeypatch):
    monkeypatch.delenv(DEVICE_PROCESSES.name, raising=False)
    job = job_of(source)
    job = replace(job, model=replace(job.model, backend="triton"))
    with ready(job), ready(job):
        assert job.context.processes is None
        assert job.context.loader.run(who) != os.getpid()
    assert job.context.loader is None
    monkeypatch.setenv(DEVICE_PROCESSES.name, "0")
    with ready(job):
        assert job.context.loader is None


@pytest.fixture(autouse=True)
def no_database(monkeypatch):
    """Processes that are for loading would start a database that outlives them."""
    nobody = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50"
    monkeypatch.setenv("FIFTYONE_DATABASE_URI", nobody)


@pytest.fixture
def pool():
    """A function that makes processes, which end with the test."""
    with contextlib.ExitStack() as made:

        def make(count):
            processes = DeviceProcesses(count, None)
            made.callback(processes.end)
            return processes

        yield make


@pytest.mark.ci
def test_a_step_whose_process_dies_is_done_once_more_in_another(pool, tmp_path, caplog):
    processes = pool(1)
    assert processes.run(ends_once, str(tmp_path / "marker"), 5) == (5, True)
    with pytest.raises(ProcessDiedError, match="exit code 9"):
        processes.run(ends_always)
    assert processes.run(who) != os.getpid()  # what comes next is done
    assert "here is" in caplog.text  # what is logged there is heard here
    with pytest.raises(ProcessKilledError, match=r"killed .signal 9., as the system does where"):
        processes.run(is_killed)
    assert "runs out: once more, in another process" in caplog.text
    with pytest.raises(DeviceLostError):  # new processes lose the device, too
        processes.run(loses_the_device)


def test_a_device_that_new_processes_lose_too_is_lost_to_the_run(source, pool):
    job = job_of(source)
    state = ChunkState(chunk_of(job, source))
    with pytest.raises(DeviceLostError):
        labeled_beside(pool(1), job, [state], loses_the_device)
    assert job.context.lost
    with pytest.raises(DeviceLostError):
        labeled_beside(None, job, [state], loses_the_device)  # no process is asked any more


def test_a_device_without_memory_for_all_its_processes_is_told(source, pool):
    job = job_of(source)
    state = ChunkState(chunk_of(job, source))
    told = f"no memory left; fewer processes need less: {DEVICE_PROCESSES.name}, 1 now"
    with pytest.raises(DeviceMemoryError, match=told):
        labeled_beside(pool(1), job, [state], lacks_memory)


def test_an_error_comes_back_with_its_causes_and_one_that_cannot_be_sent_in_words():
    class Local(Exception):
        pass

    error, cause = RuntimeError("it broke"), OSError(5, "Input/output error")
    error.__cause__, cause.__cause__ = cause, Local("CUDA error: gone")
    cause.__cause__.add_note(DETECT)
    first, second, third = carried(error)
    assert (type(first), type(second), second.errno) == (RuntimeError, OSError, 5)
    assert "CUDA error: gone" in str(third)
    assert third.__notes__ == [DETECT]
    assert carried(RuntimeError("CUDA error: gone", Local()))[0].__class__ is MachineError


RUN = """
import time
from tasks.pipeline.device_processes import DeviceProcesses
from tests.pipeline.fateful_steps import who

if __name__ == "__main__":
    processes = DeviceProcesses(2, None)
    print(processes.run(who), flush=True)
    time.sleep(60)
"""


def test_processes_end_with_the_run_that_is_killed(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(RUN)
    run = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert run.stdout.readline().strip()
    children = psutil.Process(run.pid).children(recursive=True)
    assert len(children) >= 2
    run.kill()
    run.wait()
    wait_for(lambda: not psutil.wait_procs(children, timeout=0.1)[1], 20)


def test_several_processes_are_for_gpus_with_cores_and_memory(monkeypatch):
    monkeypatch.delenv(DEVICE_PROCESSES.name, raising=False)
    assert wanted_processes("onnxruntime-cpu") == 0
    module = "tasks.pipeline.device_processes"
    for cores, gib, count in ((16, 139, 4), (16, 24, 3), (16, 8, 0), (8, 139, 2), (4, 139, 0)):
        monkeypatch.setattr(f"{module}.usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr("sam2_core.devices.device_memory_bytes", lambda gib=gib: gib << 30)
        assert wanted_processes("onnxruntime-cuda") == count
    monkeypatch.setenv(DEVICE_PROCESSES.name, "1.5")
    with pytest.raises(AutolabelError, match=f"{DEVICE_PROCESSES.name}=1.5: expected how many"):
        wanted_processes("onnxruntime-cpu")
