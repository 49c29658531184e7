// All that the review uses of FiftyOne 1.22 beyond its plugin API: lookers, which draw a sample on a canvas,
// their overlays, one for each label, and names of its state. `missing` says what another version lacks.
(function () {
  const review = window.autolabelReview;
  const { AbstractLooker } = window.__fol__;
  const {
    datasetName, field, modalLooker, modalNavigation, modalSample, modalSelector, sidebarGroupsDefinition,
    useSetExpandedSample, useUpdateSamples, view,
  } = window.__fos__;
  const state = {
    datasetName, field, modalLooker, modalNavigation, modalSample, modalSelector, sidebarGroupsDefinition,
    useSetExpandedSample, useUpdateSamples, view,
  };
  const OF_LOOKERS = ["canvas", "ctx", "currentOverlays", "isSampleUpdating", "sample", "updateSample", "updater"];
  const OF_STATES = [
    "canvasBBox", "config", "destroyed", "dimensions", "options", "overlaysPrepared", "pan", "pixelCoordinates", "scale", "windowBBox",
  ];
  const OF_OVERLAYS = [
    "containsPoint", "draw", "drawLabelText", "field", "getLabelText", "getMouseDistance", "getPointInfo", "isSelected", "label",
  ];
  const MOST_LETTERS = 32; // of a name
  const AROUND = 2; // so much larger than a label is what is seen when it is zoomed to
  const lookers = new WeakMap(); // by canvas
  // FiftyOne brings a frame that was saved in the tab Annotate back with all its labels: those of the machine that views
  // have shown by themselves, the frames that were met in a view, and those that were saved.
  const inView = new Set(), met = new Set(), saved = new Set(); // ids
  let tileDrawn = () => {};
  let replaced = new Set(); // ids of machine labels whose correction is drawn
  let tinted = new Set(); // ids of labels whose masks are on the layer

  // Each looker asks itself for its picture whenever it draws.
  const { getImageSource, updateSample } = AbstractLooker.prototype;
  AbstractLooker.prototype.getImageSource = function (...given) {
    lookers.set(this.canvas, this);
    const { id, detections } = this.sample ?? {}, frame = `${review.strip.viewNow()} ${id}`;
    if (id && !met.has(frame)) detections?.detections?.forEach((one) => inView.add(one.id ?? one._id));
    if (id) met.add(frame);
    if (this.state.config.thumbnail) queueMicrotask(() => tileDrawn(this));
    return getImageSource.apply(this, given);
  };

  // FiftyOne asks for other colours 100 ms late, with the sample as it was when it asked. A tile that had none then gives
  // its masks to a worker all the same, which sends nothing back, and is drawn without them.
  AbstractLooker.prototype.updateSample = function (sample) {
    if (sample) updateSample.call(this, sample);
  };

  // Names that this FiftyOne lacks, as an open frame shows.
  function missing(looker) {
    const lacks = (held, names, what) => names.filter((name) => !(name in held)).map((name) => `${what}.${name}`);
    const overlay = looker.currentOverlays?.find((one) => one.label?.bounding_box);
    return [
      ...Object.keys(state).filter((name) => !state[name]),
      ...(getImageSource ? [] : ["looker.getImageSource"]),
      ...lacks(looker, OF_LOOKERS, "looker"),
      ...lacks(looker.state ?? {}, OF_STATES, "looker.state"),
      ...(overlay ? lacks(overlay, OF_OVERLAYS, "overlay") : []),
    ];
  }

  // FiftyOne says so after each drawing, with the canvas; of a tile that is not in the page yet nobody hears it.
  function onDrawn(act, onTile) {
    tileDrawn = onTile;
    window.addEventListener("canvas-loaded", ({ target }) => act(target, lookers.get(target)));
  }

  // The tab Annotate has a canvas of its own.
  const isAnnotating = () => Boolean(document.querySelector("[data-cy=lighter-sample-renderer]"));

  // That tab saves by itself; the browser says of each request, when it has its answer, where it went.
  function onSaved(act) {
    const ids = ({ name }) => name.match(/\/dataset\/\w+\/sample\/(\w+)/)?.[1] ?? [];
    new PerformanceObserver((list) => {
      for (const id of list.getEntries().flatMap(ids)) {
        saved.add(id);
        act(id);
      }
    }).observe({ type: "resource" });
  }

  const frameIsOpen = () => Boolean(document.querySelector("[data-cy=modal]"));
  const isThere = (looker) => Boolean(looker?.state.canvasBBox && !looker.state.destroyed);
  const isReady = (looker) => !looker.isSampleUpdating && looker.state.overlaysPrepared;
  const selectedLabels = (looker) => looker?.state.options.selectedLabels ?? [];
  const drawAgain = (looker) => looker.updater({}, () => {}); // without the second one nothing is drawn

  // FiftyOne's own keys, as Escape, are heard by the element of the picture alone, when it has the focus.
  function hear({ canvas: { parentElement: held } }, { key, code, shiftKey }) {
    held.focus();
    held.dispatchEvent(new KeyboardEvent("keydown", { key, code, shiftKey }));
  }

  // What is drawn: the labels of a field, those of all fields by default.
  function drawnLabels(looker, name) {
    const overlays = looker.currentOverlays.filter((one) => one.label?.bounding_box && (!name || one.field === name));
    return overlays.filter((one) => !isUnseen(one) && !isLeftOut(one, looker.state)).map((one) => one.label);
  }

  // Place of a label on its canvas: x, y, width and height.
  function boxOnCanvas({ state: { pan, scale, canvasBBox } }, { bounding_box: [x, y, w, h] }) {
    return [
      pan[0] + scale * (canvasBBox[0] + x * canvasBBox[2]),
      pan[1] + scale * (canvasBBox[1] + y * canvasBBox[3]),
      scale * w * canvasBBox[2],
      scale * h * canvasBBox[3],
    ];
  }

  // Whether the middle of a label is where the picture is seen.
  function isInWindow(looker, label) {
    const [x, y, w, h] = boxOnCanvas(looker, label), [, , width, height] = looker.state.windowBBox;
    return x + w / 2 >= 0 && x + w / 2 <= width && y + h / 2 >= 0 && y + h / 2 <= height;
  }

  // Shows a label with its surroundings, or all of the picture where that is what is shown.
  function zoomTo({ state: { canvasBBox, windowBBox, ...now }, updater }, label) {
    const [x, y, w, h] = boxOnCanvas({ state: { pan: [0, 0], scale: 1, canvasBBox } }, label);
    const [, , width, height] = windowBBox;
    const scale = Math.max(1, Math.min(width / w, height / h) / AROUND);
    const pan = [width / 2 - scale * (x + w / 2), height / 2 - scale * (y + h / 2)];
    const isShown = String([scale, pan]) === String([now.scale, now.pan]);
    updater(isShown ? { scale: 1, pan: [0, 0] } : { scale, pan });
  }

  // A name without its middle where it is long.
  function shortened(name) {
    const half = MOST_LETTERS / 2;
    return name.length > MOST_LETTERS ? `${name.slice(0, half - 1)}…${name.slice(-half)}` : name;
  }

  // What another reviewer has made of a label on which this one has yet to say something.
  const isUnseen = ({ field, label }) => field === "reviewed" && review.strip.isUnseen(label);

  // What the view has not shown before its frame was saved.
  const isLeftOut = ({ field, label }, { config }) => field === "detections" && saved.has(config.sampleId) && !inView.has(label?.id);

  // A tile of the grid is drawn by the same code, and is left alone but for that.
  function isReplaced(overlay, now) {
    return isUnseen(overlay) || isLeftOut(overlay, now) || !now.config.thumbnail && overlay.field === "detections" && replaced.has(overlay.label?.id);
  }

  function isTinted(overlay, now) {
    return !now.config.thumbnail && tinted.has(overlay.label?.id) && !overlay.isSelected(now);
  }

  // What is said of a label that the mouse points at: words and percents in place of measurements.
  function forPeople({ id, _cls, label, tags, confidence, risk, reasons, decision, sources, track, changed }) {
    const percent = (share) => (typeof share === "number" ? review.percent(share) : "");
    const said = {
      confidence: percent(confidence), risk: percent(risk), reasons: review.inWords(reasons).join(", "),
      decision: review.decisionOf({ id, sources, decision }) || (changed && review.unseen({ changed })), track: track?.replace(/^\//, ""), // of one camera
    };
    const told = Object.entries(said).filter(([, value]) => value);
    // FiftyOne asks for the id, and lists what is enumerable.
    return Object.defineProperty({ _cls, label, tags, ...Object.fromEntries(told) }, "id", { value: id });
  }

  // Of a label's mask, whether it has the pixel under the mouse.
  const onePixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  function isOnMask({ mask, bounding_box: [left, top, width, height] }, { pixelCoordinates: [x, y], dimensions }) {
    const { bitmap } = mask ?? {};
    if (!bitmap?.width) return false;
    const [across, down] = [(x / dimensions[0] - left) / width, (y / dimensions[1] - top) / height];
    onePixel.clearRect(0, 0, 1, 1);
    onePixel.drawImage(bitmap, -Math.floor(across * bitmap.width), -Math.floor(down * bitmap.height));
    return onePixel.getImageData(0, 0, 1, 1).data[3] > 0;
  }

  // FiftyOne locks what it says of a label when Ctrl is pressed, until Escape is released.
  function unlock() {
    const isLocked = document.querySelector("[data-cy=sample-canvas-tooltip-locked]");
    if (isLocked) document.dispatchEvent(new KeyboardEvent("keyup", { key: "Escape" }));
  }

  // FiftyOne draws a class over the whole picture if it is long; pointing at the label shows all of it.
  // What has become another label is neither drawn nor under the mouse.
  function adapt(looker) {
    for (const kind of new Set(looker.currentOverlays.map((one) => Object.getPrototypeOf(one)))) {
      if (!kind.getLabelText || Object.hasOwn(kind, "isOurs")) continue;
      const { getLabelText, draw, containsPoint, getPointInfo } = kind;
      // Of several labels under the mouse the nearest one counts: a mask before all boxes, and then the smallest box.
      kind.getMouseDistance = function (now) {
        const [, , width, height] = this.label.bounding_box;
        return width * height - isOnMask(this.label, now);
      };
      kind.getLabelText = function (...given) {
        const name = getLabelText.apply(this, given);
        return typeof name === "string" ? shortened(name) : name;
      };
      kind.draw = function (pen, now) {
        if (!isReplaced(this, now) && !isTinted(this, now)) draw.call(this, pen, now);
      };
      kind.containsPoint = function (now) {
        return isReplaced(this, now) ? 0 : containsPoint.call(this, now);
      };
      kind.getPointInfo = function (now) {
        const info = getPointInfo.call(this, now);
        return info?.label?.risk === undefined ? info : { ...info, label: forPeople(info.label) };
      };
      kind.isOurs = true;
    }
  }

  // Has FiftyOne leave out labels; it draws the frame again if these are others than before.
  function leaveOut(becomeOthers, onLayer, looker) {
    const same = (one, other) => one.size === other.size && [...one].every((id) => other.has(id));
    const isNew = !same(becomeOthers, replaced) || !same(onLayer, tinted);
    replaced = becomeOthers;
    tinted = onLayer;
    if (!isNew) return;
    looker.canvas.dispatchEvent(new MouseEvent("mouseleave")); // what it says of the label under the mouse is of before
    drawAgain(looker);
  }

  // Classes as FiftyOne has written them, in its own place and colours: marks may be over them. Those of
  // the labels for which `wanted` says so.
  function paintNames(pen, looker, wanted) {
    const { state: now, currentOverlays } = looker;
    pen.save();
    pen.translate(...now.pan);
    pen.scale(now.scale, now.scale);
    pen.font = looker.ctx.font;
    pen.textAlign = "left";
    pen.textBaseline = "bottom";
    for (const overlay of [...currentOverlays].reverse()) {
      if (overlay.drawLabelText && !isReplaced(overlay, now) && wanted(overlay.label)) overlay.drawLabelText(pen, now);
    }
    pen.restore();
  }

  review.fiftyone = {
    state, missing, onDrawn, isAnnotating, onSaved, frameIsOpen, isThere, isReady, selectedLabels, drawAgain, hear, drawnLabels, boxOnCanvas, isInWindow, zoomTo, adapt, leaveOut, unlock,
    paintNames, inView, saved,
  };
})();
