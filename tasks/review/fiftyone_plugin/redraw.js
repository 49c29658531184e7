// After a decision: the new labels into FiftyOne's caches and onto the open canvas.
//
// FiftyOne 1.22 drops an update of a frame while an earlier one is under way, and opening a frame
// anew hands a worker masks whose memory another worker has already taken ("DataCloneError:
// ArrayBuffer is detached"). So the labels come with the decision, the frame stays open, and its
// looker is asked until it shows them.
(function () {
  const review = window.autolabelReview;
  const foo = window.__foo__, fos = window.__fos__;
  const FIELDS = ["detections", "reviewed"];
  const SEARCHED = 50;
  const PAUSE_MS = 20, AGAIN_MS = 400, PATIENCE_MS = 10_000, COUNT_MS = 1000;
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  let stale = false; // the grid and the counts beside it are older than the last decision

  // Puts labels that changed into a sample, as the App has it; those that a view leaves out stay so.
  function renewed(sample, change) {
    const fresh = { ...sample, ...change.values };
    for (const field of FIELDS) {
      const made = change.labels[field] ?? [];
      const byId = new Map(made.map((one) => [one._id, one]));
      const old = sample[field];
      if (old?._cls === "Detection") {
        fresh[field] = byId.get(old._id) ?? old; // a patch
        continue;
      }
      const gone = new Set(change.gone ?? []);
      const kept = (old?.detections ?? []).filter((one) => !gone.has(one._id));
      const present = new Set(kept.map((one) => one._id));
      const detections = kept.map((one) => byId.get(one._id) ?? one);
      for (const one of made) if (!present.has(one._id)) detections.push(one);
      fresh[field] = { _cls: "Detections", ...old, detections };
    }
    return fresh;
  }

  // Changes of a frame that is not open: recoil shows the frame as it was when it was open last, so
  // they are drawn when it is opened.
  const waiting = new Map();

  function both(old, change) {
    if (!old || !change) return old ?? change;
    const labels = {};
    for (const field of FIELDS) {
      const later = change.labels[field] ?? [], names = new Set(later.map((one) => one._id));
      const before = old.labels[field] ?? [], gone = new Set(change.gone);
      labels[field] = [...before.filter((one) => !names.has(one._id) && !gone.has(one._id)), ...later];
    }
    const made = new Set(FIELDS.flatMap((field) => labels[field].map((one) => one._id)));
    const gone = [...new Set([...old.gone, ...change.gone])].filter((id) => !made.has(id));
    return { labels, gone, values: { ...old.values, ...change.values } };
  }

  function drawWaiting(id) {
    const change = waiting.get(id);
    if (change) foo.executeOperator("sam2-autolabel/redraw", { samples: { [id]: change }, late: true });
  }

  function shows(looker, change) {
    if (looker.isSampleUpdating || !looker.state.overlaysPrepared) return false;
    const same = (old, one) => old && (old.decision ?? "") === (one.decision ?? "") && old.label === one.label
      && (old.reviewed_at ?? "") === (one.reviewed_at ?? "");
    return FIELDS.every((field) => {
      const value = looker.sample[field], made = change.labels[field] ?? [];
      const shown = new Map((value?.detections ?? (value ? [value] : [])).map((one) => [one.id ?? one._id, one]));
      // A patch has one label of its frame.
      if (value?._cls === "Detection") return made.every((one) => !shown.has(one._id) || same(shown.get(one._id), one));
      return made.every((one) => same(shown.get(one._id), one)) && (change.gone ?? []).every((id) => !shown.has(id));
    });
  }

  async function draw(looker, sample, change) {
    const started = performance.now();
    let asked = -AGAIN_MS;
    while (!looker.state.destroyed && performance.now() - started < PATIENCE_MS) {
      if (asked >= 0 && shows(looker, change)) return true;
      if (performance.now() - started - asked > AGAIN_MS) {
        looker.updateSample(sample);
        asked = performance.now() - started;
      }
      await pause(PAUSE_MS);
    }
    return false;
  }

  function isOf(sample, id) {
    return sample && (sample._id === id || sample._sample_id === id);
  }

  // Samples of this frame in the grid's caches: the frame itself, or patches of it.
  function cached(id) {
    const found = [];
    for (const store of fos.stores) {
      for (const entry of store.samples.values()) {
        if (isOf(entry.sample, id)) found.push(entry.sample);
      }
    }
    return found;
  }

  class Redraw extends foo.Operator {
    get config() {
      return new foo.OperatorConfig({ name: "redraw", label: "Redraw labels", unlisted: true });
    }
    useHooks() {
      return { update: fos.useUpdateSamples() };
    }
    // samples: for each sample id its changed labels (`labels`), removed ones (`gone`), `values`.
    // `late`: of a frame that was not open when they changed; `quiet`: shown on the layer already.
    async execute({ hooks, params, state }) {
      stale = true;
      const samples = { ...params.samples };
      if (!params.quiet && !params.late) {
        for (const [id, change] of Object.entries(review.takeChanges())) samples[id] = both(change, samples[id]);
      }
      for (const [id, change] of Object.entries(samples)) {
        if (!params.late) claim(change);
        const fresh = new Map(cached(id).map((one) => [one._id, renewed(one, change)]));
        const modal = document.querySelector("[data-cy=modal]")
          ? await state.snapshot.getPromise(fos.modalSample).catch(() => null)
          : null;
        if (isOf(modal?.sample, id)) fresh.set(modal.sample._id, renewed(modal.sample, change));
        hooks.update([...fresh]);
        const looker = review.open.looker;
        const isOpen = modal && looker && isOf(modal.sample, id);
        if (isOpen && (await draw(looker, fresh.get(modal.sample._id), change))) {
          waiting.delete(id);
          disclaim(change);
        } else {
          waiting.set(id, both(waiting.get(id), change));
        }
      }
      review.paint();
      countAgain(state);
      follow(); // of tiles that were decided on in the grid nothing else may tell
      document.dispatchEvent(new CustomEvent("autolabel-redrawn", { detail: { samples } }));
      if (params.late || params.quiet) return;
      await review.afterRedraw?.({ ...params, samples });
      review.settled?.();
    }
  }

  // The counts beside an open frame follow when the keys rest for a moment: each costs the server.
  // Not those of a frame that is done: it is no part of the queue any more, and all would be 0.
  let counting = 0;
  function countAgain(state) {
    clearTimeout(counting);
    counting = setTimeout(async () => {
      if (!document.querySelector("[data-cy=modal]")) return;
      if (review.busy() || !review.isSettled()) countAgain(state);
      else if (review.undecided().length && (await review.isThere())) state.set(fos.refresher, (old) => old + 1);
    }, COUNT_MS);
  }

  // Decisions are on our layer at once; FiftyOne's own canvas takes its time.
  function claim(change) {
    for (const one of change.labels.detections ?? []) review.claim(one._id, one.decision ?? "", true);
    review.paint();
  }

  // What FiftyOne shows itself needs no claim, unless a key has claimed another decision since.
  function disclaim(change) {
    const { claims } = review.open;
    for (const one of change.labels.detections ?? []) {
      const held = claims.get(one._id);
      if (held?.written && held.decision === (one.decision ?? "")) claims.delete(one._id);
    }
    for (const id of [...change.gone, ...(change.labels.reviewed ?? []).map((one) => one._id)]) claims.delete(id);
  }

  // Finds a frame along FiftyOne's arrows, so that they go on working there.
  async function frameOf(way, id, step) {
    for (let tried = 0; way && tried < SEARCHED; tried += 1) {
      const found = await (step > 0 ? way.next(1) : way.previous(1)).catch(() => null);
      if (found?.id === id) return found;
      if (!found || !(step > 0 ? found.hasNext : found.hasPrevious)) break;
    }
    return { id };
  }

  // Goes to the frame that FiftyOne's own arrows would go to.
  class Turn extends foo.Operator {
    get config() {
      return new foo.OperatorConfig({ name: "turn", label: "Next frame", unlisted: true });
    }
    useHooks() {
      return { show: fos.useSetExpandedSample(), notify: fos.useNotification() };
    }
    async execute({ hooks, params, state }) {
      const way = fos.modalNavigation.get();
      const now = await state.snapshot.getPromise(fos.modalSelector);
      const step = params.step ?? 1;
      if (params.to) {
        await hooks.show(await frameOf(way, params.to, step));
      } else if (!way || !now || now[step > 0 ? "hasNext" : "hasPrevious"] === false) {
        hooks.notify({ msg: step > 0 ? "this was the last frame" : "this was the first frame" });
        return { turned: false };
      } else {
        await hooks.show(await (step > 0 ? way.next(1) : way.previous(1)));
      }
      return { turned: true };
    }
  }

  for (const operator of [Redraw, Turn]) foo.registerOperator(operator, "sam2-autolabel");

  // The grid follows when the frame is closed: it would cost seconds with every decision.
  let following = false;
  async function follow() {
    if (!stale || following || document.querySelector("[data-cy=modal]")) return;
    following = true;
    while (!(await review.isThere())) await pause(COUNT_MS);
    following = stale = false;
    foo.executeOperator("@voxel51/operators/reload_dataset", {});
  }
  new MutationObserver(follow).observe(document.body, { childList: true, subtree: true });

  Object.assign(review, { both, drawWaiting, pause, waits: (id) => waiting.has(id) });
})();
