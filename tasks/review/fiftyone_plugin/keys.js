// Keys and buttons of the review, and what they do. FiftyOne's own shortcuts are single letters, so
// these need Shift; none of them acts while somebody types into a field. A key acts on the selected
// labels; with none selected, on the one with the focus. A decision on that one is shown at once, then
// written, one after the other: until the server has written it its mark is dots. One that it refuses is
// taken off the picture, its frame is opened again, its label has the focus, and the reason is said.
(function () {
  const review = window.autolabelReview;
  const foo = window.__foo__;
  const { pause } = review, { frameIsOpen } = review.fiftyone;
  const PLUGIN = "sam2-autolabel";
  // What the keys and buttons do. `key` needs Shift, unless the act is `plain` and a frame is open; what has none is
  // above the grid and has no icon: FiftyOne shows words then. `decision` is what the act makes of a label, `onLabels` says
  // that it is about some without that.
  const ACTS = {
    repair: { key: "C", plain: true, label: "Repair the mask", icon: "ads_click" },
    accept: { key: "A", plain: true, label: "Accept", icon: "check", decision: "accepted" },
    reject: {
      key: "R", plain: true, label: "Reject", icon: "close", decision: "rejected",
      told: "there is no such object, or its mask is of no use",
    },
    fix_class: { key: "F", plain: true, label: "Fix the class", icon: "label", decision: "corrected" },
    merge: { key: "M", label: "Merge", icon: "merge", onLabels: true, told: "the selected labels become one, with the class of the largest" },
    delete: {
      key: "D", label: "Delete", icon: "delete", decision: "deleted",
      told: "the object is there, and another label has it already",
    },
    spread: { key: "O", label: "Repeat the last decision on its whole object", icon: "layers" },
    follow: {
      key: "T", label: "Follow from here", icon: "fast_forward",
      told: "carries a mask through the drive: that of the selected label, or of the one with the focus if it is decided, else the one you decided on last",
    },
    nothing_here: {
      key: "X", label: "Nothing here", icon: "block", told: "the frame shows no object, and its labels are wrong",
    },
    sequence_done: { key: "E", label: "Sequence done", icon: "done_all" },
    undo: { key: "Z", label: "Undo", icon: "undo", told: "as Ctrl+Z does" },
    redo: { key: "Y", label: "Redo", icon: "redo", told: "as Ctrl+Y does" },
    refresh_queue: { label: "Order again" },
    open_sequence: { label: "Open a sequence" },
  };
  const BY_KEY = new Map(Object.entries(ACTS).map(([act, { key }]) => [key, act]));
  const MOVES = {
    N: () => review.moveFocus(1),
    P: () => review.moveFocus(-1),
    ArrowRight: () => turn({ step: 1 }),
    ArrowLeft: () => turn({ step: -1 }),
  };
  const ABOUT_KEYS = [["⇧ Shift"], "needed on ticked tiles of the grid; on an open frame the letter alone is enough where it is listed"];
  const MORE_KEYS = [
    [["Shift+N", "Shift+P"], "next label of the frame, label before; after the last one comes the first"],
    [["Shift+→", "Shift+←"], "next frame, frame before"],
    [["+", "−", "wheel"], "zoom"],
    [["Z"], "zoom to the selected labels, else to the one with the focus, and on with it; pressed again, zoom out"],
    [["Escape"], "zoom out again; then select nothing; then close the frame"],
    [["Annotate"], "the tab beside the picture: draw a box around an object that has no label"],
    review.LEGEND,
    [["outline"], "in the colour of its class: undecided; white corners: the label that a key acts on; thin white dashes: one that the view leaves " +
      "out; orange and pink, with names: what two who disagree have decided"],
    [["2 of 5"], "on a tile: 2 of the 5 labels that the view shows are decided; with ✓ the frame is done: all of it is decided, or somebody has marked it"],
    [["3 hidden, 2 decided"], review.strip.HIDDEN],
  ];
  const MOST_WAITING = 8;
  const SEEN_MS = 400, TURN_MS = 20_000, EMPTY_MS = 300, SILENT_MS = 60_000, LOOK_MS = 3000;
  const AWAY = "the App does not answer: the terminal where it was started says why. What has its mark is in storage";
  const WRITING = "writing your decisions …";
  const queue = []; // decisions that are not written yet, oldest first
  let writing = Promise.resolve(), drawing = Promise.resolve();
  let changes = {}; // written, and not in FiftyOne's caches yet: lists by sample id
  let busy = false, isDrawing = false;
  let stopFollowing = null;
  let lastFocus = null; // id of the label that had the focus when an act on all labels of a frame began

  const words = (act) => ACTS[act]?.label.toLowerCase() ?? act.replaceAll("_", " ");

  function focusParams() {
    const label = frameIsOpen() ? review.focused() : null;
    return label ? { focus: { sample_id: review.openId(), label_id: label.id } } : {};
  }

  // Runs an operator by FiftyOne's own queue, which knows view and selection; returns what it says.
  function call(name, params) {
    const said = new Promise((answer) => {
      foo.executeOperator(`${PLUGIN}/${name}`, params, { callback: (done) => answer(done?.result ?? null) });
    });
    return Promise.race([said, pause(SILENT_MS)]);
  }

  function ask(act, params = {}) {
    return call("review", { act, view: review.strip.viewNow(), ...params });
  }

  // Asks past FiftyOne's queue, which takes longer than the answer.
  async function send(act, params, more = {}) {
    const asked = fetch("/operators/execute", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({
        operator_uri: `${PLUGIN}/review`, dataset_name: review.open.dataset, params: { act, view: review.strip.viewNow(), ...params },
      }),
      ...more,
    });
    const answer = await asked.catch((error) => {
      throw error.name === "AbortError" ? error : new Error(AWAY);
    });
    if (!answer.ok) throw new Error(`the App answers ${answer.status}: reload the page and sign in again`);
    const found = await answer.json();
    if (found.error || !found.result) throw new Error(found.error_message || "the App gives no answer");
    if (found.result.away) throw new Error(found.result.message); // the next ones would wait as long
    return found.result;
  }

  // A page outlives the App that it is of: one that is back is asked for the page anew.
  let isAway = false;

  // FiftyOne puts a bare error in the place of the whole page where it asks in vain, so nothing that
  // it would ask for starts while the App is away.
  async function isThere() {
    const there = await fetch("/fiftyone", { cache: "no-store" }).then((answer) => answer.ok, () => false);
    if (there && isAway && !queue.length) location.reload();
    return there && !isAway;
  }

  setInterval(async () => {
    if ((await isThere()) || isAway) return;
    isAway = true;
    const name = decodeURIComponent(location.pathname.split("/")[2] ?? "DATASET");
    review.show("away", `The review has ended, or the connection is lost. Decisions with their mark are in storage.
      \n${review.strip.command() || `autolabel review '${name}'`}
      \n(or autolabel up) starts it again and prints the address to open.`);
  }, LOOK_MS);

  async function reachable() {
    const there = await isThere();
    if (!there) review.complain(AWAY);
    return there;
  }

  // Does one thing at a time: a key that comes while another frame opens would be about a label that
  // nobody has seen.
  async function alone(act) {
    if (busy) return undefined;
    busy = true;
    try {
      return await act();
    } finally {
      busy = false;
      draw();
    }
  }

  async function aloneAfterAll(act) {
    while (busy) await pause(20);
    return alone(act);
  }

  async function start(act) {
    review.hide("done"); // that is of the act before
    review.fiftyone.unlock(); // after Ctrl+Z
    if (act === "repair") await review.repair();
    else await alone(() => pressed(act));
  }

  async function pressed(act) {
    const label = frameIsOpen() ? review.focused() : null, selected = review.selectedLabels();
    const { decision, onLabels } = ACTS[act];
    if (frameIsOpen() && (decision || onLabels) && !label && !selected.length) {
      review.complain("no label of this frame is left to decide");
      return;
    }
    const isQuick = decision && label && !selected.length;
    if ((isAway || !isQuick || act === "fix_class") && !(await reachable())) return;
    if (act === "follow") {
      const isFocus = label && review.decisionOf(label), isLast = !isFocus && !selected.length;
      await follow(isFocus ? focusParams() : {}, isLast ? "what you decided on last, " : "");
      return;
    }
    const params = await answers(act, label);
    if (!params) return;
    if (isQuick) await decide(act, label, params);
    else await review.during(`${words(act)} …`, run(act, { ...focusParams(), ...params }));
  }

  // What an act has to know besides labels; null if somebody gives up.
  async function answers(act, label) {
    if (act === "fix_class") {
      const [selected] = review.selectedLabels();
      const shown = selected ? review.labels().find((one) => one.id === selected) : label;
      const now = shown && review.correctionOf(shown).label;
      const rows = ((await ask("classes"))?.classes ?? []).map((name) => [name, name]);
      const class_name = await review.pick("class-picker", "Fix the class", rows, (typed) => `new class "${typed}"`, now);
      return class_name && { class_name };
    }
    if (act === "open_sequence") {
      const rows = (await ask("sequences"))?.sequences ?? [];
      const other = (typed) => `all with "${typed}" in their names`;
      const sequence = await review.pick("sequence-picker", "Open a sequence", rows, other);
      return sequence && { sequence };
    }
    return {};
  }

  // Follows an object step by step: a person sees how far it is, and Escape ends it there.
  async function follow(params, which) {
    await writing;
    let far = await review.during("looking at the sequence …", ask("follow_begin", params));
    let stopped = false;
    const began = performance.now();
    const left = () => {
      const seconds = (performance.now() - began) / 1000 / far.frames * (far.of - far.frames);
      return far.frames ? `, about ${seconds > 90 ? `${Math.round(seconds / 60)} min` : `${Math.ceil(seconds)} s`} left` : "";
    };
    stopFollowing = () => { stopped = true; };
    try {
      while (far?.ok && !far.done && !stopped) {
        const how = `${which}the ${far.object} ${far.way} from frame ${far.start}: looked at ${far.frames} of ${far.of} frames, ${far.masks} got a mask`;
        review.show("wait", `following ${how}${left()} · Escape stops and keeps what is there, other keys rest`);
        const further = await ask("follow_step", { following: far.following });
        far = further && { ...far, ...further };
      }
    } finally {
      stopFollowing = null;
      review.hide("wait");
    }
    if (far?.ok) await review.during("writing …", run("follow_take", { following: far.following }));
    else review.complain(far?.message ?? AWAY);
  }

  // Has the server act; says how it went, and returns that when it is drawn.
  async function run(act, params) {
    await writing;
    await drawing;
    const done = await ask(act, params);
    if (done?.question) {
      const agreed = window.confirm(`${words(act)}: ${done.question}`);
      if (agreed) return run(act, { ...params, confirmed: true });
      review.tell("not done: the question was answered with no", "wrong"); // as a browser does that shows no questions
      return null;
    }
    const isOpen = frameIsOpen();
    if (done?.left && !isOpen) done.message += `; ${done.left}`;
    if (done?.message) review.tell(done.message, done.ok ? "done" : "wrong");
    if (done?.ok && act === "refresh_queue") review.fiftyone.saved.clear(); // all frames are loaded anew
    if (done?.ok && act === "nothing_here") lastFocus = params.focus?.label_id;
    if (done?.ok) review.strip.refresh().then(() => done.left && isOpen && review.strip.noteLeft(done.left));
    if (!done?.ok || !Object.keys(done.samples ?? {}).length) return done;
    review.strip.noteLeft(""); // that was of the decision before
    // The App asks for all buttons anew when a selection changes.
    if (review.selectedLabels().length) foo.executeOperator("@voxel51/operators/clear_selected_labels", {});
    if (!frameIsOpen()) foo.executeOperator("@voxel51/operators/clear_selected_samples", {});
    written(done.samples);
    await draw();
    await goOn(done, act);
    review.tell(done.message); // once more, as another frame that opened has taken it away
    return done;
  }

  // The focus goes on: after an undo, to the label that is undecided again, of several to the one that had it; from the last label to the
  // next frame, once the decision was seen: not after a redo, which shows what it did.
  async function goOn({ focus, frame, samples }, act) {
    if (!frameIsOpen()) return;
    if (act === "drawn" && frame === review.openId()) {
      review.focusOn(null); // what was drawn is decided: on with the next label, if one is left
      if (review.focused()) return;
    }
    const hadIt = focus && samples[frame]?.labels.detections?.some(({ _id }) => _id === lastFocus);
    if (focus || (frame && frame !== review.openId())) {
      await show(frame || review.openId(), hadIt ? lastFocus : focus, act === "redo" ? 1 : -1);
    } else if (act !== "redo" && samples[review.openId()] && review.isOver()) {
      await pause(SEEN_MS);
      await toNext();
    }
  }

  // Frames without anything to decide are passed by.
  async function toNext() {
    while (await turn({ step: 1, skips: true }) && review.isOver());
  }

  // Shows a decision; after the last one of a frame the next frame opens, once it was seen and is
  // written: if it is refused, its label is open still.
  async function decide(act, label, more) {
    const frame = review.openId();
    const focus = { sample_id: frame, label_id: label.id, decision: review.decisionOf(label) };
    const { decision } = ACTS[act], { class_name } = more;
    const isDone = () => review.isOver() && !review.focused() && review.openId() === frame;
    review.claim(label.id, decision, false);
    const reclassed = class_name && `class corrected: ${review.correctionOf(label).label} → ${class_name}`;
    review.strip.note(label.id, decision, reclassed || `${decision}: ${label.label}`);
    review.focusOn(null);
    write({ act, focus, params: { ...more, focus } });
    if (queue.length >= MOST_WAITING) await review.during(WRITING, writing);
    if (!isDone()) return;
    await Promise.all([pause(SEEN_MS), review.during(WRITING, writing)]);
    if (isDone()) await toNext();
  }

  function write(decision) {
    queue.push(decision);
    writing = writing.then(async () => {
      if (!queue.includes(decision)) return; // refused together with one before it
      try {
        const done = await send(decision.act, decision.params, { keepalive: true });
        queue.shift();
        written(done.samples ?? {});
        if (done.ok && !queue.length) review.strip.noteLeft(done.left);
        if (!done.ok) refuse([decision], done.message, done.samples?.[decision.focus.sample_id]);
      } catch (error) {
        refuse(queue.splice(0), error.message);
      }
      if (!queue.length && !busy) draw();
    });
  }

  // What the server says of labels is what they are.
  function written(samples) {
    for (const [id, change] of Object.entries(samples)) {
      for (const one of change.labels.detections ?? []) {
        review.fiftyone.inView.add(one._id);
        review.claim(one._id, one.decision ?? "", true);
        review.strip.note(one._id, one.decision);
        review.open.over.delete(one._id);
      }
      const isMarked = change.values.review_status === "done" && !change.labels.detections?.length;
      review.open.over[isMarked ? "add" : "delete"](id); // the open frame says itself whether it is over
      (changes[id] ??= []).push(change);
    }
    if (review.strip.isFinished()) review.strip.refresh(); // it says what comes next
    review.paint();
  }

  // Takes decisions off the picture. `stored` is what the server knows of the frame by now.
  async function refuse(decisions, why, stored) {
    const { focus } = decisions[0], { claims } = review.open;
    for (const one of decisions) {
      const id = one.focus.label_id;
      if (!claims.get(id)?.written) claims.delete(id);
    }
    if (stored) review.lookAround(); // somebody has decided since
    review.complain(decisions.length > 1 ? `${decisions.length} decisions were not written: ${why}` : why);
    review.strip.refresh();
    review.paint();
    if (stored?.gone.includes(focus.label_id) || claims.get(focus.label_id)?.decision) return;
    await aloneAfterAll(async () => {
      if (frameIsOpen()) await show(focus.sample_id, focus.label_id, -1);
    });
  }

  // Brings what is written into FiftyOne's own caches and canvas.
  function draw() {
    drawing = drawing.then(async () => {
      const samples = changes;
      if (!Object.keys(samples).length) return;
      changes = {};
      isDrawing = true;
      await call("redraw", { samples });
      isDrawing = false;
    });
    return drawing;
  }

  function isSettled() {
    return !queue.length && !isDrawing && !Object.keys(changes).length;
  }

  // Opens another frame; returns when it is drawn.
  async function turn(params) {
    return (await reachable()) && review.during("loading the frame: keys rest until it is there", load(params));
  }

  async function load(params) {
    const before = review.open.looker;
    const done = await call("turn", params);
    const late = performance.now() + TURN_MS;
    let prepared = 0;
    while (done?.turned && performance.now() < late) {
      const looker = review.open.looker;
      if (looker !== before && looker && review.fiftyone.isReady(looker) && !review.waits(review.openId())) {
        prepared ||= performance.now();
        if (review.labels().length || performance.now() - prepared > EMPTY_MS) return true;
      }
      await pause(20);
    }
    return false;
  }

  // Shows a frame, or the tile of a label, with the focus on the label.
  async function show(frame, label, step) {
    const wanted = review.isPatch() ? label : frame;
    if (wanted === review.tileId()) {
      review.focusOn(label);
    } else if (wanted) {
      review.open.next = label || null; // has the focus as soon as it is there
      await turn({ to: wanted, step });
    }
  }

  // FiftyOne hides all labels while Shift is held, and for good when its release falls between two
  // frames. Shift belongs to the keys of the review here.
  for (const kind of ["keydown", "keyup"]) {
    window.addEventListener(kind, (event) => {
      if (event.key === "Shift" && frameIsOpen()) event.stopImmediatePropagation();
    }, true);
  }

  window.addEventListener("keydown", (event) => {
    if (stopFollowing && event.key === "Escape") {
      stopFollowing();
      event.preventDefault();
      event.stopImmediatePropagation(); // FiftyOne would close the frame
      return;
    }
    const { target } = event, isHeld = event.ctrlKey || event.metaKey; // with Ctrl, undo and redo alone are ours
    const isOurs = !isHeld || /^[zy]$/i.test(event.key) && (review.strip.isShown() || !frameIsOpen());
    if (!isOurs || event.altKey || document.querySelector("dialog[open]")) return;
    if (target?.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target?.tagName)) return;
    const isQuestion = event.key === "?" && (review.strip.isShown() || !frameIsOpen());
    const named = BY_KEY.get(isHeld && event.shiftKey ? "Y" : event.key.toUpperCase()); // Ctrl+Shift+Z
    const act = isHeld || event.shiftKey || (review.strip.isShown() && ACTS[named]?.plain) ? named : null;
    const isZoom = !isHeld && event.key === "z" && review.strip.isShown() && !review.selectedLabels().length && review.focused();
    const move = isZoom ? zoom : event.shiftKey && frameIsOpen() ? MOVES[event.key] : null;
    if (!act && !move && !isQuestion) {
      // A click on a button takes the focus from the picture.
      if (target === document.body && review.strip.isShown()) review.fiftyone.hear(review.open.looker, event);
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    if (isQuestion) help();
    else if (move) alone(move);
    else if (!event.repeat) start(act); // a key that is held decides once
  }, true);

  function zoom() {
    review.fiftyone.zoomTo(review.open.looker, review.correctionOf(review.focused()));
  }

  function help() {
    const told = { ...ACTS, spread: { ...ACTS.spread, told: review.strip.last() } };
    const acts = Object.values(told).filter(({ key }) => key).map(({ key, plain, label, told: more }) => [
      [...(plain ? [key] : []), `Shift+${key}`], `${label.toLowerCase()}${more ? `: ${more}` : ""}`,
    ]);
    review.strip.help([ABOUT_KEYS, ...acts, ...MORE_KEYS]);
  }

  const begin = (key, text, act) => [key, text, () => start(act), ACTS[act].told];
  review.offer([
    begin("⇧Z", "undo", "undo"), begin("A", "accept", "accept"), begin("R", "reject", "reject"),
    begin("F", "class", "fix_class"), begin("C", "repair", "repair"),
    ["⇧N", "next", () => alone(MOVES.N)], ["?", "all keys", help],
  ]);

  // A page that is left sends what it has not sent yet; the browser asks first.
  window.addEventListener("beforeunload", (event) => {
    if (queue.length) event.preventDefault();
  });
  window.addEventListener("pagehide", () => {
    for (const one of queue.splice(1)) send(one.act, one.params, { keepalive: true }).catch(() => null);
  });

  // Buttons do what the keys do.
  for (const [act, { key, label, icon, told }] of Object.entries(ACTS)) {
    const { Button, Placement, Places } = foo.types;
    review.operator(`press_${act}`, {
      async resolvePlacement() {
        const text = `${label}${key ? ` (Shift+${key})` : ""}${told ? `: ${told}` : ""}`;
        const place = key ? Places.SAMPLES_VIEWER_ACTIONS : Places.SAMPLES_GRID_SECONDARY_ACTIONS;
        return new Placement(place, new Button({ label: text, icon: icon && `/assets/${icon}.svg`, prompt: false }));
      },
      execute: () => start(act),
    });
  }
  const act = (name, params) => aloneAfterAll(() => run(name, { ...focusParams(), ...params }));
  Object.assign(review, { ask, send, act, reachable, isSettled, busy: () => busy });
})();
