"""How long a Prefect server on SQLite does not answer while many small tasks report to it.

    python -m lab.tools.server_pauses --seconds 60 --flows 6 [--busy 4] [--plain]

Starts the server of `autolabel up` (with --plain the one of `prefect server start`) with our
deployments and automations, runs flows of tiny tasks from one process, and asks the server twice a
second. --busy adds processes that only take CPU time. Prints one line of JSON.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from flows.cli.up_run import SERVER_SETTINGS
from flows.server.own import begin_with, template_of
from flows.server.sign_in import CLIENT_AUTH, SERVER_AUTH, new_auth
from sam2_core.cache import cache_folder

ROUNDS, AT_ONCE = 10, 4  # of the tasks of a flow
DEPLOY = "from flows.server.deployments import deploy; deploy()"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--flows", type=int, default=6, help="at once")
    parser.add_argument("--busy", type=int, default=0, help="processes that take CPU time")
    parser.add_argument("--plain", action="store_true", help="the server of `prefect server start`")
    parser.add_argument("--load", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.load:
        print(json.dumps(asyncio.run(_load(asked.seconds, asked.flows))))
    else:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            print(json.dumps(_measured(Path(folder), asked)))


def _measured(folder: Path, asked: argparse.Namespace) -> dict[str, object]:
    begin_with(template_of(cache_folder()), folder / "prefect.db")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        environment = _environment(folder, port, plain=asked.plain)
        if asked.plain:
            listener.close()
            command = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
            handed = []
        else:
            command, handed = ["flows.server.process", str(listener.fileno()), "kept"], [listener]
        log = stack.enter_context((folder / "server.log").open("w"))

        def started(arguments, **more):
            process = subprocess.Popen([sys.executable, *arguments], env=environment, **more)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        started(
            ["-m", *command], stdin=subprocess.PIPE, stdout=log, stderr=log,
            pass_fds=[one.fileno() for one in handed],
        )  # fmt: skip
        _wait_until_it_answers(environment["PREFECT_API_URL"])
        subprocess.run([sys.executable, "-c", DEPLOY], env=environment, check=True)
        for _ in range(asked.busy):
            started(["-c", "while True: pass"])
        again = ["-m", "lab.tools.server_pauses", "--load"]
        size = ["--seconds", str(asked.seconds), "--flows", str(asked.flows)]
        load = started([*again, *size], stdout=subprocess.PIPE, text=True)
        worst = _worst_answers(environment, load)
        flows = json.loads(load.stdout.read())
    text = (folder / "server.log").read_text(errors="replace")
    return {**flows, "worst_answer_s": worst, "locked_lines": text.count("database is locked")}


def _environment(folder: Path, port: int, *, plain: bool) -> dict[str, str]:
    auth = new_auth()
    return {
        **os.environ,
        "PREFECT_HOME": str(folder / "home"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder}/prefect.db",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "ERROR",
        "DO_NOT_TRACK": "1",
        **SERVER_SETTINGS,
        **({} if plain else {SERVER_AUTH: auth, CLIENT_AUTH: auth}),
    }


def _wait_until_it_answers(api: str) -> None:
    while True:
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(f"{api}/health", timeout=5)
            return
        time.sleep(0.3)


def _worst_answers(environment: dict[str, str], load: subprocess.Popen[str]) -> dict[str, float]:
    """Ask until the load has ended; returns the longest time of an answer by what was asked."""
    auth = environment.get(CLIENT_AUTH)
    api, worst = environment["PREFECT_API_URL"], {"health": 0.0, "read": 0.0, "write": 0.0}
    with httpx.Client(timeout=600, auth=tuple(auth.split(":")) if auth else None) as client:
        token = client.get(f"{api}/csrf-token", params={"client": "probe"})
        if token.status_code == httpx.codes.OK:
            known = {"Prefect-Csrf-Client": "probe", "Prefect-Csrf-Token": token.json()["token"]}
            client.headers.update(known)
        while load.poll() is None:
            for what, method, path, body in (
                ("health", "GET", "health", None),
                ("read", "POST", "flow_runs/filter", {"limit": 5}),
                ("write", "POST", "variables/", {"name": f"v{time.time_ns()}", "value": 1}),
            ):
                began = time.monotonic()
                client.request(method, f"{api}/{path}", json=body)
                worst[what] = max(worst[what], round(time.monotonic() - began, 2))
            time.sleep(0.5)
    return worst


async def _load(seconds: float, at_once: int) -> dict[str, object]:
    from prefect import flow, task
    from prefect.artifacts import create_progress_artifact, update_progress_artifact

    @task
    async def piece(number):
        return number

    @flow
    async def shard():
        progress = await create_progress_artifact(0.0)
        for one in range(ROUNDS):
            await asyncio.gather(*(piece(number) for number in range(AT_ONCE)))
            await update_progress_artifact(progress, 100.0 * one / ROUNDS)

    async def repeated() -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            try:
                await shard()
                times.append(time.monotonic() - began)
            except Exception as error:
                failed.append(str(error))

    times: list[float] = []
    failed: list[str] = []
    until = time.monotonic() + seconds
    await asyncio.gather(*(repeated() for _ in range(at_once)))
    times.sort()
    return {
        "flows": len(times),
        "failed": len(failed),
        "median_flow_s": round(times[len(times) // 2], 1) if times else None,
        "slowest_flow_s": round(times[-1], 1) if times else None,
    }


if __name__ == "__main__":
    main()
