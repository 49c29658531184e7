"""How much Prefect's database and server grow in a night of many small sequences.

`python -m lab.tools.night_growth FOLDER [--sequences 1000] [--frames 2] [--idle-s 60]`. Starts
everything as `autolabel up` does, in an empty home below FOLDER, runs the deployment of the nights
once, with the micro model, imported boxes and a dataset, and prints a line of JSON every ten
seconds: sequences complete, megabytes of the database on disk and memory of the server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from flows.server.postgres import size_bytes
from tests.integration.cluster import free_port
from tests.integration.runs import MICRO, Home, write_sequence

EVERY_S = 10.0
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--frames", type=int, default=2)
    parser.add_argument("--idle-s", type=float, default=60.0)
    given = parser.parse_args()
    for number in range(given.sequences):
        write_sequence(
            given.folder / "in" / f"drive{number:04d}", given.folder / "boxes", given.frames
        )
    home = Home(given.folder / "home")
    try:
        up, _ = home.run("up", "--port", str(free_port()), "--workers", "1", "--json", timeout=400)
        night(home, up["prefect"], given)
    finally:
        home.start("down").communicate(timeout=300)


def night(home: Home, api: str, given: argparse.Namespace) -> None:
    """Run one night and print what grows meanwhile."""
    out = given.folder / "out"
    home.start(
        "nightly", given.folder / "in", "--out", out, "--boxes", given.folder / "boxes",
        "--model", MICRO, "--dataset", "night",
    ).communicate(timeout=300)  # fmt: skip
    password = (home.folder / "cache" / "services" / "prefect-password").read_text().strip()
    user, _, secret = password.partition(":")
    csrf = {"PREFECT-CSRF-CLIENT": "night"}
    with httpx.Client(base_url=api, auth=(user, secret), timeout=120, headers=csrf) as client:
        token = client.get("/csrf-token", params={"client": "night"}).json()["token"]
        client.headers["PREFECT-CSRF-TOKEN"] = token
        found = client.get("/deployments/name/nightly/nightly").json()
        made = client.post(f"/deployments/{found['id']}/create_flow_run", json={})
        run = made.raise_for_status().json()
        began, cpu_before_s, idle_since = time.monotonic(), cpu_s(processes_of(home)), None
        first = told(home, out, began)
        while idle_since is None or time.monotonic() - idle_since < given.idle_s:
            time.sleep(EVERY_S)
            last = told(home, out, began)
            state = client.get(f"/flow_runs/{run['id']}").json()["state"]
            if idle_since is None and state["type"] in ENDED:
                idle_since = time.monotonic()
                print(json.dumps({"night": state["type"], "message": state["message"]}), flush=True)
        grown = last["database_bytes"] - first["database_bytes"]
        summary = {
            "sequences": last["complete"],
            "grown_bytes_per_sequence": round(grown / max(last["complete"], 1)),
            "server_cpu_s": round(cpu_s(processes_of(home)) - cpu_before_s, 1),
        }
        print(json.dumps(summary), flush=True)


def told(home: Home, out: Path, began: float) -> dict[str, Any]:
    """Print what is so now; returns it."""
    server = processes_of(home)
    values = {
        "s": round(time.monotonic() - began),
        "complete": sum(1 for _ in out.glob("manifests/*/*.json")),
        "database_bytes": size_bytes(home.folder / "cache" / "prefect"),
        "server_rss_mib": round(sum(one.memory_info().rss for one in server) / 2**20, 1),
        "load": psutil.getloadavg()[0],
    }
    print(json.dumps(values), flush=True)
    return values


def processes_of(home: Home) -> list[psutil.Process]:
    """Return Prefect's server of this home."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = one.environ().get("AUTOLABEL_CACHE") == home.environment["AUTOLABEL_CACHE"]
            if ours and "flows.server.process" in one.cmdline():
                found.append(one)
    return found


def cpu_s(processes: list[psutil.Process]) -> float:
    """CPU seconds of processes."""
    return sum(one.cpu_times().user + one.cpu_times().system for one in processes)


if __name__ == "__main__":
    main()
