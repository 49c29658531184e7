// Decisions on the label with the focus: shown at once, then written, one after the other. Until the
// server has written one its mark is dots. One that it refuses is taken off the picture, its frame is
// opened again, its label has the focus, and the reason is said.
(function () {
  const review = window.autolabelReview;
  const foo = window.__foo__;
  const PLUGIN = "sam2-autolabel";
  const SHOWN = { accept: "accepted", reject: "rejected", delete: "deleted", fix_class: "corrected" };
  const MOST_WAITING = 8;
  const SEEN_MS = 150;
  const AWAY = "the App does not answer: the terminal where it was started says why. What has its mark is in storage";
  const queue = []; // not written yet, oldest first
  const waiters = []; // who waits for what is written
  let changes = {}; // written, and not in FiftyOne's caches yet, by sample id
  let sending = false, drawing = false;

  // Asks an operator without FiftyOne's own queue and forms, which take longer than the answer.
  async function send(operator, params, more = {}) {
    const asked = fetch("/operators/execute", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({
        operator_uri: `${PLUGIN}/${operator}`, dataset_name: review.open.dataset, params,
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

  // FiftyOne puts a bare error in the place of the whole page where it asks in vain, so nothing that
  // it would ask for starts while the App is away.
  function isThere() {
    return fetch("/fiftyone", { cache: "no-store" }).then((answer) => answer.ok, () => false);
  }

  async function reachable() {
    const there = await isThere();
    if (!there) review.complain(AWAY);
    return there;
  }

  // Whether a key acts on the label with the focus alone, by a decision that is known beforehand.
  function isQuick(name) {
    return Boolean(SHOWN[name] && review.focused() && !review.selectedLabels().length);
  }

  // Shows a decision; after the last one of a frame the next frame opens, once it was seen and is
  // written: if it is refused, its label is open still.
  async function decide(name, label, more) {
    const frame = review.openId();
    const focus = { sample_id: frame, label_id: label.id, decision: review.decisionOf(label) };
    review.claim(label.id, SHOWN[name], false);
    review.focusOn(null);
    queue.push({ name, focus, params: { ...more, focus, direct: true } });
    write();
    if (queue.length >= MOST_WAITING) await review.during("writing your decisions …", sentUpTo(MOST_WAITING - 1));
    if (review.undecided().length || review.openId() !== frame) return;
    await Promise.all([review.pause(SEEN_MS), review.during("writing your decisions …", sentUpTo(0))]);
    if (!review.undecided().length && review.openId() === frame) await review.turn({ step: 1 });
  }

  async function write() {
    if (sending) return;
    sending = true;
    while (queue.length) {
      const one = queue[0];
      let done;
      try {
        done = await send(one.name, one.params, { keepalive: true });
      } catch (error) {
        done = null;
        refuse(queue.splice(0), error.message);
      }
      if (done) {
        queue.shift();
        written(done.samples ?? {});
        if (!done.ok) refuse([one], done.message, done.samples?.[one.focus.sample_id]);
      }
      wake();
    }
    sending = false;
    wake();
    draw();
  }

  function wake() {
    waiters.splice(0).forEach((go) => go());
  }

  // What the server says of labels is what they are.
  function written(samples) {
    for (const [id, change] of Object.entries(samples)) {
      for (const one of change.labels.detections ?? []) review.claim(one._id, one.decision ?? "", true);
      changes[id] = review.both(changes[id], change);
    }
    review.paint();
  }

  // Takes decisions off the picture. `stored` is what the server knows of the frame by now.
  async function refuse(decisions, why, stored) {
    const { focus } = decisions[0], { claims } = review.open;
    for (const one of decisions) {
      const id = one.focus.label_id;
      if (!claims.get(id)?.written) claims.delete(id);
    }
    review.complain(decisions.length > 1 ? `${decisions.length} decisions were not written: ${why}` : why);
    review.paint();
    const gone = stored?.gone.includes(focus.label_id);
    if (!gone && !claims.get(focus.label_id)?.decision) await review.goTo(focus.sample_id, focus.label_id);
  }

  // Brings what is written into FiftyOne's own caches and canvas, once nobody waits for anything else.
  async function draw() {
    if (drawing || sending || review.busy() || !Object.keys(changes).length) return;
    drawing = true;
    const samples = takeChanges();
    try {
      await new Promise((done) => {
        foo.executeOperator(`${PLUGIN}/redraw`, { samples, quiet: true }, { callback: done });
      });
    } finally {
      drawing = false;
      wake();
    }
    draw();
  }

  // What is written and not drawn yet, for somebody else who draws.
  function takeChanges() {
    const taken = changes;
    changes = {};
    return taken;
  }

  function isSettled() {
    return !sending && !drawing && !queue.length && !Object.keys(changes).length;
  }

  // Returns when the server has answered on all decisions but so many.
  async function sentUpTo(left) {
    while (queue.length > left || (!left && sending)) await new Promise((done) => { waiters.push(done); });
  }

  // Returns when every decision is written, and drawn by FiftyOne, too.
  async function allWritten() {
    while (queue.length || sending || drawing) await new Promise((done) => { waiters.push(done); });
  }

  // A page that is left sends what it has not sent yet; the browser asks first.
  window.addEventListener("beforeunload", (event) => {
    if (queue.length) event.preventDefault();
  });
  window.addEventListener("pagehide", () => {
    for (const one of queue.splice(1)) send(one.name, one.params, { keepalive: true }).catch(() => null);
  });

  Object.assign(review, { send, isThere, reachable, isQuick, decide, draw, takeChanges, isSettled, allWritten });
})();
