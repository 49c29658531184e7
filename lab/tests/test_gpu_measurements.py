"""What is measured on a GPU is what it is said to be."""

import json
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[2]


def test_commands_run_the_copy_of_the_product_that_they_are_given(tmp_path, monkeypatch):
    """A copy that draws outlines was never run: Python looks in the folder it starts in first."""
    monkeypatch.syspath_prepend(str(ROOT / "lab" / "tools"))
    monkeypatch.chdir(ROOT)
    import gpu_product_run as measuring

    no_device = SimpleNamespace(summary=dict)
    monkeypatch.setattr(measuring, "Busy", lambda: nullcontext(no_device))
    (tmp_path / f"frames-{measuring.SEQUENCES}").mkdir()
    copy = tmp_path / "copy" / "sam2_core"
    copy.mkdir(parents=True)
    (copy / "__init__.py").write_text("")
    code = "import json, sam2_core; print(json.dumps({'file': sam2_core.__file__}))"
    found = measuring.Run(tmp_path / "clip.mp4", tmp_path).command(
        "which", env={"PYTHONPATH": str(copy.parent)}, command=(sys.executable, "-c", code)
    )
    assert Path(found["file"]).parent == copy, json.dumps(found)


def test_every_section_is_in_the_file_that_is_started_for_it(monkeypatch):
    """Those of ONNX Runtime named a file that had been renamed."""
    monkeypatch.syspath_prepend(str(ROOT / "lab" / "tools"))
    import gpu_measure as measuring

    for script, (section, *_), _ in (measuring.PREPARE | measuring.SECTIONS).values():
        assert f"\ndef {section}(" in (measuring.HERE / script).read_text(), (script, section)


def test_a_command_whose_time_is_up_ends_what_it_has_started(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "lab" / "tools"))
    import gpu_product_everything as everything

    code = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
try:
    (folder / "started").touch()
    time.sleep(60)
finally:
    (folder / "tidied").touch()
"""
    process = subprocess.Popen([sys.executable, "-S", "-c", code, str(tmp_path)])
    while not (tmp_path / "started").exists():
        time.sleep(0.01)
    assert everything.ended(process, 0.01) == "its time was up"
    assert (tmp_path / "tidied").exists()
    assert process.returncode == 1


def test_a_host_with_one_gpu_measures_all_that_needs_no_second(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "lab" / "tools"))
    import gpu_product_everything as everything

    names = dict.fromkeys(("clip", "street", "boxes", "out"), tmp_path)
    ran: dict[int, list[tuple[str, str]]] = {1: [], 2: []}
    for gpus, commands in ran.items():

        def keep(track, some, _, gpu, cores, commands=commands):
            assert cores, track
            commands += [(gpu, " ".join(command[1:])) for _, command in some]

        monkeypatch.setattr(everything, "run", keep)
        tracks = everything.steps(SimpleNamespace(**names, meta=tmp_path), gpus)
        everything.measure(tracks, tmp_path, gpus)
    (needs_two,) = {command for _, command in ran[2]} - {command for _, command in ran[1]}
    assert "--sequences 360 --workers 2 fleet" in needs_two
    assert {gpu for gpu, _ in ran[1]} == {"0"}
    assert {gpu for gpu, _ in ran[2]} == {"0", "1", "0,1"}
    assert len(ran[1]) == len(set(ran[1])) == len(ran[2]) - 1
