// What the review has to say over the open frame: that keys rest while something is loaded or written,
// and why a decision was refused. FiftyOne's own notifications are gone after two seconds.
(function () {
  const review = window.autolabelReview;
  const PATIENCE_MS = 250; // what is quicker needs no sign
  const REASON_MS = 20_000;
  const LOOKS = { wait: "background:#111827e6;color:#f3f4f6", wrong: "background:#b91c1c;color:#fff" };
  const signs = new Map(); // by kind

  function show(kind, text) {
    hide(kind);
    const bottom = kind === "wait" ? 24 : 70;
    const sign = review.element(
      "div",
      `position:fixed;left:50%;bottom:${bottom}px;transform:translateX(-50%);z-index:100001;` +
        "max-width:70%;padding:8px 18px;border-radius:8px;font:15px sans-serif;" +
        `pointer-events:none;box-shadow:0 4px 24px #000a;${LOOKS[kind]}`,
      document.body,
      text,
    );
    sign.dataset.cy = `review-${kind}`;
    sign.setAttribute("role", kind === "wrong" ? "alert" : "status");
    signs.set(kind, sign);
  }

  function hide(kind) {
    signs.get(kind)?.remove();
    signs.delete(kind);
  }

  // Says what is waited for, if it takes a moment.
  async function during(text, what) {
    const late = setTimeout(() => show("wait", text), PATIENCE_MS);
    try {
      return await what;
    } finally {
      clearTimeout(late);
      hide("wait");
    }
  }

  // Says why something was not done; until the next key or click.
  let since = 0, fading = 0;
  function complain(text) {
    show("wrong", text);
    since = performance.now();
    clearTimeout(fading);
    fading = setTimeout(() => hide("wrong"), REASON_MS);
  }
  for (const kind of ["keydown", "mousedown"]) {
    window.addEventListener(kind, (event) => {
      if (event.key !== "Shift" && performance.now() - since > PATIENCE_MS) hide("wrong");
    }, true);
  }

  Object.assign(review, { during, complain });
})();
