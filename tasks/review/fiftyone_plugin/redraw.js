// After a decision: the new labels into FiftyOne's caches and onto the open canvas.
//
// FiftyOne 1.22 drops an update of a frame while an earlier one is under way, and opening a frame
// anew hands a worker masks whose memory another worker has already taken ("DataCloneError:
// ArrayBuffer is detached"). So the labels come with the decision, the frame stays open, and its
// looker is asked until it shows them.
(function () {
  const review = window.autolabelReview;
  const { fiftyone } = review, foo = window.__foo__, { state: fos } = fiftyone;
  const FIELDS = ["detections", "reviewed"];
  const SEARCHED = 50;
  const PAUSE_MS = 20, AGAIN_MS = 400, PATIENCE_MS = 10_000;
  const idOf = (label) => label.id ?? label._id;
  // Changes of frames that are not open: recoil shows a frame as it was when it was open last, so they
  // are drawn when it is opened. Lists by sample id.
  const waiting = new Map();
  // All that changed since the page was loaded, of which FiftyOne's grid does not know. Lists by id of the frame's sample.
  const written = new Map();

  function pause(ms) {
    return new Promise((done) => setTimeout(done, ms));
  }

  // A sample, as the App has it, with labels that changed: `labels` by field, `gone` ids, other `values`.
  function renewed(sample, change) {
    const fresh = { ...sample, ...change.values };
    for (const field of FIELDS) {
      const byId = new Map((change.labels[field] ?? []).map((one) => [one._id, one]));
      const old = sample[field];
      if (old?._cls === "Detection") {
        fresh[field] = byId.get(idOf(old)) ?? old; // a patch
        continue;
      }
      const there = (old?.detections ?? []).filter((one) => !change.gone.includes(idOf(one)));
      const present = new Set(there.map(idOf));
      const added = [...byId.values()].filter(({ _id }) => !present.has(_id) && (field === "reviewed" || review.strip.isQueued(_id)));
      const detections = [...there.map((one) => byId.get(idOf(one)) ?? one), ...added];
      fresh[field] = { _cls: "Detections", ...old, detections };
    }
    return fresh;
  }

  // What is to be seen of a sample's labels.
  function seenOf(sample) {
    const labels = FIELDS.flatMap((field) => sample[field]?.detections ?? sample[field] ?? []);
    const seen = labels.map((one) => [idOf(one), one.label, one.decision ?? "", one.reviewed_at ?? ""].join("|"));
    return seen.sort().join();
  }

  async function draw(looker, sample) {
    const started = performance.now();
    let asked = -AGAIN_MS;
    while (fiftyone.isThere(looker) && performance.now() - started < PATIENCE_MS) {
      if (asked >= 0 && fiftyone.isReady(looker) && seenOf(looker.sample) === seenOf(sample)) return true;
      if (performance.now() - started - asked > AGAIN_MS) {
        looker.updateSample(sample);
        asked = performance.now() - started;
      }
      await pause(PAUSE_MS);
    }
    return false;
  }

  // What FiftyOne shows itself needs no claim, unless a key has claimed another decision since, or it is not shown.
  function disclaim(change) {
    const { claims } = review.open;
    for (const one of change.labels.detections ?? []) {
      const held = claims.get(one._id);
      if (held?.written && !review.strip.isUnseen(one) && held.decision === (one.decision ?? "")) claims.delete(one._id);
    }
    for (const id of [...change.gone, ...(change.labels.reviewed ?? []).map(idOf)]) claims.delete(id);
  }

  review.operator("redraw", {
    useHooks: () => ({ update: fos.useUpdateSamples() }),
    // samples: by id, a list of changes each.
    async execute({ hooks, params, state }) {
      const { looker } = review.open;
      const modal = fiftyone.frameIsOpen() ? await state.snapshot.getPromise(fos.modalSample).catch(() => null) : null;
      for (const [id, more] of Object.entries(params.samples)) {
        written.set(id, [...(written.get(id) ?? []), ...more]);
        const changes = [...(waiting.get(id) ?? []), ...more];
        waiting.set(id, changes);
        if (!looker || ![modal?.sample?._id, modal?.sample?._sample_id].includes(id)) continue;
        const fresh = changes.reduce(renewed, modal.sample);
        hooks.update([[fresh._id, fresh]]);
        if (await draw(looker, fresh)) {
          waiting.delete(id);
          changes.forEach(disclaim);
        }
      }
      review.paint();
      review.markTiles();
    },
  });

  // Finds a frame along FiftyOne's arrows, one way and then the other, so that they go on working there.
  async function find(way, isIt, step, now) {
    let at = now;
    const on = ["hasNext", "next"], back = ["hasPrevious", "previous"];
    for (const [isThere, go] of step > 0 ? [on, back] : [back, on]) {
      for (let tried = 0; way && at && at[isThere] !== false && tried < SEARCHED; tried += 1) {
        at = await way[go](1).catch(() => null);
        if (at && isIt(at.id)) return at;
      }
    }
    return null;
  }

  // Goes to a frame, or to the one that FiftyOne's own arrows would go to.
  review.operator("turn", {
    useHooks: () => ({ show: fos.useSetExpandedSample() }),
    // `skips`: to one that may have something to decide.
    async execute({ hooks, params: { to, step = 1, skips }, state }) {
      const way = fos.modalNavigation.get();
      const now = await state.snapshot.getPromise(fos.modalSelector);
      let at = null;
      if (!way && !to) {
        review.tell("the page was loaded anew far down the view, so no way leads on: press Escape, then click a tile");
      } else if (skips) {
        at = await find(way, (id) => !review.open.over.has(id), step, now);
        if (!at) await find(way, (id) => id === now.id, step, now); // where FiftyOne's arrows go on
      } else if (to) {
        at = (await find(way, (id) => id === to, step, now)) ?? { id: to };
      } else if (now && now[step > 0 ? "hasNext" : "hasPrevious"] !== false) {
        at = await (step > 0 ? way.next(1) : way.previous(1));
      } else {
        review.tell(step > 0 ? "this was the last frame" : "this was the first frame");
      }
      if (at) await hooks.show(at);
      return { turned: Boolean(at) };
    },
  });

  const redraw = (samples) => foo.executeOperator("sam2-autolabel/redraw", { samples });

  function drawWaiting(id) {
    if (waiting.has(id)) redraw({ [id]: [] });
  }

  const frameOf = (sample) => sample?._sample_id ?? sample?._id ?? sample?.id;
  const isWritten = (sample) => written.has(frameOf(sample));
  // A sample, as the grid has it, with all that changed since.
  const asWritten = (sample) => (written.get(frameOf(sample)) ?? []).reduce(renewed, sample);

  Object.assign(review, { pause, redraw, drawWaiting, frameOf, isWritten, asWritten, waits: (id) => waiting.has(id) });
})();

// The sidebar as the dataset has it, in every view. FiftyOne drops fields that a view does not have, as
// one of patches, from their groups, and puts them in no order under PRIMITIVES when they come back.
(function () {
  const review = window.autolabelReview;
  const foo = window.__foo__, { state: fos } = review.fiftyone;
  const SOON_MS = [300, 1500, 5000]; // a view with nothing in it draws nothing that would tell
  let hasPanel = false; // "Review progress" is a tab beside the grid from the beginning
  let arranged = ""; // the view that it was done for: what somebody moves in it stays

  // Groups as the dataset has them, of fields that are there; other fields keep the groups they are in.
  function inOrder(groups, current, isThere) {
    const placed = new Set(groups.flatMap(({ paths }) => paths));
    const rest = current.map((group) => ({ ...group, paths: group.paths.filter((one) => !placed.has(one)) }));
    const named = new Map(rest.map((group) => [group.name, group]));
    const ours = groups.map(({ name, paths, expanded }) => {
      const old = named.get(name);
      return { name, expanded: old?.expanded ?? expanded, paths: [...paths.filter(isThere), ...(old?.paths ?? [])] };
    });
    const known = new Set(groups.map(({ name }) => name));
    return [...ours, ...rest.filter(({ name }) => !known.has(name))].filter(({ name, paths }) => paths.length || name === "tags");
  }

  const order = ({ name, paths }) => [name, paths];

  review.operator("arrange_sidebar", {
    async execute({ state }) {
      const { snapshot } = state;
      const name = await snapshot.getPromise(fos.datasetName);
      const view = `${name} ${JSON.stringify(await snapshot.getPromise(fos.view))}`;
      if (!name || view === arranged) return;
      const groups = await review.strip.refresh();
      if (!groups?.length) return;
      arranged = view;
      if (!hasPanel && !review.fiftyone.frameIsOpen()) {
        hasPanel = true; // whoever closes it has it closed
        foo.executeOperator("@voxel51/operators/open_panel", { name: "review_progress", isActive: false });
      }
      const fields = await Promise.all(
        groups.flatMap(({ paths }) => paths).map(async (path) => [path, await snapshot.getPromise(fos.field(path))]),
      );
      const there = new Set(fields.filter(([, field]) => field).map(([path]) => path));
      const current = await snapshot.getPromise(fos.sidebarGroupsDefinition(false));
      const wanted = inOrder(groups, current, (path) => there.has(path));
      const same = (one, other) => JSON.stringify(one.map(order)) === JSON.stringify(other.map(order));
      if (!same(current, wanted)) state.set(fos.sidebarGroupsDefinition(false), wanted);
    },
  });

  // A view of ours needs no stages over it; whoever builds one leaves the saved view.
  const stages = review.element("style", "", document.head, ":has(> [data-cy=view-bar]) { visibility: hidden }");
  function hideStages() {
    stages.disabled = !new URL(location.href).searchParams.has("view");
  }

  let coming = [];
  function soon() {
    hideStages();
    review.strip.leaveView();
    coming.forEach(clearTimeout);
    coming = SOON_MS.map((ms) => setTimeout(() => foo.executeOperator("sam2-autolabel/arrange_sidebar", {}), ms));
  }
  soon();
  for (const kind of ["popstate", "fo:url-changed"]) window.addEventListener(kind, soon);
  window.addEventListener("canvas-loaded", (event) => {
    if (!event.target.closest?.("[data-cy=modal]")) soon();
  });
})();
