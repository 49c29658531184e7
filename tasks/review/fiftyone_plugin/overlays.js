// What FiftyOne itself draws on the open frame, as the review needs it: classes of readable length, above
// all tints; and no label twice that has become another one.
(function () {
  const review = window.autolabelReview;
  const MOST_LETTERS = 32; // of a name
  let replaced = new Set(); // ids of machine labels whose correction is drawn

  // A name without its middle where it is long.
  function shortened(name) {
    const half = MOST_LETTERS / 2;
    return name.length > MOST_LETTERS ? `${name.slice(0, half - 1)}…${name.slice(-half)}` : name;
  }

  // A tile of the grid is drawn by the same code, and is left alone.
  function isReplaced(overlay, state) {
    return !state.config.thumbnail && overlay.field === "detections" && replaced.has(overlay.label?.id);
  }

  // FiftyOne draws a class over the whole picture if it is long; pointing at the label shows all of it.
  // What is not drawn is not under the mouse either.
  function adapt(overlays) {
    for (const kind of new Set(overlays.map((one) => Object.getPrototypeOf(one)))) {
      if (!kind.getLabelText || Object.hasOwn(kind, "isOurs")) continue;
      const { getLabelText, draw, containsPoint } = kind;
      kind.getLabelText = function (...given) {
        const name = getLabelText.apply(this, given);
        return typeof name === "string" ? shortened(name) : name;
      };
      kind.draw = function (pen, state) {
        if (!isReplaced(this, state)) draw.call(this, pen, state);
      };
      kind.containsPoint = function (state) {
        return isReplaced(this, state) ? 0 : containsPoint.call(this, state);
      };
      kind.isOurs = true;
    }
  }

  // Has FiftyOne leave out machine labels; it draws the frame again if these are others than before.
  function leaveOut(ids, looker) {
    const same = ids.size === replaced.size && [...ids].every((id) => replaced.has(id));
    replaced = ids;
    if (!same) looker.updater({}, () => {}); // without the second one nothing is drawn
  }

  // Classes as FiftyOne has written them, in its own place and colours: marks may be over them. Those of
  // the overlays for which `wanted` says so.
  function paintNames(pen, looker, wanted) {
    const { state, currentOverlays } = looker;
    pen.save();
    pen.translate(...state.pan);
    pen.scale(state.scale, state.scale);
    pen.font = looker.ctx.font;
    pen.textAlign = "left";
    pen.textBaseline = "bottom";
    for (const overlay of [...currentOverlays].reverse()) {
      if (overlay.drawLabelText && !isReplaced(overlay, state) && wanted(overlay.label)) overlay.drawLabelText(pen, state);
    }
    pen.restore();
  }

  Object.assign(review, { shortened, adapt, leaveOut, paintNames });
})();
