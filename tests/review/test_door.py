"""Who may come in to the pages that we serve: their user's browser and nobody else."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from sam2_core.types import AutolabelError
from tasks.processes import answers
from tasks.review.app import MediaGate
from tasks.review.door import Door, bind, bind_next
from tests.integration.cluster import free_port, wait_for

HERE = "http://127.0.0.1:5151"
OPEN = {"cross-origin-resource-policy": "cross-origin"}  # as FiftyOne's pictures are sent


async def talk(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("hello")


def behind(token: str = "") -> TestClient:
    """A client of an application behind a door; it has been nowhere yet."""
    routes = [
        Route(
            "/{path:path}",
            lambda _: PlainTextResponse("inside", headers=OPEN),
            methods=["GET", "POST"],
        ),
        WebSocketRoute("/talk", talk),
    ]
    return TestClient(Door(Starlette(routes=routes), token, "use the link"), base_url=HERE)


def test_the_link_lets_a_browser_in_and_leaves_no_token_in_its_address() -> None:
    browser = behind("secret")
    assert browser.get("/datasets/a").status_code == 403
    assert browser.get("/datasets/a?token=wrong").status_code == 403
    assert browser.post("/datasets/a?token=secret").status_code == 403
    welcome = browser.get(f"{HERE}//evil.example/a b?view=x&token=secret")
    assert 'url=/evil.example/a%20b?view=x"' in welcome.text
    assert "secret" not in welcome.text
    assert welcome.headers["referrer-policy"] == "no-referrer"
    cookie = welcome.headers["set-cookie"]
    assert "secret" not in cookie
    assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    inside = browser.get("/datasets/a")
    assert inside.text == "inside"
    assert inside.headers["x-frame-options"] == "SAMEORIGIN"
    assert inside.headers["cross-origin-resource-policy"] == "same-origin"
    assert behind("other").get("/", headers={"cookie": cookie.split(";")[0]}).status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:9000"}, 200),  # a forwarded port
        ({"host": "[::1]:5151"}, 200),
        ({"host": "attacker.example:5151"}, 403),
        ({"host": "127.0.0.1.attacker.example"}, 403),
        ({"host": "attacker.example#127.0.0.1:5151"}, 403),
        ({"host": ""}, 403),
        ({"origin": HERE}, 200),
        ({"origin": "http://attacker.example"}, 403),
        ({"origin": "http://127.0.0.1:8000"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        (
            {
                "sec-fetch-site": "cross-site",
                "sec-fetch-mode": "navigate",
                "sec-fetch-dest": "iframe",
            },
            403,
        ),
        (
            {
                "sec-fetch-site": "cross-site",
                "sec-fetch-mode": "navigate",
                "sec-fetch-dest": "document",
            },
            200,
        ),
    ],
)
def test_other_names_and_other_pages_are_refused(headers: dict[str, str], status: int) -> None:
    client = behind()
    assert client.get("/", headers=headers).status_code == status
    if "sec-fetch-dest" in headers:
        assert client.post("/", headers=headers).status_code == 403


def test_sockets_have_the_same_door() -> None:
    client = behind("secret")
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect("ws://127.0.0.1:5151/talk?token=secret"),
    ):
        pass
    client.get("/?token=secret")
    with client.websocket_connect("ws://127.0.0.1:5151/talk") as socket:
        assert socket.receive_text() == "hello"
    elsewhere = {"origin": "http://attacker.example"}
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect("ws://127.0.0.1:5151/talk", headers=elsewhere),
    ):
        pass


def test_only_pictures_of_datasets_and_of_our_folders_are_shown(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
        for name in ("a.jpg", "a.mp4", "id_rsa", "password.json"):
            (folder / name).touch()
    (ours / "link.jpg").symlink_to(theirs / "a.jpg")
    (ours / "key.jpg").symlink_to(theirs / "id_rsa")
    (theirs / "key.jpg").symlink_to(theirs / "id_rsa")
    recorded = {f"{theirs}/{name}": True for name in ("a.mp4", "key.jpg", "id_rsa")}
    gate = MediaGate(behind().app, [ours], recorded.get)
    client = TestClient(gate, base_url=HERE)

    def shown(path: object) -> bool:
        return client.get("/media", params={"filepath": str(path)}).status_code == 200

    assert [shown(ours / name) for name in ("a.jpg", "a.mp4")] == [True, True]
    assert not any(map(shown, [ours / "id_rsa", ours / "password.json", ours / "gone", ours]))
    assert not any(map(shown, [ours / "link.jpg", ours / "key.jpg", f"{ours}/../theirs/a.jpg"]))
    assert shown(theirs / "a.mp4"), "a dataset has a sample of it"
    assert not any(map(shown, [theirs / name for name in ("a.jpg", "key.jpg", "id_rsa")]))
    assert not any(map(shown, ["/etc/passwd\0.jpg", f"{ours}/a.jpg\0", f"{ours}/\0/a.jpg"]))
    recorded[f"{theirs}/a.mp4"] = recorded[f"{ours}/a.mp4"] = False
    assert not any(map(shown, [theirs / "a.mp4", ours / "a.mp4"])), "rewritten since it was labeled"
    twice = client.get(f"/media?filepath={ours}/a.jpg&filepath={theirs}/id_rsa")
    assert twice.status_code == 404


def test_a_port_that_is_taken_leads_to_the_next_one() -> None:
    with bind(0) as first:
        port = first.getsockname()[1]
        with pytest.raises(AutolabelError, match=f"port {port} of 127.0.0.1 is taken"):
            bind(port)
        with bind_next(port) as second:
            assert port < second.getsockname()[1] < port + 20
        with pytest.raises(AutolabelError, match="all taken"):
            bind_next(port, tries=1)


@pytest.mark.ci
def test_an_app_in_a_container_answers_to_its_host_and_asks_for_its_token(
    database: str, tmp_path: Path
) -> None:
    where = f"127.0.0.1:{free_port()}"
    own = {"AUTOLABEL_APP_NAMES": "Review.example.com", "AUTOLABEL_CACHE": str(tmp_path)}
    environment = os.environ | own
    command = [sys.executable, "-m", "tasks.review.app", where]
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "AUTOLABEL_APP_TOKEN is empty" in refused.stderr

    def status(host: str, path: str = "/") -> int:
        headers = {"host": host, "origin": f"https://{host}"}
        return httpx.get(f"http://{where}{path}", headers=headers).status_code

    with subprocess.Popen(command, env=environment | {"AUTOLABEL_APP_TOKEN": "secret"}) as app:
        wait_for(lambda: answers(f"http://{where}"))
        assert status("review.example.com") == 403
        assert status("review.example.com", "/?token=secret") == 200
        assert status("other.example.com", "/?token=secret") == 403
        assert status(where, "/?token=secret") == 200  # by port-forward
        app.terminate()


@pytest.mark.ci
def test_a_log_names_a_private_file_that_leads_to_the_queue(
    one_frame: str,
) -> None:
    words = ["review", one_frame, "--port", "0"]
    command = [sys.executable, "-m", "flows.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as review:
        try:
            said = review.stdout.readline()
            assert "token" not in said, "others may read a log"
            (path,) = re.findall(r"the link in (\S+) leads", said)
            page = Path(path)
            assert page.stat().st_mode & 0o077 == 0
            (link,) = re.findall(r'content="0;url=([^"]*)"', page.read_text())
            there = urlsplit(html.unescape(link))
            with httpx.Client(base_url=f"http://{there.netloc}") as client:
                queue = f"/datasets/{one_frame}?view=needs-review"
                assert client.get(queue).status_code == 403
                assert f"url={queue}" in html.unescape(client.get(there.geturl()).text)
                assert "FiftyOne" in client.get(queue).text
        finally:
            review.terminate()  # a test in the background of a shell would ignore Ctrl-C
            review.communicate()
    assert not page.exists(), "it goes with the App"
