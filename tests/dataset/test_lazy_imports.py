"""What FiftyOne imports and nobody uses is not run; what somebody uses is all there."""

import importlib
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from tasks.dataset import lazy_imports

FILES = {
    "slow/__init__.py": "RUNS = []\nfrom slow.inner import VALUE\nfrom slow import sister\n",
    "slow/inner.py": "import slow\nslow.RUNS.append(__name__)\nVALUE = 3\n",
    "slow/sister.py": "from slow import inner\nDOUBLE = 2 * inner.VALUE\n",
    "slow/shapes.py": "import slow\nslow.RUNS.append(__name__)\nclass Shape:\n    EDGES = 4\n",
    "slow/broken.py": "import nowhere_at_all\n",
}


@pytest.fixture
def slow(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(lazy_imports, "_PACKAGES", {"slow"})
    monkeypatch.setattr(lazy_imports, "_NAMES", {"slow.shapes": {"Shape"}})
    monkeypatch.setattr(lazy_imports, "_CHILDREN", {"slow": {"sister"}})
    lazy_imports.import_later()
    lazy_imports.import_later()
    yield
    for name in [one for one in sys.modules if one.partition(".")[0] == "slow"]:
        del sys.modules[name]


def test_a_package_runs_when_a_name_is_asked_for_and_its_parents_before_it(slow):
    import slow.inner as inner
    from slow import sister

    assert {"slow", "slow.inner", "slow.sister"} <= lazy_imports.waiting()
    assert importlib.import_module("slow.inner") is inner
    assert inner.__spec__.loader.get_source("slow.inner").startswith("import slow")
    assert "slow" in lazy_imports.waiting(), "asking where a module is runs nothing"

    with ThreadPoolExecutor(8) as pool:
        doubles = pool.map(lambda _: sister.DOUBLE, range(8))
        values = pool.map(lambda _: inner.VALUE, range(8))
        assert (set(doubles), set(values)) == ({6}, {3})
    assert sys.modules["slow"].RUNS == ["slow.inner"]
    assert not lazy_imports.waiting() & {"slow", "slow.inner", "slow.sister"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = inner.nothing
    import slow.shapes  # the package has run: what is imported of it now runs at once

    assert slow.RUNS == ["slow.inner", "slow.shapes"]


def test_a_name_taken_out_of_a_module_that_waits_is_the_real_one_when_it_is_used(slow):
    from slow.shapes import Shape

    assert "slow.shapes" in lazy_imports.waiting()
    assert "#ff0000" not in Shape
    assert "slow.shapes" in lazy_imports.waiting()
    assert (Shape.EDGES, Shape().EDGES) == (4, 4)
    real = sys.modules["slow.shapes"].Shape
    assert isinstance(real(), Shape)
    assert not isinstance(3, Shape)
    assert not lazy_imports.waiting() & {"slow", "slow.shapes"}


def test_what_cannot_be_imported_says_so_whenever_it_is_used(slow):
    import slow.broken as broken

    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
            _ = broken.anything


USES = """
    import sys
    from tasks.dataset.lazy_imports import import_later, waiting

    import_later()
    import fiftyone as fo
    import fiftyone.core.utils as fou
    from fiftyone.utils.transforms import quaternion_to_rotation_matrix

    expected = {"sklearn", "scipy", "plotly", "matplotlib", "fiftyone.core.session"}
    assert expected <= waiting(), waiting()
    assert not {"pandas", "strawberry", "torch"} & set(sys.modules) - waiting()

    fou.validate_color("#12ab9f")
    assert "matplotlib" in waiting()
    fou.validate_color("yellowgreen")
    assert "matplotlib" not in waiting()
    try:
        fou.validate_color("no colour")
    except ValueError:
        pass
    else:
        raise AssertionError
    turned = quaternion_to_rotation_matrix([0, 0, 1, 0])
    assert turned.round().tolist() == [[-1, 0, 0], [0, -1, 0], [0, 0, 1]]
    import fiftyone.server.view
    assert callable(fo.launch_app) and callable(fiftyone.server.view.get_view)
    assert not isinstance(3, fo.Session)
    assert not {"fiftyone.core.session", "fiftyone.server.view"} & waiting()
"""


@pytest.mark.ci
def test_fiftyone_is_imported_without_what_no_load_uses_and_has_it_all_the_same():
    nowhere = os.environ | {"FIFTYONE_DATABASE_URI": "mongodb://127.0.0.1:9"}  # none is needed
    words = [sys.executable, "-c", textwrap.dedent(USES)]
    ended = subprocess.run(words, check=False, capture_output=True, text=True, env=nowhere)
    assert ended.returncode == 0, ended.stderr


def test_what_a_load_uses_beside_fiftyone_runs_before_its_database_is_known(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(lazy_imports, "_AROUND", (*lazy_imports._AROUND, "no_such_package_at_all"))
    lazy_imports.import_around_fiftyone()
    assert {one for one in lazy_imports._AROUND if one in sys.modules} == {
        *lazy_imports._AROUND[:-1]
    }
    assert not lazy_imports.waiting() & {*lazy_imports._AROUND, "scipy"}
