"""Pictures of Prefect's own pages: `python -m lab.tools.take_prefect_pictures FOLDER`.

Starts a server with a worker in a temporary folder, labels a few drives by `autolabel label` and
by a backfill, and takes the page of each run.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.integration.cluster import Cluster, wait_for
from tests.integration.runs import MICRO, write_sequence
from tests.review.app_page import CHROMIUM

VIEWPORT = {"width": 1400, "height": 1100}
BESIDE_THE_MENU = {"x": 256, "y": 0, "width": 1144, "height": 880}


def newest(cluster: Cluster, flow_name: str) -> dict[str, Any]:
    """Newest run of a flow."""
    body = {"flows": {"name": {"any_": [flow_name]}}, "sort": "START_TIME_DESC", "limit": 1}
    found: list[dict[str, Any]] = cluster.post("flow_runs/filter", body)
    return found[0] if found else {}


def take(cluster: Cluster, flow_name: str, target: Path) -> None:
    """Take the page of a flow's newest run, and of its artifacts."""
    from playwright.sync_api import sync_playwright

    run = newest(cluster, flow_name)
    page_url = cluster.api.removesuffix("/api")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=VIEWPORT)
        page.goto(f"{page_url}/runs/flow-run/{run['id']}")
        page.wait_for_selector("canvas", timeout=60_000)
        page.wait_for_timeout(6000)
        page.screenshot(path=str(target), type="jpeg", quality=85, clip=BESIDE_THE_MENU)
        page.get_by_text("Artifacts", exact=True).click()
        page.wait_for_timeout(3000)
        artifacts = target.with_name(f"{target.stem}-artifacts{target.suffix}")
        page.screenshot(path=str(artifacts), type="jpeg", quality=85, clip=BESIDE_THE_MENU)
        browser.close()


def main() -> None:
    """Label and take the pictures."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        for number, frames in enumerate((10, 4, 6)):
            write_sequence(home / "in" / f"drive-{number}", home / "boxes", frames)
        common = [str(home / "in"), "--boxes", str(home / "boxes"), "--chunk-frames", "2"]
        aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        with Cluster(home, **aws) as cluster:
            label = ["label", *common, "--out", str(home / "label"), "--model", MICRO, "--json"]
            cluster.home.run(*label)
            wait_for(lambda: newest(cluster, "label").get("state_type") == "COMPLETED")
            take(cluster, "label", folder / "prefect-label.jpg")
            cluster.start_worker()
            shard = ["backfill", *common, "--out", str(home / "shard"), "--model", MICRO]
            cluster.home.run(*shard, "--wait", timeout=900)
            take(cluster, "label-shard", folder / "prefect-shard.jpg")


if __name__ == "__main__":
    main()
