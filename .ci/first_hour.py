"""A new user's first hour, in a checkout where `make demo` has run: `python first_hour.py OUTPUT`.

OUTPUT is what `make demo` printed. Runs the command that it says, labels a folder, a pattern and a
list, looks, decides, exports and uninstalls, with what the checkout has and nothing else.
"""

from __future__ import annotations

import html
import http.cookiejar
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

LABEL = [".venv/bin/autolabel", "label"]
LIMIT_S = 300
DECIDE = """
from tasks.dataset.database import ensure_database
ensure_database()
from tasks.dataset.schema import open_dataset
from tasks.review.actions import accept, choose, reject
dataset = open_dataset("folder")
sample = next(one for one in dataset if len(one.detections.detections) > 1)
first, second = (label.id for label in sample.detections.detections[:2])
accept(dataset, choose(dataset, [sample.id], [first]))
reject(dataset, choose(dataset, [sample.id], [second]))
"""


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def run(*command: str | Path, code: int = 0, text: str = "") -> str:
    """Run to the end; returns what it printed on stdout."""
    say(shlex.join(map(str, command)))
    done = subprocess.run(
        list(map(str, command)), input=text, stdout=subprocess.PIPE, text=True, check=False,
        timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == code, f"exit code {done.returncode}, not {code}"
    return done.stdout


def look(command: str) -> None:
    """Open the App as it is printed, see its page, end it by SIGTERM, and find nothing left."""
    import psutil

    say(command)
    process = subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, text=True)
    assert process.stdout
    way_in = (re.search(r"the link in (.+) leads to the queue", line) for line in process.stdout)
    written = Path(next(filter(None, way_in))[1]).read_text()
    (link,) = map(html.unescape, re.findall(r'href="(http://[^"]+)"', written))
    cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), cookies)
    assert b"Signed in" in browser.open(link, timeout=60).read()
    page = browser.open(link.partition("?")[0], timeout=60).read()
    assert b"FiftyOne" in page, page[:500]
    started = psutil.Process(process.pid).children(recursive=True)
    assert started, "the App is a process of its own"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    _, left = psutil.wait_procs(started, timeout=60)
    left = [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
    assert not left, "it left processes behind"


def label(work: Path) -> None:
    """A folder, a pattern and lists: each has its frames."""
    cache = Path(os.environ.get("AUTOLABEL_CACHE", Path.home() / ".cache" / "autolabel"))
    images = sorted((cache / "demo-1" / "sequences" / "street-a").rglob("*.jpg"))[:3]
    assert len(images) == 3
    frames = work / "drives" / "monday"
    frames.mkdir(parents=True)
    for image in images:
        shutil.copy(image, frames)
    pictures = sorted(map(str, frames.iterdir()))
    (work / "list.txt").write_text("# two of them\n" + "\n".join(pictures[:2]) + "\n")
    asked = {
        "folder": ([frames], "", 3),
        "pattern": ([frames.parent / "mon*" / f"*{Path(pictures[0]).suffix}"], "", 3),
        "list": ([f"@{work / 'list.txt'}"], "", 2),
        "stdin": (["-", "--sequence", "tuesday"], pictures[2], 1),
    }
    for name, (sources, text, count) in asked.items():
        out = work / "labels" / name
        loading = [] if name == "folder" else ["--no-dataset"]
        told = json.loads(run(*LABEL, *sources, "--out", out, "--json", *loading, text=text))
        assert (told["sequences"], told["frames"], told["failed"]) == (1, count, []), told
        assert told["instances"] > 0
        again = json.loads(run(*LABEL, *sources, "--out", out, "--json", *loading, text=text))
        assert again["skipped"] == count
    (manifest,) = (work / "labels" / "stdin" / "manifests").rglob("tuesday@*.json")
    assert manifest.stat().st_size
    run(*LABEL, frames, "--out", frames / "labels", code=2)
    run(*LABEL, frames, "--out", work / "none", "--classes", "tram", "--no-dataset", code=2)
    run(*LABEL, frames, "--out", work / "none", "--frames", "50:", code=1)


def decide_and_export(work: Path) -> None:
    run(".venv/bin/python", "-c", DECIDE)
    export = [".venv/bin/autolabel", "export", "folder", "--format", "coco", "--to"]
    told = json.loads(run(*export, work / "reviewed", "--reviewed", "--json"))
    assert (told["decisions"], told["instances"]) == ({"accepted": 1}, 1), told
    exported = work / "exported"
    run(*export, exported)
    annotations = exported / "annotations" / "instances.json"
    assert json.loads(annotations.read_text())["annotations"]


def uninstall(work: Path) -> None:
    """Nothing is left; what CI goes on with comes back afterwards, by links."""
    run(".venv/bin/autolabel", "down")
    run(".venv/bin/autolabel", "cache", "list")
    run(".venv/bin/autolabel", "cache", "clear", "all")
    assert not (Path.home() / ".cache" / "autolabel").exists()
    kept = [Path(name) for name in (".venv", ".uv") if Path(name).exists()]
    for folder in kept:
        shutil.copytree(folder, work / folder, copy_function=os.link, symlinks=True)
    run("make", "clean")
    assert not any(folder.exists() for folder in kept)
    for folder in kept:
        (work / folder).rename(folder)


def main() -> None:
    output = Path(sys.argv[1]).read_text()
    printed = re.findall(r"look at it: (.+)", output)[-1].strip()
    assert printed.startswith(".venv/bin/autolabel review "), printed
    work = Path(os.environ["TMPDIR"]) / "first-hour"
    work.mkdir()
    look(printed)
    label(work)
    look(".venv/bin/autolabel review folder")
    decide_and_export(work)
    uninstall(work)
    say("done")


if __name__ == "__main__":
    main()
