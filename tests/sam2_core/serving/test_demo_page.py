"""The demo page in a real browser: a click alone and a dragged box become masks."""

import httpx
import numpy as np
import pytest
import simplejpeg

from tests.review.app_page import (
    VIEWPORT,
    RepairPage,
    browser_page,
    needs_chromium,
    save_picture,
)
from tests.sam2_core.serving.conftest import serving
from tests.sam2_core.serving.test_triton_server import street

pytestmark = [pytest.mark.ci, needs_chromium]


@pytest.fixture
def page_url(tmp_path, capfd):
    picture = tmp_path / "street.jpg"
    picture.write_bytes(simplejpeg.encode_jpeg(street(), 92, "RGB"))
    with serving("compact", "--threads", "1", "--demo", str(picture)) as server:
        assert server["page"] in capfd.readouterr().err, "whole, for a person to open"
        yield server["page"]


def test_a_click_alone_and_a_dragged_box_become_masks(page_url, tmp_path):
    with browser_page() as page:
        page.goto(page_url)
        repair = RepairPage(page)
        repair.canvas.wait_for()
        said = page.get_by_role("status")
        said.filter(has_text="click an object").wait_for()
        width, height = VIEWPORT["width"], repair.canvas.bounding_box()["height"]
        left, top = repair.place(0, 0)
        right, bottom = repair.place(1280, 720)
        assert min(right - left - width, bottom - top - height, key=abs) == pytest.approx(0, abs=2)
        before = repair.drawn()
        page.route("**/mask", lambda route: (page.wait_for_timeout(300), route.continue_()))
        assert not page.get_by_test_id("spinner").is_visible()
        page.mouse.click(*repair.place(300, 350))
        page.get_by_test_id("spinner").wait_for()
        said.filter(has_text="px; the model expects").wait_for()
        assert not page.get_by_test_id("spinner").is_visible()
        selected = np.abs(repair.drawn().astype(int) - before).max(-1) > 30
        x, y = (round(one) for one in repair.place(300, 380))
        assert selected[y - round(repair.canvas.bounding_box()["y"]), x], "the object has the mask"
        assert 0.005 < selected.mean() < 0.2
        save_picture(page, tmp_path, "serve-demo")
        undone = repair.after(lambda: page.keyboard.press("z"))
        assert np.abs(undone.astype(int) - before).mean() < 1
        page.mouse.move(*repair.place(195, 290))
        page.mouse.down()
        page.mouse.move(*repair.place(405, 410))
        boxed = repair.after(page.mouse.up)
        assert (np.abs(boxed.astype(int) - before).max(-1) > 30).mean() > 0.005
        page.mouse.wheel(0, -500)
        assert repair.place(1280, 720)[0] > right * 1.2, "zoomed"
        cleared = repair.after(lambda: page.keyboard.press("Escape"))
        assert np.abs(cleared.astype(int) - before).mean() < 1


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
