"""Processes for steps that were begun before there was a run: taken by one that they fit."""

from dataclasses import replace
from pathlib import Path

import pytest

from sam2_core.number_variables import DEVICE_PROCESSES
from tasks.pipeline import step_interpreters
from tasks.pipeline.step_interpreters import (
    EXPECTED_VARIABLE,
    Expected,
    begin,
    drop_rest,
    last_expected,
)
from tasks.pipeline.step_process import prepared
from tasks.pipeline.warm import warmed
from tests.integration.cluster import wait_for
from tests.pipeline.fateful_steps import imported, who
from tests.pipeline.test_machine_errors import job_of, source

__all__ = ["source"]  # the fixture

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def none_left():
    yield
    drop_rest()


def begun():
    return [one.process.pid for one in step_interpreters._begun]


def test_a_run_takes_what_was_begun_for_one_like_it(source, monkeypatch, tmp_path):
    job = job_of(source)
    monkeypatch.setenv(DEVICE_PROCESSES.name, "1")
    monkeypatch.setenv(EXPECTED_VARIABLE, str(tmp_path / "expected"))
    assert last_expected() is None  # the first run begins its own
    with warmed(job):
        assert job.tools.processes.run(who) not in begun()
    expected = last_expected()
    assert expected == Expected.of(job, 1)
    begin(expected)
    (waits,) = begun()
    with warmed(job):
        assert begun() == []
        assert job.tools.processes.run(who) == waits
        # Models are another thing: the device's memory may be the present run's.
        seen = job.tools.processes.run(imported, ["cv2", "tasks.masks.segment", "prefect"])
        assert seen == ["cv2", "tasks.masks.segment"]


def test_what_loads_labels_was_begun_too(source, monkeypatch, database):
    job = job_of(source)
    monkeypatch.setenv(DEVICE_PROCESSES.name, "2")
    begin(Expected.of(job, 2, loaders=1))
    *_, waits = begun()
    with warmed(job, "some dataset"):
        assert begun() == []
        assert job.tools.loader.run(who) == waits
        assert job.tools.loader.run(imported, ["motor.motor_asyncio"]) == ["motor.motor_asyncio"]


@pytest.mark.parametrize("differs", ["model", "cores", "dead", "no processes"])
def test_a_run_that_it_does_not_fit_ends_it(source, monkeypatch, differs):
    job = job_of(source)
    begin(Expected.of(job, 1))
    (waits,) = begun()
    process = step_interpreters._begun[0].process
    monkeypatch.setenv(DEVICE_PROCESSES.name, "0" if differs == "no processes" else "1")
    if differs == "model":
        job = replace(job, model=replace(job.model, precision="fp16"))
    if differs == "cores":
        monkeypatch.setattr("tasks.pipeline.step_processes.cores_each", lambda count: count + 7)
    if differs == "dead":
        process.kill()
        process.wait()
    with warmed(job):
        if job.tools.processes:
            assert job.tools.processes.run(who) != waits
        assert process.poll() is not None
    assert begun() == []


def test_what_was_begun_ends_with_who_began_it(source):
    begin(Expected.of(job_of(source), 1))
    one = step_interpreters._begun.pop()
    one.connection.close()
    assert one.process.wait(60) == 0


def test_models_are_loaded_only_where_they_can_be(source):
    expected = Expected.of(job_of(source), 1)
    assert not prepared(expected).segmenters._loaded
    assert prepared(replace(expected, load=True)).segmenters._loaded
    gone = replace(expected, load=True, model=replace(expected.model, source="/nowhere"))
    assert not prepared(gone).segmenters._loaded  # the run tells what is wrong


def test_a_process_gets_its_share_of_the_cores():
    one = step_interpreters.Interpreter(1)
    wanted = {b"AUTOLABEL_CORES=1", b"OMP_NUM_THREADS=1", b"OPENCV_FOR_THREADS_NUM=1"}
    environment = Path(f"/proc/{one.process.pid}/environ")  # until it runs Python, that of here

    try:
        wait_for(lambda: wanted <= set(environment.read_bytes().split(b"\0")), 20, 0.05)
    finally:
        one.drop()
