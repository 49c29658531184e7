"""Deciding from the keyboard, every redraw watched: what the browser paints, not what it says."""

from __future__ import annotations

from typing import Any

from tests.review.app_page import review_state

DECISION_OF = {"Shift+A": "accepted", "Shift+R": "rejected", "Shift+D": "deleted"}
PATIENCE_S = 20.0
# Share of the outline of a label, as the layer has it, that has a colour; watched with every frame
# that the browser paints, as the next frame may be open soon after.
WATCH = """() => {
  const review = window.autolabelReview;
  const COLOURS = { "Shift+A": "#22c55e", "Shift+R": "#ef4444", "Shift+D": "#9ca3af" };
  const share = (id, key) => {
    const label = review.labels().find((one) => one.id === id);
    const layer = document.querySelector("canvas.autolabel-layer");
    if (!label || !layer) return 0;
    const pen = layer.getContext("2d"), density = window.devicePixelRatio || 1;
    const [x, y, w, h] = review.boxOnPage(label).map((one) => one * density);
    const wanted = [1, 3, 5].map((i) => parseInt(COLOURS[key].slice(i, i + 2), 16));
    const points = [];
    for (let part = 0.1; part < 0.95; part += 0.05) {
      points.push([x + part * w, y], [x + part * w, y + h]);
      points.push([x, y + part * h], [x + w, y + part * h]);
    }
    const left = Math.round(x) - 1, top = Math.round(y) - 1, width = Math.round(w) + 3;
    const { data } = pen.getImageData(left, top, width, Math.round(h) + 3); // each is slow
    const same = points.filter(([px, py]) => {
      const at = 4 * ((Math.round(py) - top) * width + Math.round(px) - left);
      return data[at + 3] > 150 && wanted.every((one, i) => Math.abs(data[at + i] - one) < 12);
    });
    return same.length / points.length;
  };
  // Marks of small labels cover a part of their outline.
  window.watch = (id, key) => {
    const started = performance.now(), before = share(id, key);
    const watched = window.watched = { before, most: before, ms: null };
    const look = () => {
      if (window.watched !== watched || watched.ms !== null) return;
      watched.most = Math.max(watched.most, share(id, key));
      if (watched.most >= before + 0.3) watched.ms = performance.now() - started;
      else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  };
}"""


def begin_watching(page: Any) -> None:
    """Have the page watch what it paints."""
    page.wait_for_function("() => document.querySelector('[data-review-focus]')")
    page.evaluate(WATCH)


def decide(page: Any, key: str) -> tuple[str, float, str]:
    """Press a key and wait until the App is ready for the next.

    Returns:
        The label that had the focus, milliseconds until it was drawn, and what was wrong.

    """
    from playwright.sync_api import TimeoutError as TooLate

    focus = review_state(page).get("reviewFocus", "")
    if not focus:
        return "", 0.0, "no label has the focus"
    page.evaluate("([id, key]) => window.watch(id, key)", [focus, key])
    page.keyboard.press(key)
    try:
        page.wait_for_function("() => window.watched.ms !== null", timeout=PATIENCE_S * 1000)
    except TooLate:
        seen = page.evaluate("() => window.watched")
        shares = f"{seen['before']:.0%} -> {seen['most']:.0%} of its outline"
        return focus, 0.0, f"{key} on {focus}: {shares}"
    seen = page.evaluate("() => window.watched")
    page.wait_for_function("() => !window.autolabelReview.busy()", timeout=PATIENCE_S * 1000)
    return focus, seen["ms"], ""
