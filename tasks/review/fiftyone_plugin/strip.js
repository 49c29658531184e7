// The strip below an open frame: where in the queue it is, what is doubted about the label with the
// focus, the last decision, and the keys as buttons. FiftyOne leaves this room free around the frame;
// its panels and placements have no place that is seen without a click.
(function () {
  const review = window.autolabelReview;
  const { element } = review;
  const BAR = "position:fixed;left:2.5%;right:2.5%;bottom:0;height:36px;z-index:1301;display:flex;gap:8px;" +
    "align-items:center;font:14px sans-serif;color:#f3f4f6;white-space:nowrap";
  const KEY = "font:bold 12px monospace;background:#f3f4f6;color:#111827;border-radius:3px;padding:1px 5px;margin-right:2px";
  const BUTTON = "font:13px sans-serif;color:#f3f4f6;background:#374151;border:1px solid #6b7280;border-radius:6px;" +
    "padding:3px 6px;cursor:pointer;flex:none";
  const CUT = "overflow:hidden;text-overflow:ellipsis;flex:0 1 auto;min-width:0";
  const MOST_REASONS = 3;
  const standing = { queue: [], place: new Map(), decided: new Set(), words: {}, last: "" };
  let bar = null, buttons = [], asked = false;

  // Parts of the strip that change, by name.
  function build() {
    bar = element("div", BAR, document.body);
    bar.dataset.cy = "review-strip";
    bar.setAttribute("role", "status");
    for (const kind of ["mousedown", "mouseup", "click"]) bar.addEventListener(kind, (event) => event.stopPropagation());
    const part = (name, style) => {
      bar[name] = element("span", style, bar);
      bar[name].dataset.cy = `strip-${name}`;
    };
    part("place", "flex:none;color:#9ca3af");
    part("label", `font-weight:bold;max-width:16em;${CUT}`);
    part("risk", "flex:none;border-radius:4px;padding:2px 7px;color:#111827;font-weight:bold");
    part("reasons", `${CUT};flex:1 1 auto`);
    part("last", `color:#9ca3af;max-width:18em;${CUT};flex:0 9 auto`);
    for (const [key, text, act] of buttons) {
      const button = element("button", BUTTON, bar);
      element("span", KEY, button, key);
      button.append(` ${text}`);
      button.dataset.cy = `strip-${text.replaceAll(" ", "-")}`;
      button.addEventListener("click", () => {
        button.blur(); // else the space bar would press it again
        act();
      });
    }
  }

  function percent(risk) {
    return `${Math.min(99, Math.max(1, Math.round(100 * risk)))}%`;
  }

  function inWords(reasons) {
    return (reasons ?? []).map((one) => standing.words[one] ?? one.replaceAll("_", " "));
  }

  function left() {
    return standing.queue.length - standing.decided.size;
  }

  // Where the label is in the queue; a view of other labels has no places.
  function placeOf(label) {
    const at = standing.place.get(label?.id), all = standing.queue.length;
    if (!all) return "";
    return `${at === undefined ? "" : `${at} of ${all} · `}${left() ? `${left()} left` : "all decided"}`;
  }

  function set(name, text, title = text) {
    if (bar[name].textContent !== text) bar[name].textContent = text;
    bar[name].title = title;
    bar[name].style.display = text ? "" : "none";
  }

  // What the frame shows now: the label that a key acts on, or how many are selected.
  function draw(label, decision, selected) {
    if (!bar) build();
    if (!asked) refresh();
    const reasons = selected ? [] : inWords(label?.reasons);
    const more = reasons.length - MOST_REASONS;
    const nothing = "every label of this frame is decided";
    set("place", placeOf(selected ? null : label));
    set("label", selected ? `${selected} selected` : label?.label ?? "");
    set("risk", label?.risk && !selected ? `risk ${percent(label.risk)}` : "");
    bar.risk.style.background = label?.risk > 0.5 ? "#fca5a5" : label?.risk > 0.2 ? "#fde047" : "#86efac";
    const said = [decision, ...reasons.slice(0, MOST_REASONS)].filter(Boolean).join(", ");
    set("reasons", label || selected ? `${said}${more > 0 ? ` and ${more} more` : ""}` : nothing, reasons.join(", "));
    bar.reasons.style.display = ""; // takes what room is left
    set("last", standing.last);
  }

  function hide() {
    bar?.remove();
    bar = null;
  }

  // Asks the server how far the queue is; nothing waits for it.
  async function refresh() {
    asked = true;
    const found = await review.ask("standing");
    if (!found?.ok) return;
    Object.assign(standing, found, { decided: new Set(found.decided) });
    standing.place = new Map(found.queue.map((id, row) => [id, row + 1]));
    review.paint();
  }

  // A label has or has lost a decision; `last` says which.
  function note(id, decision, last) {
    if (standing.place.has(id)) standing.decided[decision ? "add" : "delete"](id);
    if (last) standing.last = last;
  }

  // All keys; any key or click closes it.
  function help(rows) {
    const dialog = element("dialog", "margin:auto;padding:18px 22px;border:0;border-radius:8px;background:#1f2430;" +
      "color:#f3f4f6;font:15px sans-serif;box-shadow:0 8px 40px #000c", document.body);
    dialog.dataset.cy = "all-keys";
    const table = element("div", "display:grid;grid-template-columns:auto auto;gap:7px 16px;align-items:baseline", dialog);
    for (const [keys, text] of rows) {
      const cell = element("div", "text-align:right", table);
      for (const key of keys) element("span", `${KEY};margin:0 0 0 6px`, cell, key);
      element("div", "", table, text);
    }
    const close = (event) => {
      event.preventDefault();
      event.stopPropagation();
      dialog.remove();
    };
    dialog.addEventListener("keydown", (event) => event.key !== "Shift" && close(event));
    dialog.addEventListener("click", close);
    dialog.showModal();
  }

  // Goes with the picture: in the tab "Annotate" the keys are FiftyOne's.
  const isOpen = () => Boolean(document.querySelector("[data-cy=modal-looker-container]"));
  new MutationObserver(() => bar && !isOpen() && hide()).observe(document.body, { childList: true, subtree: true });

  Object.assign(review, {
    inWords, percent, strip: { draw, note, refresh, help, isShown: () => Boolean(bar) },
    offer: (row) => { buttons = row; },
  });
})();
