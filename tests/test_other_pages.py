"""A page of somebody else in a real browser, and requests under another name, at every door."""

import base64
import contextlib
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlencode

import cv2
import httpx
import numpy as np
import pytest

from tests.frames.sources import serve as serve_folder
from tests.integration.cluster import empty_home, free_port
from tests.review.app_page import browser_page, needs_chromium
from tests.sam2_core.serving.conftest import serving, statistics

pytestmark = pytest.mark.ci
FOREIGN = (
    {"host": "attacker.example"},
    {"origin": "http://attacker.example"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
)


# Asks for a picture by a tag, and for everything else by `fetch`: readable, then blind.
_ATTACK = """async ([picture, asked]) => {
  const seen = await new Promise((answer) => {
    const image = new Image();
    image.onload = () => answer(image.width > 0);
    image.onerror = () => answer(false);
    image.src = picture;
  });
  const told = [];
  for (const [url, method, body] of asked)
    for (const mode of ["cors", "no-cors"])
      for (const credentials of ["include", "omit"])
        for (const type of ["application/json", "text/plain"])
          try {
            const options = {method, mode, credentials};
            if (body) options.body = JSON.stringify(body);
            const answer = await fetch(url, {...options, headers: {"Content-Type": type}});
            if (mode == "cors") told.push([url, answer.status, await answer.text()]);
          } catch (error) { /* the browser keeps the answer from us */ }
  return [seen, told];
}"""


def attack(page, picture, asked):
    """From the open page load a picture and send requests; returns what the page came to know."""
    seen, told = page.evaluate(_ATTACK, [picture, [list(one) for one in asked]])
    return seen, told


@dataclass
class Target:
    """What a page would like to have: a picture, and requests (URL, method, body).

    Attributes:
        opened: pages of ours that the user has open in the same browser.
        headers: what the user's own requests have.
        closed: paths that nobody may ask for, not even the user.
        traces: what an attack that came through would change.
        replaced: a page that would store another password, and the one that is stored.

    """

    picture: str
    asked: list[tuple[str, str, object]]
    traces: Callable[[], object]
    opened: str
    headers: dict[str, str] = field(default_factory=dict)
    closed: list[tuple[str, str, object]] = field(default_factory=list)
    replaced: tuple[str, str] = ("", "")


@contextlib.contextmanager
def serve(folder, picture):
    """Triton, its metrics and the demo page; code that a page brings would leave a file."""
    mark = folder / "mark"
    code = f"open({str(mark)!r}, 'w')\nclass TritonPythonModel: pass".encode()
    evil = {"parameters": {
        "config": '{"backend": "python", "max_batch_size": 1}',
        "file:1/model.py": base64.b64encode(code).decode(),
    }}  # fmt: skip
    region = {"key": "/x", "offset": 0, "byte_size": 1}
    describe = {"inputs": [{"name": "describe", "shape": [1, 1], "datatype": "UINT8", "data": [1]}],
                "outputs": [{"name": "info"}]}  # fmt: skip
    model = "models/sam2_compact"
    with serving("compact", "--threads", "1", "--demo", str(picture)) as told:
        page, _, token = told["page"].partition("?")
        doors = {told["http"], told["metrics"].removesuffix("/metrics"), page.rstrip("/")}
        closed = [
            (f"{door}/v2/{path}", method, body)
            for door in doors
            for path, method, body in [
                ("repository/models/evil/load", "POST", evil),
                ("repository/models/sam2_compact/unload", "POST", {}),
                ("repository/index", "POST", {}),
                ("systemsharedmemory/region/x/register", "POST", region),
                ("systemsharedmemory/status", "GET", None),
                ("cudasharedmemory/unregister", "POST", {}),
                ("logging", "POST", {"log_verbose_level": 1}),
                ("trace/setting", "POST", {"trace_level": ["TIMESTAMPS"]}),
                (f"{model}/trace/setting", "GET", None),
                (f"{model}/config", "GET", None),
                (f"{model}/infer", "POST", describe),
                (f"{model}/../../repository/index", "POST", {}),
            ]
        ]
        asked = [
            (f"{told['http']}/v2/{model}/stats", "GET", None),
            (told["metrics"], "GET", None),
            (f"{page}mask?{token}", "POST", {"box": [1, 1, 9, 9], "points": []}),
        ]

        def traces():
            assert not mark.exists(), "code of a page has run"
            return statistics(told, "sam2_compact")["success"]["count"]

        yield Target(f"{page}picture", asked, traces, told["page"], closed=closed)


@contextlib.contextmanager
def app(folder, picture):
    """FiftyOne's App, as `review` opens it."""
    from tasks.dataset.database import ensure_database

    ensure_database()
    import fiftyone as fo

    from tasks.review.app import run_app

    name = f"pages {uuid.uuid4().hex[:8]}"
    dataset = fo.Dataset(name)
    dataset.add_sample(fo.Sample(filepath=str(picture)))
    with run_app() as running:
        remove = {"query": f'mutation {{ deleteDataset(name: "{name}") }}'}
        operator = {"operator_uri": "@voxel51/operators/delete_samples", "dataset_name": name}
        asked = [
            (f"{running.url}/aggregate", "POST", {"dataset": name}),
            (f"{running.url}/graphql", "POST", remove),
            (f"{running.url}/operators/execute", "POST", operator),
            (f"{running.url}/operators", "GET", None),
            (f"{running.url}/fiftyone", "GET", None),
        ]
        with httpx.Client() as client:
            client.get(running.link(name))
            cookies = "; ".join(f"{key}={value}" for key, value in client.cookies.items())
        yield Target(
            f"{running.url}/media?{urlencode({'filepath': str(picture)})}", asked,
            lambda: (fo.dataset_exists(name), len(dataset)), running.link(name),
            {"cookie": cookies},
        )  # fmt: skip


@contextlib.contextmanager
def up(folder, picture):
    """Prefect's API, as `up` starts it."""
    from flows.cli import up
    from flows.machine import services
    from flows.server.sign_in import auth_file, write_links

    with empty_home(folder):
        api = up._bring_up_server(free_port(), lambda _: None)
        try:
            user = base64.b64encode(auth_file(services.folder()).read_bytes()).decode()
            headers = {"authorization": f"Basic {user}"}
            asked = [
                (f"{api}/flows/", "POST", {"name": "planted"}),
                (f"{api}/work_pools/", "POST", {"name": "pool", "type": "process"}),
                (f"{api}/deployments/filter", "POST", {}),
                (f"{api}/csrf-token?client=page", "GET", None),
                (f"{api}/admin/settings", "GET", None),
                (f"{api}/health", "GET", None),
            ]

            def traces():
                names = []
                for kind in ("flows", "work_pools"):
                    client = httpx.Client(base_url=api, headers=headers)
                    token = client.get("/csrf-token", params={"client": "test"}).json()["token"]
                    csrf = {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "test"}
                    names += client.post(f"/{kind}/filter", json={}, headers=csrf).json()
                return json.dumps(names)

            link = write_links(services.folder(), up.sign_in_links()).as_uri()
            icon = f"{api.removesuffix('/api')}/ico/favicon-32x32.png"
            evil = f"{api.removesuffix('/api')}/sign-in#autolabel:evil"
            yield Target(icon, asked, traces, link, headers, replaced=(evil, user))
        finally:
            services.stop_all()


@pytest.fixture(scope="module", params=[serve, app, up], ids=lambda one: one.__name__)
def target(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param.__name__)
    picture = folder / "picture.jpg"
    cv2.imwrite(str(picture), np.full((60, 80, 3), 99, np.uint8))
    with request.param(folder, picture) as found:
        yield found


@pytest.mark.ci
@needs_chromium
def test_a_page_of_another_origin_reads_nothing_and_changes_nothing(target, tmp_path):
    before = target.traces()
    # Another port of 127.0.0.1: a browser sends it, and its requests, this machine's cookies.
    (tmp_path / "index.html").write_text("<!doctype html><title>Kittens</title>")
    with browser_page() as page, serve_folder(tmp_path) as origin:
        evil, kept = target.replaced
        page.goto(target.opened)
        if evil:
            page.get_by_role("link", name="Prefect").click()
            page.get_by_role("link", name="Work Pools").wait_for()
        # Beside it: a page of ours may still be on its way to another address.
        other = page.context.new_page()
        other.goto(origin)
        learned = attack(other, target.picture, target.asked + target.closed)
        if evil:
            page.goto(evil)
            page.wait_for_url(lambda url: "sign-in" not in url)
            assert page.evaluate("localStorage.getItem('prefect-password')") == kept
    assert target.traces() == before
    assert learned == (False, [])


def test_a_request_under_another_name_or_of_another_page_is_refused(target):
    before = target.traces()
    with httpx.Client(headers=target.headers, trust_env=False, timeout=60) as client:
        attempts = [(one, header) for one in target.asked for header in FOREIGN]
        attempts += [(one, header) for one in target.closed for header in ({}, *FOREIGN)]
        attempts += [((target.picture, "GET", None), header) for header in FOREIGN]
        for (url, method, body), headers in attempts:
            for kind in ("application/json", "text/plain"):
                content = None if body is None else json.dumps(body)
                sent = {"content-type": kind, **headers}
                answer = client.request(method, url, content=content, headers=sent)
                assert answer.status_code in {401, 403, 404, 405}, (url, headers, answer.text[:200])
    assert target.traces() == before
