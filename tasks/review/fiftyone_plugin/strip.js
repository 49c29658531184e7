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
  const HIDDEN = "labels of the frame that the view does not ask about: hidden are those of objects asked about in another frame or " +
    "not at all; the others were decided before, and those kept are drawn as reviewed ones; press this to outline them; " +
    "'Open a sequence' above the grid shows their masks";
  const OUTSIDE = "the queue asks about as many objects as --budget says, about each once: by its riskiest label. Another label of this " +
    "object is asked about or decided, or the budget did not reach it";
  const PLACE = "place in the queue, which begins with the frame of the riskiest label, and how many of its decisions are left";
  const NOT_QUEUED = "not in the queue (i)";
  const SMALL = "white-space:normal;overflow-wrap:anywhere;font-size:12px;line-height:12px;max-height:36px;overflow:hidden";
  const WRAPPED = "white-space:normal;flex:0 1 auto;min-height:25px;padding:0 6px;font-size:12px;line-height:12px";
  // Of the view that is open if it is a queue, else of "needs review"; `said` is of labels on which two disagree and nobody has decided
  // since, `unseen` is of those whose decision is not shown: this reviewer's own opinion, "" where there is none yet.
  const standing = { queue: [], place: new Map(), decided: new Set(), unseen: {}, said: {}, words: {}, told: {}, about: "", where: "", last: "", left: "", command: "", who: "", next: "" };
  let bar = null, buttons = [], asked; // for which view

  function button(parent, look, act, text) {
    const made = element("button", `${BUTTON};${look}`, parent, text);
    made.addEventListener("click", () => {
      made.blur(); // else the space bar would press it again
      act();
    });
    return made;
  }

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
    part("place", "color:#9ca3af;font-size:12px;flex:none");
    bar.unseen = button(bar, "", () => review.showHidden());
    bar.unseen.dataset.cy = "strip-hidden";
    part("label", "font-weight:bold;max-width:12em;overflow:hidden;text-overflow:ellipsis");
    part("risk", "flex:none;border-radius:4px;padding:2px 7px;color:#111827;font-weight:bold");
    part("take", "display:flex;gap:8px;align-items:center;margin-right:auto;color:#9ca3af;font-size:12px");
    part("reasons", `${SMALL};flex:1 1 0;min-width:12em;cursor:help`);
    part("last", `color:#9ca3af;max-width:13em;${SMALL}`);
    part("left", `color:#fde047;max-width:10em;flex:none;${SMALL}`);
    for (const [key, text, act, told = ""] of buttons) {
      const made = button(bar, "", act);
      element("span", KEY, made, key);
      made.append(` ${text}`);
      made.title = told;
      made.dataset.cy = `strip-${text.replaceAll(" ", "-")}`;
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

  // Where labels are in the queue: the label with the focus, or those of a frame that has none, the last one.
  function placeOf(labels) {
    const ids = labels.flatMap(({ id, sources }) => [id, ...(sources ?? [])]);
    const at = Math.max(0, ...ids.map((id) => standing.place.get(id) ?? 0)), all = standing.queue.length;
    if (!all) return "";
    return at ? `no. ${at} · ${left() ? `${left()} of ${all} left` : `all ${all} decided`}` : NOT_QUEUED;
  }

  // What there is to do on a frame without a label to decide.
  function nothingLeft(labels) {
    const all = review.hiddenLabels().some((one) => !review.decisionOf(one)) ? "every label that this view shows" : "every label of this frame";
    if (labels.length && standing.next) return "the queue is finished: Escape leads to the grid, which says above its tiles what comes next";
    if (labels.length) return `${all} is decided: Shift+→, Shift+← lead on`;
    return review.isDone() ? "confirmed: nothing is here" : "no labels: Shift+X confirms that nothing is here";
  }

  function set(name, text, title = text) {
    if (bar[name].textContent !== text) bar[name].textContent = text;
    bar[name].title = title;
    bar[name].style.display = text ? "" : "none";
  }

  // A button for each of two who disagree, in the colour of that person's outline: their class and mask hold then.
  function offerMore(id, said) {
    const all = JSON.stringify([id, said]);
    if (bar.take.dataset.of === all) return;
    bar.take.dataset.of = all;
    bar.take.replaceChildren();
    const opinions = review.inFull(said);
    if (opinions.length) element("span", "flex:none", bar.take, "settle as");
    for (const { who, text, colour } of opinions) {
      const made = button(bar.take, `${WRAPPED};color:${colour};border-color:${colour}`, () => review.act("take", { who }), text);
      made.title = `take ${who}'s decision: class and mask as ${who} has them`;
    }
    review.fetchOpinions(id, opinions);
  }

  // What the frame shows now: the label that a key acts on, what was decided on it, or how many are selected.
  function draw(label, verdict, selected, labels) {
    if (!bar) build();
    if (asked !== viewNow()) refresh();
    const reasons = (!selected && label?.reasons) || [];
    const isDrawn = label?.sources?.length === 0; // by somebody: its frame has a place in the queue
    const place = placeOf(label && !selected && !isDrawn ? [label] : labels);
    const disputed = !selected && standing.said[label?.id]; // then others' decisions need the room
    const hidden = review.hiddenLabels(), decided = hidden.filter(review.decisionOf).length;
    const counts = [[hidden.length - decided, "hidden"], [decided, "decided"]].filter(([count]) => count);
    set("place", place, place === NOT_QUEUED ? OUTSIDE : PLACE);
    set("unseen", counts.map((one) => one.join(" ")).join(", "), HIDDEN);
    bar.unseen.ariaPressed = review.open.showsHidden;
    set("label", selected ? `${selected} selected` : label?.label ?? "");
    bar.label.style.flexShrink = disputed ? 99 : 0; // the picture says the class, too
    set("risk", label?.risk && !selected && !disputed ? `risk ${percent(label.risk)}` : "", "how likely the label is wrong");
    bar.risk.style.background = label?.risk > 0.5 ? "#fca5a5" : label?.risk > 0.2 ? "#fde047" : "#86efac";
    offerMore(disputed ? label.id : "", disputed || {});
    const doubts = reasons.length || verdict || !label?.risk ? inWords(reasons) : ["no single reason stands out"];
    const lacks = label && !selected && !label.mask && !label.mask_path ? "no mask yet: C makes one" : "";
    const said = [verdict, lacks, ...doubts].filter(Boolean).join(", ");
    const told = reasons.map((one) => `${inWords([one])}: ${standing.told[one] ?? ""}`);
    const all = `keys act on all ${selected}; Shift+M makes one of them`;
    const text = selected ? all : label ? said : nothingLeft(labels);
    set("reasons", disputed ? "" : text, [text, ...told].join("\n")); // all of it, where the strip has no room
    set("last", disputed ? "" : standing.last, `${standing.last}: your last decision, as ${standing.who}, which undo takes back`);
    set("left", disputed ? "" : standing.left, `${standing.left}: they get your last decision, too`);
  }

  function hide() {
    bar?.remove();
    bar = null;
    standing.left = ""; // whoever opens another frame looks at other objects
    guide();
  }

  const viewNow = () => new URL(location.href).searchParams.get("view");

  // Asks the server how far the queue is, and what was done last; returns the groups of the sidebar.
  async function refresh() {
    const isOther = ![undefined, viewNow()].includes(asked);
    asked = viewNow();
    const found = await review.ask("standing");
    // FiftyOne counts each view once, whatever was decided since.
    if (isOther) window.__foo__.executeOperator("@voxel51/operators/reload_samples", {});
    if (!found?.ok) return [];
    Object.assign(standing, found, { left: found.last === standing.last ? standing.left : "", decided: new Set(found.decided) });
    standing.place = new Map(found.queue.map((id, row) => [id, row + 1]));
    guide();
    review.paint();
    review.markTiles();
    return found.groups;
  }

  // Above the grid: what is left, and how to begin.
  function guide() {
    review.hide("guide");
    const { about, where, queue, next } = standing;
    if (!(left() || next) || !viewNow()) return; // FiftyOne has its stages there
    const ticked = viewNow().startsWith("label-by-label") ? "ticked labels, as many as you like" : "up to 20 ticked frames";
    const how = `click the first picture, then A accepts, R rejects (for ${ticked}: Shift+A, Shift+R); ? tells all keys`;
    const todo = left() ? `${left()} of ${queue.length} decisions left in ${where}` : next;
    const said = about ? [about, todo] : [todo, ...(left() ? [how] : [])];
    review.show("guide", [standing.who, said.join("; ")].filter(Boolean).join(": "));
  }

  // What was said is of another view.
  function leaveView() {
    if (asked === viewNow()) return;
    review.hide("guide");
    if (viewNow()) review.show("guide", "loading the view …");
    review.open.over.clear();
  }

  // What the last decision leaves open, as other labels of its object.
  function noteLeft(text) {
    standing.left = text;
    review.paint();
  }

  // A label has or has lost a decision; `last` says which.
  function note(id, decision, last) {
    if (standing.place.has(id)) standing.decided[decision ? "add" : "delete"](id);
    if (decision) delete standing.said[id];
    if (last) Object.assign(standing, { last, left: "" });
  }

  // Two reviewers disagree on it, and nobody has decided since.
  const isDisputed = (id) => id in standing.said;

  // Of a label whose decision is not shown.
  const ownOpinion = ({ id, _id, sources }) => [id ?? _id, ...(sources ?? [])].map((one) => standing.unseen[one]).find((one) => one !== undefined);

  // Another reviewer has decided on it, and this one has yet to say something, without seeing what.
  const isUnseen = (label) => ownOpinion(label) === "";

  const isQueued = (id) => standing.place.has(id);

  const isFinished = () => standing.queue.length > 0 && !left();

  // All keys; any key or click closes it.
  function help(rows) {
    const dialog = element("dialog", "margin:auto;padding:18px 22px;border:0;border-radius:8px;background:#1f2430;" +
      "color:#f3f4f6;font:15px sans-serif;box-shadow:0 8px 40px #000c", document.body);
    dialog.dataset.cy = "all-keys";
    const table = element("div", "display:grid;grid-template-columns:auto auto;gap:7px 16px;align-items:baseline", dialog);
    for (const [keys, text] of rows) {
      const cell = element("div", "text-align:right", table);
      for (const [key, look = ""] of keys.map((one) => [one].flat())) element("span", `${KEY};margin:0 0 0 6px;${look}`, cell, key);
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

  // FiftyOne's notifications would lie over the buttons.
  element("style", "", document.head, "body:has([data-cy=review-strip]) .notistack-SnackbarContainer { bottom: 44px !important }");

  // Goes with the picture: in the tab "Annotate" the keys are FiftyOne's.
  const isOpen = () => Boolean(document.querySelector("[data-cy=modal-looker-container]"));
  new MutationObserver(() => bar && !isOpen() && hide()).observe(document.body, { childList: true, subtree: true });

  Object.assign(review, {
    inWords, percent, strip: { HIDDEN, draw, last: () => standing.last, who: () => standing.who, command: () => standing.command, note, noteLeft, refresh, leaveView, help, isDisputed, ownOpinion, isUnseen, isQueued, isFinished, viewNow, isShown: () => Boolean(bar) },
    offer: (row) => { buttons = row; },
  });
})();
