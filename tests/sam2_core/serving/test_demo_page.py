"""The demo page in a real browser: a dragged box and a click become a mask."""

import os
import threading
from pathlib import Path

import httpx
import pytest
import simplejpeg

from sam2_core.serving.client import Sam2Client
from sam2_core.serving.demo_page import demo_server
from tests.review.app_page import CHROMIUM, needs_chromium
from tests.sam2_core.serving.test_triton_server import street

pytestmark = [pytest.mark.ci, needs_chromium]


@pytest.fixture
def page_url(server, tmp_path):
    picture = tmp_path / "street.jpg"
    picture.write_bytes(simplejpeg.encode_jpeg(street(), 92, "RGB"))
    with Sam2Client(server["http"], "compact") as client:
        page = demo_server(client, picture)
        thread = threading.Thread(target=page.serve_forever)
        thread.start()
        yield page.url
        page.shutdown()
        thread.join()
        page.server_close()


def test_a_dragged_box_and_a_click_become_a_mask(page_url):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(page_url)
        said = page.get_by_role("status")
        said.filter(has_text="drag a box").wait_for()
        canvas = page.locator("canvas").bounding_box()

        def at(x, y):
            scale = canvas["width"] / 1280
            return canvas["x"] + x * scale, canvas["y"] + y * scale

        def colour(x, y):
            return page.evaluate(f"Array.from(context.getImageData({x}, {y}, 1, 1).data)")

        before, plain = colour(300, 350), colour(195, 290)
        page.mouse.move(*at(195, 290))
        page.mouse.down()
        page.mouse.move(*at(405, 410))
        assert colour(195, 290) != plain  # the box is there while it is dragged
        page.mouse.up()
        said.filter(has_text="px, ").wait_for()
        assert colour(300, 350) != before  # painted over
        assert colour(800, 600)[2] < 140  # and not there
        first = said.inner_text()
        page.mouse.click(*at(250, 350))
        page.wait_for_function(f"said.textContent !== {first!r}")
        if folder := os.environ.get("AUTOLABEL_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / "serve-demo.png")
        page.keyboard.press("Escape")
        said.filter(has_text="drag a box").wait_for()
        assert colour(300, 350) == before
        assert page.locator("canvas").bounding_box() == canvas  # no word has moved the picture

        # An answer that comes after Escape is dropped.
        held = []

        def hold(route):
            held.append(route)

        page.route("**/mask", hold)
        page.mouse.move(*at(195, 290))
        page.mouse.down()
        page.mouse.move(*at(405, 410))
        page.mouse.up()
        page.wait_for_function("number > shown")
        while not held:
            page.wait_for_timeout(10)
        page.keyboard.press("Escape")
        with page.expect_response("**/mask"):
            held.pop().continue_()
        page.evaluate("fetch('picture').then((one) => one.blob())")  # well after it
        assert said.inner_text() == "drag a box"
        assert colour(300, 350) == before
        browser.close()


def test_only_this_machine_s_own_page_may_ask(page_url):
    def post(**options):
        return httpx.post(f"{page_url}mask", trust_env=False, timeout=30, **options)

    good = {"box": [195, 290, 405, 410], "points": []}
    assert post(json=good).json()["area_px"] > 10_000
    assert post(json=good, headers={"Host": "evil.example"}).status_code == 403
    for wrong in ({}, {"box": [1, 2], "points": []}, {"box": None, "points": []}, [1]):
        answer = post(json=wrong)
        assert answer.status_code == 400
        assert answer.json()["error"]
    assert post(content=b"{}").status_code == 400
    port = httpx.URL(page_url).port
    for other in ("", "picture", "mask", "x/picture"):
        url = f"http://127.0.0.1:{port}/{other}"
        assert httpx.get(url, trust_env=False).status_code == 404
        assert httpx.post(url, json=good, trust_env=False).status_code == 404
    assert httpx.get(f"{page_url}picture", trust_env=False).status_code == 200
    assert httpx.get(f"{page_url}../etc/passwd", trust_env=False).status_code == 404
