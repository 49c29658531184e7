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
  const ON_LABELS = new Set(["accept", "reject", "fix_class", "merge", "delete", "send_to_relabel"]);
  const SEEN_MS = 150, TURN_MS = 20_000, EMPTY_MS = 300;
  let busy = false;

  function frameIsOpen() {
    return Boolean(document.querySelector("[data-cy=modal]"));
  }

  function focusParams() {
    const label = frameIsOpen() ? review.focused() : null;
    return label ? { focus: { sample_id: review.openId(), label_id: label.id } } : {};
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
      review.draw();
    }
  }

  function press(name) {
    return alone(() => pressed(name));
  }

  async function pressed(name) {
    const label = frameIsOpen() ? review.focused() : null, params = {};
    if (frameIsOpen() && ON_LABELS.has(name) && !label && !review.selectedLabels().length) {
      foo.executeOperator("@voxel51/operators/notify", { message: "no label of this frame is left to decide" });
      return;
    }
    const quick = label && review.isQuick(name);
    if ((!quick || name === "fix_class") && !(await review.reachable())) return;
    if (name === "fix_class") {
      const [selected] = review.selectedLabels();
      const shown = selected ? review.labels().find((one) => one.id === selected) : label;
      params.class_name = await review.pickClass("Fix the class", shown && review.correctionOf(shown).label);
      if (!params.class_name) return;
    }
    if (quick) {
      await review.decide(name, label, params);
      return;
    }
    await review.allWritten();
    Object.assign(params, focusParams());
    if (ASKS.has(name)) foo.executeOperator(`${PLUGIN}/ask`, { operator: name, params });
    else await review.during(`${name.replaceAll("_", " ")} …`, run(name, params));
  }

  // Runs an operator; returns what it says when its labels are on the canvas.
  async function act(name, params) {
    while (busy) await review.pause(20);
    return alone(async () => {
      await review.allWritten();
      return run(name, params);
    });
  }

  async function run(name, params) {
    const drawn = new Promise((settled) => { review.settled = settled; });
    const done = await review.ask(`${PLUGIN}/${name}`, params);
    if (done?.redraws) await Promise.race([drawn, new Promise((late) => setTimeout(late, 10_000))]);
    return done;
  }

  function typing(target) {
    return target && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
  }

  // FiftyOne hides all labels while Shift is held, and for good when its release falls between two
  // frames. Shift belongs to the keys of the review here.
  for (const kind of ["keydown", "keyup"]) {
    window.addEventListener(kind, (event) => {
      if (event.key === "Shift" && frameIsOpen()) event.stopImmediatePropagation();
    }, true);
  }

  window.addEventListener("keydown", (event) => {
    if (!event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing(event.target) || document.querySelector("[data-cy=review-confirm]")) return;
    const name = BUTTONS[event.key]?.[0];
    const move = frameIsOpen() ? MOVES[event.key] : null;
    if (!name && !move) return;
    event.preventDefault();
    event.stopPropagation();
    if (move) alone(move);
    else if (!event.repeat) press(name); // a key that is held decides once
  }, true);

  // Opens another frame; returns when it is drawn.
  async function turn(params) {
    if (await review.reachable()) await review.during("loading the frame: keys rest until it is there", load(params));
  }

  async function load(params) {
    const before = review.open.looker;
    const done = await review.ask(`${PLUGIN}/turn`, params);
    const late = performance.now() + TURN_MS;
    let prepared = 0;
    while (done?.turned && performance.now() < late) {
      const looker = review.open.looker;
      if (looker !== before && looker?.state.overlaysPrepared && !review.waits(review.openId())) {
        prepared ||= performance.now();
        if (review.labels().length || performance.now() - prepared > EMPTY_MS) return;
      }
      await review.pause(20);
    }
  }

  // Shows a frame, or the tile of a label, with the focus on the label.
  async function show(frame, label, step) {
    const wanted = review.isPatch() ? label : frame;
    if (wanted === review.tileId()) {
      review.focusOn(label);
    } else if (wanted) {
      review.focusNext(label); // as soon as it is there
      await turn({ to: wanted, step });
    }
  }

  // The same, of what was refused.
  async function goTo(frame, label) {
    while (busy) await review.pause(20);
    await alone(async () => {
      if (!frameIsOpen()) return;
      await show(frame, label, -1);
    });
  }

  // After what was not shown before it was written: the focus goes on, from the last label to the next
  // frame once the decision was seen; after an undo, to the label that is undecided again.
  review.afterRedraw = async ({ focus, frame, step, samples }) => {
    if (!frameIsOpen()) return;
    if (focus || (frame && frame !== review.openId())) {
      await show(frame || review.openId(), focus, step);
      return;
    }
    if (!samples[review.openId()] || review.undecided().length) return;
    await review.pause(SEEN_MS);
    await turn({ step: 1 });
  };

  class PressOpenSequence extends foo.Operator {
    get config() {
      return new foo.OperatorConfig({ name: "press_open_sequence", label: "Open a sequence", unlisted: true });
    }
    async resolvePlacement() {
      const view = new types.Button({ label: "Open a sequence", icon: "/assets/list.svg", prompt: false });
      return new types.Placement(types.Places.SAMPLES_GRID_SECONDARY_ACTIONS, view);
    }
    async execute() {
      const sequence = await review.pickSequence("Open a sequence");
      if (sequence) await review.ask(`${PLUGIN}/open_sequence`, { sequence });
    }
  }
  foo.registerOperator(PressOpenSequence, PLUGIN);

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

  Object.assign(review, { press, act, turn, goTo, busy: () => busy });
})();
