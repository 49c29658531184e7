// The open frame: which labels it shows, which one has the focus, and a layer over FiftyOne's canvas
// that shows both. FiftyOne paints by class; what was decided is ours to show.
(function () {
  const review = window.autolabelReview;
  const { fiftyone } = review;
  const CONTAINER = "[data-cy=modal-looker-container]";
  const FIELD = "detections";
  const MOMENT_MS = 1500;
  const DISAGREEMENTS = "disagreements", SECOND_OPINIONS = "second-opinions"; // views, as addresses have them
  const ABOUT_TWO = ["overlap", "duplicate"]; // reasons
  // `claims` are decisions that FiftyOne's labels do not have yet, by label id: what a key has just
  // decided, and what the server has written. `over` are tiles without anything left. `by` says who has decided on labels
  // of the frame before it was opened, `others` are all its labels, those too that the view leaves out; these are
  // outlined while `showsHidden`.
  const open = {
    looker: null, dataset: "", focus: null, next: null, kept: null, last: [], emptySince: null, drawn: 0, by: {}, others: [],
    showsHidden: false, claims: new Map(), over: new Set(),
  };

  // Labels of the machine that FiftyOne draws now, riskiest first: view and filters are applied. It
  // draws none for a moment whenever it paints anew; those before still count then.
  function labels() {
    if (!fiftyone.isThere(open.looker)) return [];
    const found = fiftyone.drawnLabels(open.looker, FIELD);
    const now = performance.now();
    if (found.length) open.emptySince = null;
    else open.emptySince ??= now;
    if (!found.length && now - open.emptySince < MOMENT_MS) return open.last;
    open.last = found.sort((a, b) => (b.risk ?? 0) - (a.risk ?? 0));
    return open.last;
  }

  // A reviewed label without a source is of an object that the machine has not found.
  function decisionOf({ id, sources, decision }) {
    if (review.strip.isDisputed(id)) return ""; // whatever this page has claimed before
    const stored = isBlind({ id, sources }) ? review.strip.ownOpinion({ id, sources }) : decision;
    return open.claims.get(id)?.decision ?? (sources?.length === 0 ? "added" : stored ?? "");
  }

  function claim(id, decision, written) {
    open.claims.set(id, { decision, written });
  }

  function undecided() {
    return labels().filter((one) => !decisionOf(one));
  }

  // The label with the focus: the one that was chosen, or else the riskiest undecided one. A decided
  // one has it until something else is decided on it.
  function focused() {
    const chosen = labelsInReach().find((one) => one.id === open.focus);
    if (chosen && ["", open.kept].includes(decisionOf(chosen))) return chosen;
    return undecided()[0] ?? null;
  }

  // A label that is decided on already can have it, too.
  function focusOn(id) {
    const label = labelsInReach().find((one) => one.id === id);
    open.focus = id;
    open.kept = label ? decisionOf(label) : null;
    // What a key would decide is always seen.
    const shown = focused() && correctionOf(focused());
    if (shown && !fiftyone.isInWindow(open.looker, shown)) fiftyone.zoomTo(open.looker, shown);
    paint();
  }

  // Labels that a key can get to: the machine's, and reviewed ones whose machine labels are not drawn.
  function labelsInReach() {
    const drawn = labels();
    return open.looker ? [...drawn, ...reviewedAlone(drawn)] : drawn;
  }

  // Moves the focus among the labels: 1 to the next one, -1 to the one before.
  function moveFocus(step) {
    const row = labelsInReach();
    if (!row.length) return;
    const at = row.findIndex((one) => one.id === focused()?.id);
    const to = at < 0 && step < 0 ? row.length - 1 : (at + step + row.length) % row.length;
    focusOn(row[to].id);
  }

  const boxOnPage = (label) => fiftyone.boxOnCanvas(open.looker, label);

  function layer(container) {
    let canvas = container.querySelector("canvas.autolabel-layer");
    if (!canvas) {
      canvas = document.createElement("canvas");
      canvas.className = "autolabel-layer";
      canvas.style.cssText = "position:absolute;inset:0;width:100%;height:100%;pointer-events:none";
      container.append(canvas);
    }
    const density = window.devicePixelRatio || 1;
    canvas.width = container.clientWidth * density;
    canvas.height = container.clientHeight * density;
    const pen = canvas.getContext("2d");
    pen.scale(density, density);
    return pen;
  }

  const selectedLabels = () => fiftyone.selectedLabels(open.looker);

  // What a machine label has become: another mask, perhaps, than the one it had; one together with others it was merged with.
  function correctionOf(label) {
    return fiftyone.drawnLabels(open.looker, "reviewed").find((one) => one.sources?.includes(label.id)) ?? label;
  }

  // Reviewed labels whose machine labels are not drawn: the queue has no decided labels any more when
  // it is opened again, and these are what people made of them.
  function reviewedAlone(drawn, reviewed = fiftyone.drawnLabels(open.looker, "reviewed")) {
    const shown = new Set(drawn.map((one) => one.id));
    return reviewed.filter((one) => !(one.sources ?? []).some((id) => shown.has(id)));
  }

  // Labels of the machine that the frame has and the view leaves out; a patch leaves out all but one.
  function hiddenLabels() {
    const drawn = new Set(labels().map(({ id }) => id));
    return isPatch() ? [] : open.others.filter(({ id }) => !drawn.has(id));
  }

  // Outlines them, or no longer.
  function showHidden() {
    open.showsHidden = !open.showsHidden;
    paint();
  }

  // Says in the strip what a key acts on.
  function describe(focus) {
    const selected = selectedLabels();
    const label = selected.length === 1 ? labelsInReach().find((one) => one.id === selected[0]) ?? null : focus;
    const count = selected.length > 1 || !label ? selected.length : 0;
    const shown = label && { ...correctionOf(label), id: label.id, reasons: label.reasons };
    review.strip.draw(shown, label ? verdictOn(label) : "", count, labelsInReach());
  }

  // Nothing is said of who has decided on it.
  const isBlind = (label) => review.strip.isUnseen(label) || review.strip.viewNow()?.startsWith(SECOND_OPINIONS);

  function verdictOn(label) {
    const decision = decisionOf(label);
    if (!decision && label.changed) return review.unseen(label);
    const told = review.markOf(decision), ids = [label.id, ...(label.sources ?? [])];
    const by = ids.map((id) => open.by[id]).find(Boolean); // before what this page decides
    if (decision && review.strip.viewNow() === DISAGREEMENTS && ids.some(review.strip.isQueued)) return `${told}, which settles it`;
    if (!decision || !by || by === review.strip.who() || isBlind(label)) return told;
    const before = open.others.find(({ id }) => ids.includes(id))?.decision;
    if (decision !== before) return `${told}: you overruled ${by}`;
    const isAnew = ids.some((id) => open.claims.has(id));
    if (decision === "corrected" && isAnew) return told; // perhaps otherwise
    return `${told.replace(" ", ` ${by} `)} this`; // "✓ ana accepted this"
  }

  // Labels that the view leaves out: all if somebody asks for them, which a patch has no button for, else what the label with
  // the focus covers, or seems to be once more.
  function paintOthers(pen, focus) {
    const isAboutTwo = focus?.reasons?.some((one) => ABOUT_TWO.includes(one)), showsAll = open.showsHidden && !isPatch();
    const [x, y, w, h] = isAboutTwo ? focus.bounding_box : [0, 0, 0, 0], drawn = new Set(labels().map(({ id }) => id));
    for (const one of open.others) {
      const [left, top, width, height] = one.bounding_box;
      const isNear = left < x + w && x < left + width && top < y + h && y < top + height;
      if (drawn.has(one.id) || !(showsAll || (isAboutTwo && isNear))) continue;
      const decision = decisionOf(one), by = decision === one.decision && !isBlind(one) && open.by[one.id];
      const what = decision ? `${decision}${by ? ` by ${by}` : ""}` : showsAll ? "hidden" : "the other";
      review.paintOther(pen, boxOnPage(one), `${what}: ${one.label}`);
    }
  }

  async function lookAround() {
    const { looker } = open;
    Object.assign(open, { by: {}, others: [] });
    const found = await review.send("around", { sample_id: openId() }).catch(() => null);
    if (found?.ok && open.looker === looker) Object.assign(open, { by: found.by, others: found.labels });
    for (const one of open.others) if (decisionOf(one) && !isHeldBack(one)) review.strip.note(one.id, decisionOf(one));
    paint();
  }

  function paint() {
    const container = document.querySelector(CONTAINER);
    const looker = open.looker;
    if (!container || !fiftyone.isThere(looker)) return;
    fiftyone.adapt(looker);
    const pen = layer(container);
    const found = labelsInReach().map((label) => [label, decisionOf(label), correctionOf(label)]);
    const results = new Map(found.filter(([, one]) => one).map((one) => [one[2].id, one])); // of merged labels one
    const focus = focused(), named = focus && correctionOf(focus).id;
    const bare = review.strip.isDisputed(focus?.id) ? [named] : []; // both decisions are shown, as outlines
    if (fiftyone.drawnLabels(looker, FIELD).length) {
      const others = found.filter(([label, , shown]) => shown !== label).map(([label]) => label.id);
      fiftyone.leaveOut(new Set(others), new Set([...results.keys(), ...bare]), looker);
    }
    for (const [, decision, shown] of results.values()) {
      review.paintTint(pen, shown.mask?.bitmap, boxOnPage(shown), decision);
    }
    fiftyone.paintNames(pen, looker, ({ id }) => id !== named);
    for (const [label, decision, shown] of results.values()) {
      review.paintMark(pen, boxOnPage(shown), decision, open.claims.get(label.id)?.written ?? true);
    }
    // With labels selected, keys act on those.
    if (focus && !selectedLabels().length) review.paintFocus(pen, boxOnPage(correctionOf(focus)));
    paintOthers(pen, focus);
    if (focus) review.paintOpinions(pen, focus.id, boxOnPage(correctionOf(focus)));
    fiftyone.paintNames(pen, looker, ({ id }) => id === named);
    describe(focus);
    container.dataset.reviewSample = looker.sample?._id ?? looker.sample?.id ?? "";
    container.dataset.reviewFocus = focus?.id ?? "";
    container.dataset.reviewOpen = undecided().length;
    open.over[isOver() ? "add" : "delete"](tileId());
    container.dataset.reviewDrawn = ++open.drawn;
  }

  // Id of the frame that is open; of the frame of a patch.
  const openId = () => review.frameOf(open.looker?.sample);

  // Somebody has marked the frame as done.
  const isDone = () => review.asWritten(open.looker?.sample)?.review_status === "done";

  // Nothing is to be decided on the open frame: all its labels are decided, or it is marked as done and no opinion is asked for.
  const isOver = () => fiftyone.frameIsOpen() && (isDone() ? !undecided().some(isHeldBack) : labels().length > 0 && !undecided().length);

  // In a view of patches every tile is a label of its own, and the arrows lead from tile to tile.
  function isPatch() {
    return Boolean(open.looker?.sample?._sample_id);
  }

  // Id by which the arrows know what is open.
  function tileId() {
    return open.looker?.sample?._id ?? open.looker?.sample?.id;
  }

  // Recoil holds the looker of the open frame; only an operator can ask it.
  review.operator("attend", {
    async execute({ state }) {
      const looker = await state.snapshot.getPromise(fiftyone.state.modalLooker);
      open.dataset = await state.snapshot.getPromise(fiftyone.state.datasetName);
      if (looker && looker !== open.looker) {
        open.looker = looker;
        open.focus = open.next;
        open.next = open.kept = null;
        open.last = [];
        const lacks = fiftyone.missing(looker);
        if (lacks.length) review.complain(`the review does not fit this FiftyOne, which lacks ${lacks.join(", ")}`);
        review.drawWaiting(review.openId());
        review.hide("done");
        tiles.forEach(findArrows);
        lookAround();
      }
      paint();
    },
  });

  // Another looker is that of another frame.
  fiftyone.onDrawn((canvas, looker) => {
    if (!canvas.closest?.(CONTAINER)) return;
    if (open.looker === looker) paint();
    else window.__foo__.executeOperator("sam2-autolabel/attend", {});
  }, (looker) => {
    if (fiftyone.isThere(looker) && !looker.canvas.closest("[data-cy=modal]")) paintTile(looker);
  });

  // A frame that its address has opened, as when the page is loaded anew, has no arrows: its tile behind it has.
  let hasArrows = false;
  function findArrows({ sample, canvas }) {
    if (hasArrows || !fiftyone.frameIsOpen()) return;
    const isItsTile = sample.id === tileId(), are = Boolean(fiftyone.state.modalNavigation.get());
    hasArrows = are || isItsTile;
    if (isItsTile && !are) canvas.click();
  }

  // Tiles of the grid, with what was decided since they were loaded.
  const tiles = new Set();
  function paintTile(looker) {
    tiles.add(looker);
    findArrows(looker);
    fiftyone.adapt(looker);
    const drawn = fiftyone.drawnLabels(looker, FIELD);
    const { instances, review_status, reviewed, detections } = review.asWritten(looker.sample);
    const decided = new Map([detections?.detections ?? detections ?? []].flat().map((one) => [one._id ?? one.id, one.decision]));
    const isLabel = Boolean(looker.sample._sample_id); // a tile of one label has the mark of that one alone
    const seen = (reviewed?.detections ?? []).filter((one) => !review.strip.isUnseen(one));
    const made = isLabel ? [] : reviewedAlone(drawn, seen).map((one) => [fiftyone.boxOnCanvas(looker, one), decisionOf(one)]);
    const marked = drawn.map((one) => [
      fiftyone.boxOnCanvas(looker, one),
      isHeldBack(one) ? decisionOf(one) : decided.get(one.id) ?? one.decision ?? "",
    ]);
    // Somebody may have marked the frame as done before this reviewer has said anything.
    const isDue = drawn.some((one) => isHeldBack(one) && !decisionOf(one)), isDone = review_status === "done" && !isDue,
      isEmpty = isDone && instances === 0 && !reviewed?.detections?.length;
    const isAll = isDone || (marked.length > 0 && !(instances > marked.length) && marked.every(([, decision]) => decision));
    looker.canvas.title = !isLabel && marked.some(([, one]) => one) ? "labels that this view shows, and how many are decided; ? tells the marks" : "";
    review.paintTile(looker.ctx, looker.canvas.width / (window.devicePixelRatio || 1), marked, made, isLabel, isEmpty, isAll);
  }

  // Its decision is not shown.
  const isHeldBack = (one) => review.strip.isDisputed(one.id) || isBlind(one);

  function markTiles() {
    for (const looker of tiles) {
      if (!fiftyone.isThere(looker)) tiles.delete(looker);
      else if (review.isWritten(looker.sample) || fiftyone.drawnLabels(looker, FIELD).some(isHeldBack)) fiftyone.drawAgain(looker);
    }
  }

  Object.assign(review, {
    open, openId, hiddenLabels, showHidden, isDone, isOver, isPatch, tileId, labels, decisionOf, claim, focused, boxOnPage, focusOn,
    moveFocus, lookAround, paint, selectedLabels, correctionOf, markTiles,
  });
})();
