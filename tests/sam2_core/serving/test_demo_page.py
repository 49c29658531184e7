"""The demo page in a real browser: a dragged box and a click become a mask."""

import os
from pathlib import Path

import httpx
import pytest
import simplejpeg

from tests.review.app_page import CHROMIUM, needs_chromium
from tests.sam2_core.serving.conftest import serving
from tests.sam2_core.serving.test_triton_server import street

pytestmark = [pytest.mark.ci, needs_chromium]


@pytest.fixture
def page_url(tmp_path):
    picture = tmp_path / "street.jpg"
    picture.write_bytes(simplejpeg.encode_jpeg(street(), 92, "RGB"))
    with serving("compact", "--threads", "1", "--demo", str(picture)) as server:
        yield server["page"]


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
        browser.close()


def test_who_has_the_link_gets_masks_and_is_told_what_is_wrong(page_url):
    with httpx.Client(base_url=page_url.partition("?")[0], trust_env=False, timeout=30) as client:
        assert client.get("picture").status_code == 403
        client.get(page_url)  # the link gives a cookie
        good = {"box": [195, 290, 405, 410], "points": []}
        assert client.post("mask", json=good).json()["area_px"] > 10_000
        for wrong in ({}, {"box": [1, 2], "points": []}, {"box": None, "points": []}, [1]):
            answer = client.post("mask", json=wrong)
            assert answer.status_code == 400
            assert answer.json()["error"]
        assert client.get("picture").status_code == 200
        assert client.get("../etc/passwd").status_code == 404
