"""A share of the cores holds for our own threads and for those of the libraries."""

import json
import os
import subprocess
import sys

import pytest

from sam2_core.machine import NUMBERS, share_of, usable_cores

LIBRARIES = """
import json, os
import sam2_core.types, cv2, pyarrow, threadpoolctl
blas = {one["num_threads"] for one in threadpoolctl.threadpool_info()}
print(json.dumps([cv2.getNumThreads(), pyarrow.cpu_count(), pyarrow.io_thread_count(), *blas]))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is the share anyway")
def test_libraries_keep_to_the_share_of_the_cores():
    counted = ("_NUM_THREADS", "_THREADS_NUM")
    given = {name: value for name, value in os.environ.items() if not name.endswith(counted)}
    done = subprocess.run(
        [sys.executable, "-c", LIBRARIES], env=given | {"AUTOLABEL_CORES": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == [1, 1, 2, 1]


def test_a_number_of_cores_that_is_none_stays_for_the_command_to_refuse():
    code = "import sam2_core, os; print(os.environ['AUTOLABEL_CORES'])"
    env = os.environ | {"AUTOLABEL_CORES": "zero"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "zero\n"


def test_who_asked_for_fewer_threads_keeps_them():
    asked = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "64", "OPENBLAS_NUM_THREADS": "all"}
    share = share_of(16, asked)
    assert share["AUTOLABEL_CORES"] == share["OPENCV_FOR_THREADS_NUM"] == "16"
    assert [share[name] for name in asked] == ["2", "16", "16"]
    assert share["ARROW_IO_THREADS"] == "8"  # they wait, and more would not be sooner


def test_a_share_that_is_none_counts_as_none_where_nobody_can_be_told(monkeypatch):
    monkeypatch.delenv("AUTOLABEL_CORES", raising=False)
    cores = usable_cores()
    for none in ("0", "-3", "banana", " "):
        monkeypatch.setenv("AUTOLABEL_CORES", none)
        assert usable_cores() == cores
    monkeypatch.setenv("AUTOLABEL_CORES", "1")
    assert usable_cores() == 1


def test_numbers_of_the_environment_are_read_without_numpy():
    """Libraries read their numbers of threads when they are loaded, after these are read."""
    assert len({one.name for one in NUMBERS}) == len(NUMBERS)
    code = (
        "import sys; sys.modules['sam2_core'] = type(sys)('sam2_core'); "
        "sys.modules['sam2_core'].__path__ = ['sam2_core']; import sam2_core.machine; "
        "sys.exit('numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
