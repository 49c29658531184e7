"""What FiftyOne imports and nobody uses is not run; what somebody uses is all there."""

import os
import subprocess
import sys
import textwrap

import pytest

USES = """
    import sys
    from tasks.dataset.lazy_imports import _Later, import_later

    def waiting():
        return {name for name, one in list(sys.modules.items()) if isinstance(one, _Later)}

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
    from concurrent.futures import ThreadPoolExecutor
    import plotly.graph_objects as plots
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: plots.Figure, range(8)))) == 1
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
