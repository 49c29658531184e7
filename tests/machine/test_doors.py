"""The Prefect server of `autolabel up`: its user's browser gets in, and nobody else."""

import os
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest

from flows.cli import up
from flows.machine import services
from flows.machine.programs import SERVER
from flows.server import postgres
from flows.server.api import use_api
from flows.server.sign_in import CLIENT_AUTH, auth_file, choose_auth, write_links
from sam2_core.types import AutolabelError
from tests.integration.cluster import empty_home, free_port
from tests.prefect_tables import put_tables
from tests.review.app_page import browser_page, needs_chromium, save_picture

FLOW = {"name": "planted"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """An empty home of the user, where no Prefect server is configured."""
    folder = tmp_path_factory.mktemp("home")
    with empty_home(folder):
        put_tables(postgres.home())
        yield folder


@pytest.fixture(scope="module")
def api(home):
    """The server of `up`, alone."""
    yield up._bring_up_server(free_port(), lambda _: None)
    assert services.stop_all() == ["server"]
    assert not (services.folder() / services.LINKS).exists()


@pytest.fixture
def user(api):
    name, _, password = auth_file(services.folder()).read_text().partition(":")
    with httpx.Client(base_url=api, auth=(name, password)) as client:
        yield client


@pytest.mark.ci
@needs_chromium
def test_the_printed_link_opens_prefects_page(api, tmp_path):
    file = write_links(services.folder(), up.sign_in_links())
    others = []
    with browser_page() as page:
        page.on("request", lambda one: others.append(one) if "127.0.0.1" not in one.url else None)
        page.goto(file.as_uri())
        page.get_by_text("Prefect", exact=False).first.click()
        page.wait_for_url("**/dashboard*")
        page.get_by_role("link", name="Work Pools").click()
        page.get_by_text("Work pools").first.wait_for()
        page.get_by_text("Logout").wait_for()
        assert "#" not in page.url
        save_picture(page, tmp_path, "prefect-signed-in")
        asked_others = [one.url for one in others if not one.url.startswith(("file:", "data:"))]
        assert asked_others == [], "Prefect's page asks somebody else"


def test_a_stranger_is_not_let_in_and_another_name_of_this_machine_is_told_the_one(api, user):
    stranger = httpx.Client(base_url=api)
    assert stranger.post("/flows/", json=FLOW).status_code in {401, 403}
    assert stranger.get("/admin/version").status_code == 401
    assert user.get("/admin/version").status_code == 200
    port = httpx.URL(api).port
    headers = {"host": f"localhost:{port}", "sec-fetch-mode": "navigate"}
    refused = user.get(f"http://127.0.0.1:{port}/v2/flows", headers=headers)
    assert refused.status_code == 403
    assert "is not a name of this machine: use 127.0.0.1" in refused.text


def test_no_other_user_of_the_machine_reads_the_password(api, home):
    password = auth_file(services.folder()).read_text()
    server = psutil.Process(services.running()["server"].pid)
    assert password not in " ".join(server.cmdline())
    files = [path for path in services.folder().rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"server.log", "prefect-password"}
    for path in [services.folder(), *services.folder().rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
    holding = {path.name for path in files if password.split(":")[1] in path.read_text("latin-1")}
    assert holding <= {"prefect-password", "sign-in.html"}


def test_a_command_finds_the_password_of_our_own_server_only(api, home, monkeypatch):
    password = auth_file(services.folder()).read_text()
    for chosen, wanted in (("", password), (api, password), ("http://127.0.0.1:9/api", None)):
        monkeypatch.setenv("PREFECT_API_URL", chosen)
        monkeypatch.delenv(CLIENT_AUTH, raising=False)
        assert use_api() == (chosen or api)
        assert os.environ.get(CLIENT_AUTH) == wanted


@pytest.fixture
def elsewhere(tmp_path):
    """A home of its own for the test."""
    with empty_home(tmp_path):
        yield
        services.stop_all()


@pytest.mark.ci
def test_a_server_on_the_port_that_is_not_ours_is_neither_joined_nor_told_anything(elsewhere):
    told = []

    class Foreign(BaseHTTPRequestHandler):
        def handle_one_request(self):
            told.append(self.client_address)

    with ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(AutolabelError, match=r"did not start.*another port.*PREFECT_API_URL"):
            up._bring_up_server(server.server_port, lambda _: None)
        with pytest.raises(AutolabelError, match=r"did not start.*another port"):
            up.bring_up(app_port=server.server_port)
        server.shutdown()
    assert told == []
    assert services.running() == {}


@pytest.mark.ci
def test_a_server_whose_password_is_gone_is_not_used(elsewhere):
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    services.start(replace(SERVER, command=sleeps, port=free_port()))
    with pytest.raises(AutolabelError, match="prefect-password cannot be read"):
        use_api()


def test_a_password_of_the_users_own_is_the_servers(tmp_path, monkeypatch):
    monkeypatch.delenv("PREFECT_SERVER_API_AUTH_STRING", raising=False)
    made = choose_auth(tmp_path)
    assert choose_auth(tmp_path) == made
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "me:mine")
    assert choose_auth(tmp_path) == "me:mine"
    assert Path(auth_file(tmp_path)).read_text() == "me:mine"
