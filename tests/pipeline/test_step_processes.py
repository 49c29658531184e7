"""Steps in processes of their own: the same labels, and a process that dies costs none."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from sam2_core.number_variables import DEVICE_PROCESSES
from sam2_core.types import AutolabelError, DeviceLostError, DeviceMemoryError, MachineError
from tasks.observe.progress import DETECT, SEGMENT, Listener, Progress
from tasks.pipeline import step_interpreters, steps
from tasks.pipeline.chunk import ChunkState, detect_chunk, download_chunk, segment_chunk
from tasks.pipeline.step_interpreters import Expected
from tasks.pipeline.step_pipe import ProcessDiedError, ProcessKilledError, Told
from tasks.pipeline.step_process import carried
from tasks.pipeline.step_processes import StepProcesses, wanted_processes
from tasks.pipeline.warm import warmed
from tasks.store.artifacts import Chunk
from tasks.types import FrameRef
from tests.pipeline.fateful_steps import (
    ends_always,
    ends_and_then_lacks_memory,
    ends_once,
    ends_with_others_once,
    exits,
    fails_untellably,
    is_killed,
    loses_the_device,
    needs_the_device_alone,
    says_what_cannot_be_read,
    who,
)
from tests.pipeline.test_machine_errors import FRAMES, chunk_of, job_of, source

__all__ = ["source"]  # the fixture

pytestmark = pytest.mark.timeout(180)


class Busy:
    """A process that does so many steps of each name: a stand-in."""

    def __init__(self, **doing):
        self.doing = doing

    def busy(self, name):
        return self.doing.get(name, 0), sum(self.doing.values())


def test_a_chunk_stays_in_the_process_that_has_its_frames_unless_that_is_busier():
    one, other = Busy(), Busy(detect=1)
    processes = StepProcesses(2)
    processes._processes = [one, other]
    frame = FrameRef("drive", "", 0, 0, "0.jpg")
    given = [ChunkState(Chunk("key", (frame,)))]
    assert processes._chosen("detect", given) == (one, False)
    one.doing = {"segment": 1, "detect": 4}
    assert processes._chosen("segment", given)[0] is one
    one.doing = {"segment": 2}
    assert processes._chosen("segment", given)[0] is other
    one.doing = {}
    assert processes._chosen("segment", given)[0] is other
    processes._processes = [one]  # the other one has ended
    assert processes._chosen("segment", given)[0] is one
    assert processes._chosen("load", ["no chunk"])[0] is one


class Heard(Listener):
    def __init__(self):
        self.frames = {}
        self.chunks = []

    def chunk_done(self, seconds, instances):
        self.chunks.append(instances)

    def advanced(self, stage, frames, kept):
        self.frames[stage] = self.frames.get(stage, 0) + frames


@pytest.mark.parametrize("before", [False, True])
def test_chunks_labeled_by_processes_are_as_those_labeled_here(source, monkeypatch, before):
    here, beside = job_of(source), job_of(source)
    object.__setattr__(beside, "out_uri", str(source / "beside"))
    begun = download_chunk(here, chunk_of(here, source), ())
    expected = segment_chunk(here, detect_chunk(here, begun))
    heard = Heard()
    monkeypatch.setenv(DEVICE_PROCESSES.name, "2")
    if before:  # with their models, as where the device has plenty of memory
        monkeypatch.setattr(step_interpreters, "free_device_memory_bytes", lambda: 1 << 40)
        step_interpreters.begin(Expected.of(beside, 2))
        assert all(one.expected.load for one in step_interpreters._begun)
    with beside.tools.progress.listening(heard), warmed(beside):
        state = download_chunk(beside, chunk_of(beside, source), ())
        for step in (detect_chunk, segment_chunk):
            state = steps._stepped(beside, step, state)
        assert not beside.tools.segmenters._loaded  # it was not this process
    assert beside.tools.processes is None
    assert state.record == expected.record
    assert heard.frames[DETECT] == heard.frames[SEGMENT] == FRAMES
    for name in ("masks", "frames"):
        path = state.chunk.path(name)
        assert (source / "beside" / path).read_bytes() == (source / "out" / path).read_bytes()


def test_a_step_whose_process_dies_is_done_once_more_in_another(tmp_path, caplog):
    processes = StepProcesses(1)
    try:
        assert processes.run(ends_once, str(tmp_path / "marker"), 5) == (5, True)
        with pytest.raises(ProcessDiedError, match="exit code 9"):
            processes.run(ends_always)
        assert processes.run(who) != os.getpid()  # what comes next is done
        assert "here is" in caplog.text  # what is logged there is heard here
        with pytest.raises(ProcessKilledError, match="memory runs out"):
            processes.run(is_killed)
    finally:
        processes.end()


def test_a_device_that_new_processes_lose_too_is_asked_no_more():
    processes = StepProcesses(1)
    try:
        for _ in range(2):
            with pytest.raises(DeviceLostError):
                processes.run(loses_the_device)
        assert processes.lost
        assert not processes._processes
    finally:
        processes.end()


def test_where_memory_is_too_little_for_several_processes_one_goes_on(tmp_path):
    processes = StepProcesses(2)
    try:
        found = {processes.run(who), processes.run(needs_the_device_alone, str(tmp_path))}
        assert processes.count == 2
        others = [one for one in processes._processes if one._process.pid not in found]
        for one in others:  # the next step is another process's
            one.busy = lambda _: (-1, -1)
        assert processes.run(needs_the_device_alone, str(tmp_path)) in found
        assert processes.count == len(processes._processes) == 1
    finally:
        processes.end()


def test_what_a_second_try_tells_again_is_heard_once():
    progress, heard = Progress(), Heard()
    with progress.listening(heard):
        told = Told(progress)
        told.tell("advanced", (SEGMENT, 3, False))
        told.again()
        for _ in range(5):
            told.tell("advanced", (SEGMENT, 1, False))
    assert heard.frames == {SEGMENT: 5}


def test_a_chunk_is_done_once_though_its_process_died_after_telling_it():
    progress, heard = Progress(), Heard()
    with progress.listening(heard):
        told = Told(progress)
        told.tell("chunk_done", ({SEGMENT: 1.0}, 7))
        for _ in range(2):
            told.again()
            told.tell("chunk_done", ({SEGMENT: 2.0}, 7))
        told.tell("chunk_done", ({SEGMENT: 3.0}, 8))
    assert heard.chunks == [7, 8]


def test_steps_of_one_dead_process_have_one_process_at_a_time(tmp_path):
    processes = StepProcesses(1)
    try:
        with ThreadPoolExecutor(2) as pool:
            asked = [
                pool.submit(processes.run, ends_with_others_once, str(tmp_path), name, 2)
                for name in "ab"
            ]
            first, second = sorted(one.result() for one in asked)
    finally:
        processes.end()
    assert first[1] < second[0]


def test_a_second_try_that_lacks_memory_is_done_where_one_process_has_all_of_it(tmp_path):
    processes = StepProcesses(2)
    try:
        assert processes.run(ends_and_then_lacks_memory, str(tmp_path), 1) == 2
        assert processes.count == len(processes._processes) == 1
        with pytest.raises(DeviceMemoryError):  # now it has no company
            processes.run(ends_and_then_lacks_memory, str(tmp_path), 3)
    finally:
        processes.end()


def test_what_cannot_be_read_or_told_fails_who_waits_for_it():
    processes = StepProcesses(1)
    try:
        with pytest.raises(ProcessDiedError, match=r"cannot be read \(MemoryError: no memory to"):
            processes.run(says_what_cannot_be_read)
        with pytest.raises(ProcessDiedError, match="could not tell what failed in it"):
            processes.run(fails_untellably)
        with pytest.raises(AutolabelError, match="SystemExit: enough"):
            processes.run(exits)
    finally:
        processes.end()


def test_an_error_comes_back_with_its_causes_and_one_that_cannot_be_sent_in_words():
    class Local(Exception):
        pass

    error, cause = RuntimeError("it broke"), OSError(5, "Input/output error")
    error.__cause__, cause.__cause__ = cause, Local("CUDA error: gone")
    first, second, third = carried(error)
    assert (type(first), type(second), second.errno) == (RuntimeError, OSError, 5)
    assert "CUDA error: gone" in str(third)
    assert carried(RuntimeError("CUDA error: gone", Local()))[0].__class__ is MachineError


def test_several_processes_are_for_gpus_with_cores_and_memory(monkeypatch):
    monkeypatch.delenv(DEVICE_PROCESSES.name, raising=False)
    assert wanted_processes("onnxruntime-cpu") == 0
    module = "tasks.pipeline.step_processes"
    for cores, gib, count in ((16, 139, 4), (16, 24, 3), (16, 8, 0), (8, 139, 2), (4, 139, 0)):
        monkeypatch.setattr(f"{module}.usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr(
            "sam2_core.backend_choice.device_memory_bytes", lambda gib=gib: gib << 30
        )
        assert wanted_processes("onnxruntime-cuda") == count
        assert wanted_processes("torch") == count


@pytest.mark.parametrize("text", ["banana", "-1", "1.5"])
def test_a_number_of_processes_that_is_none_is_refused(text, monkeypatch):
    monkeypatch.setenv(DEVICE_PROCESSES.name, text)
    with pytest.raises(AutolabelError, match=f"{DEVICE_PROCESSES.name}={text}: expected how many"):
        wanted_processes("onnxruntime-cpu")


def test_a_chunk_whose_process_was_killed_is_named_and_so_is_the_usual_reason(source, caplog):
    state = ChunkState(chunk_of(job_of(source), source))
    processes = StepProcesses(1)
    try:
        with pytest.raises(ProcessDiedError, match=r"killed .signal 9., as the system does where"):
            processes.run(is_killed, state)
    finally:
        processes.end()
    first = state.chunk.frames[0]
    assert f"{first.sequence_id}, frames 0 to {FRAMES - 1}: the process" in caplog.text


def test_a_chunk_that_is_complete_goes_to_no_process(source):
    job = job_of(source)
    job.tools.processes = None
    chunk = chunk_of(job, source)
    done = segment_chunk(job, detect_chunk(job, download_chunk(job, chunk, ())))
    job.tools.processes = object()  # would not know how to run anything
    assert steps._stepped(job, detect_chunk, done) is done


def test_seconds_of_processes_side_by_side_are_shared_out(source):
    job = job_of(source)

    class Four:
        count, lost = 4, None

        def run(self, step, state, progress):
            return replace(state, seconds={**state.seconds, SEGMENT: 8.0})

    job.tools.processes = Four()
    state = ChunkState(chunk_of(job, source), seconds={DETECT: 1.0})
    assert steps._stepped(job, segment_chunk, state).seconds == {DETECT: 1.0, SEGMENT: 2.0}
