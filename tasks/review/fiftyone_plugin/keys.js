// Keys and buttons of the review. FiftyOne's own shortcuts are single letters, so these need Shift;
// none of them acts while somebody types into a field. A key acts on the selected labels; with none
// selected, on the one with the focus.
(function () {
  const review = window.autolabelReview;
  const foo = window.__foo__;
  const types = foo.types;
  const PLUGIN = "sam2-autolabel";
  const BUTTONS = {
    A: ["accept", "Accept", "check"],
    R: ["reject", "Reject", "close"],
    F: ["fix_class", "Fix the class", "label"],
    M: ["merge", "Merge", "merge"],
    D: ["delete", "Delete", "delete"],
    O: ["spread", "Whole object", "layers"],
    L: ["send_to_relabel", "Send to relabel", "refresh"],
    E: ["sequence_done", "Sequence done", "done_all"],
    Z: ["undo", "Undo", "undo"],
    Y: ["redo", "Redo", "redo"],
  };
  const MOVES = {
    N: () => review.moveFocus(1),
    P: () => review.moveFocus(-1),
    ArrowRight: () => turn({ step: 1 }),
    ArrowLeft: () => turn({ step: -1 }),
  };
  const ASKS = new Set(["send_to_relabel"]);
  const SEEN_MS = 150, TURN_MS = 8000;
  let busy = false;

  function frameIsOpen() {
    return Boolean(document.querySelector("[data-cy=modal]"));
  }

  function focusParams() {
    const label = frameIsOpen() ? review.focused() : null;
    if (!label) return {};
    const sample = review.open.looker.sample;
    return { focus: { sample_id: sample._sample_id ?? sample._id ?? sample.id, label_id: label.id } };
  }

  async function press(name) {
    if (busy) return; // the canvas has not caught up with the decision before
    const params = focusParams();
    if (ASKS.has(name)) {
      foo.executeOperator(`${PLUGIN}/ask`, { operator: name, params });
      return;
    }
    if (name === "fix_class") {
      params.class_name = await review.pickClass("Fix the class");
      if (!params.class_name) return;
    }
    await act(name, params);
  }

  // Runs an operator; returns what it says when its labels are on the canvas.
  async function act(name, params) {
    busy = true;
    try {
      const drawn = new Promise((settled) => { review.settled = settled; });
      const done = await review.ask(`${PLUGIN}/${name}`, params);
      if (done?.redraws) await Promise.race([drawn, new Promise((late) => setTimeout(late, 10_000))]);
      return done;
    } finally {
      busy = false;
    }
  }

  function typing(target) {
    return target && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
  }

  window.addEventListener("keydown", (event) => {
    if (!event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing(event.target) || document.querySelector("[data-cy=review-confirm]")) return;
    const name = BUTTONS[event.key]?.[0];
    const move = frameIsOpen() ? MOVES[event.key] : null;
    if (!name && !move) return;
    event.preventDefault();
    event.stopPropagation();
    if (name) press(name);
    else move();
  }, true);

  // Opens another frame; returns when it is drawn.
  async function turn(params) {
    const before = review.open.looker;
    const done = await review.ask(`${PLUGIN}/turn`, params);
    const late = performance.now() + TURN_MS;
    while (done?.turned && performance.now() < late) {
      const there = review.open.looker !== before && review.labels().length;
      if (there && !review.waits(review.openId())) return;
      await review.pause(20);
    }
  }

  // After a decision the focus goes to the next undecided label, and from the last one to the next
  // frame, once the decision was seen; after an undo, to the label that is undecided again.
  review.afterRedraw = async ({ focus, frame, step, samples }) => {
    if (!frameIsOpen()) return;
    if (frame && frame !== review.openId()) {
      review.focusNext(focus); // as soon as that frame is there
      await turn({ to: frame, step });
      return;
    }
    if (!samples[review.openId()]) return;
    if (focus) review.focusOn(focus);
    else if (review.focused()?.decision) review.focusOn(null);
    if (focus || review.undecided().length) return;
    await review.pause(SEEN_MS);
    await turn({ step: 1 });
  };

  // Buttons beside an open frame; they do what the keys do.
  for (const [key, [name, label, icon]] of Object.entries(BUTTONS)) {
    class Press extends foo.Operator {
      get config() {
        return new foo.OperatorConfig({ name: `press_${name}`, label, unlisted: true });
      }
      async resolvePlacement() {
        const text = `${label} (Shift+${key})`;
        const view = new types.Button({ label: text, icon: `/assets/${icon}.svg`, prompt: false });
        return new types.Placement(types.Places.SAMPLES_VIEWER_ACTIONS, view);
      }
      async execute() {
        await press(name);
      }
    }
    foo.registerOperator(Press, PLUGIN);
  }

  Object.assign(review, { press, act, busy: () => busy });
})();
