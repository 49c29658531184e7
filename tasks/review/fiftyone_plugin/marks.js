// How labels look: what FiftyOne itself draws on the open frame, and what is on the layer over it.
(function () {
  const review = window.autolabelReview;
  const LOOKS = { // the same colours as in stats.py
    accepted: { colour: "#22c55e", mark: "✓" },
    rejected: { colour: "#ef4444", mark: "✗" },
    corrected: { colour: "#fde047", mark: "✎" },
    edited: { colour: "#fde047", mark: "✎" },
    merged: { colour: "#c084fc", mark: "∪" },
    deleted: { colour: "#9ca3af", mark: "−" },
    relabel: { colour: "#f59e0b", mark: "↻" },
  };
  const NOT_YET = "…"; // in place of the mark until the decision is written
  const MOST_LETTERS = 32; // of a name
  const MOST_PX = 2048; // of a mask on the layer, however far somebody has zoomed in
  let replaced = new Set(); // ids of machine labels whose correction is drawn
  let tinted = new Set(); // ids of labels whose masks are on the layer

  // A name without its middle where it is long.
  function shortened(name) {
    const half = MOST_LETTERS / 2;
    return name.length > MOST_LETTERS ? `${name.slice(0, half - 1)}…${name.slice(-half)}` : name;
  }

  // A tile of the grid is drawn by the same code, and is left alone.
  function isReplaced(overlay, state) {
    return !state.config.thumbnail && overlay.field === "detections" && replaced.has(overlay.label?.id);
  }

  function isTinted(overlay, state) {
    return !state.config.thumbnail && tinted.has(overlay.label?.id) && !overlay.isSelected(state);
  }

  // FiftyOne draws a class over the whole picture if it is long; pointing at the label shows all of it.
  // What has become another label is neither drawn nor under the mouse.
  function adapt(overlays) {
    for (const kind of new Set(overlays.map((one) => Object.getPrototypeOf(one)))) {
      if (!kind.getLabelText || Object.hasOwn(kind, "isOurs")) continue;
      const { getLabelText, draw, containsPoint } = kind;
      kind.getLabelText = function (...given) {
        const name = getLabelText.apply(this, given);
        return typeof name === "string" ? shortened(name) : name;
      };
      kind.draw = function (pen, state) {
        if (!isReplaced(this, state) && !isTinted(this, state)) draw.call(this, pen, state);
      };
      kind.containsPoint = function (state) {
        return isReplaced(this, state) ? 0 : containsPoint.call(this, state);
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
    if (isNew) looker.updater({}, () => {}); // without the second one nothing is drawn
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

  // A decided label's mask: a tint under which the picture can still be judged, and its rim.
  function renderedMask(bitmap, w, h, colour) {
    const shrink = Math.min(1, MOST_PX / w, MOST_PX / h);
    const size = [w, h].map((one) => Math.max(1, Math.round(one * shrink)));
    const solid = new OffscreenCanvas(...size), fill = solid.getContext("2d");
    fill.drawImage(bitmap, 0, 0, ...size);
    fill.globalCompositeOperation = "source-in";
    fill.fillStyle = colour;
    fill.fillRect(0, 0, ...size);
    const whole = new OffscreenCanvas(...size), brush = whole.getContext("2d");
    for (const [dx, dy] of [[2, 0], [-2, 0], [0, 2], [0, -2]]) brush.drawImage(solid, dx, dy);
    brush.globalCompositeOperation = "destination-out";
    brush.drawImage(solid, 0, 0);
    brush.globalCompositeOperation = "source-over";
    brush.globalAlpha = 0.3;
    brush.drawImage(solid, 0, 0);
    return whole;
  }

  const rendered = new WeakMap(); // by the mask's bitmap: rendering takes longer than painting

  function paintTint(pen, bitmap, box, decision) {
    const look = LOOKS[decision], [, , w, h] = box;
    if (!look || !bitmap?.width || !(w > 0 && h > 0)) return;
    const key = `${w} ${h} ${decision}`;
    if (rendered.get(bitmap)?.key !== key) rendered.set(bitmap, { key, canvas: renderedMask(bitmap, w, h, look.colour) });
    pen.drawImage(rendered.get(bitmap).canvas, ...box);
  }

  // A decided label: besides its tint a solid box, and a mark in the middle; dots until the decision is
  // written.
  function paintMark(pen, [x, y, w, h], decision, written) {
    const look = LOOKS[decision];
    if (!look) return;
    pen.lineWidth = 3;
    pen.strokeStyle = look.colour;
    pen.strokeRect(x, y, w, h);
    const radius = Math.max(9, Math.min(16, Math.min(w, h) / 3));
    pen.beginPath();
    pen.arc(x + w / 2, y + h / 2, radius, 0, 2 * Math.PI);
    pen.fillStyle = "#111827";
    pen.fill();
    pen.lineWidth = 2;
    pen.stroke();
    pen.fillStyle = look.colour;
    pen.font = `bold ${Math.round(radius * 1.2)}px sans-serif`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(written ? look.mark : NOT_YET, x + w / 2, y + h / 2 + 1);
  }

  // The label that a key would act on: corners outside its box, so that nothing of it is hidden.
  function paintFocus(pen, [x, y, w, h]) {
    const gap = 6, arm = Math.max(10, Math.min(28, Math.min(w, h) / 3));
    const [left, top, right, bottom] = [x - gap, y - gap, x + w + gap, y + h + gap];
    pen.beginPath();
    for (const [cx, cy, dx, dy] of [
      [left, top, 1, 1], [right, top, -1, 1], [left, bottom, 1, -1], [right, bottom, -1, -1],
    ]) {
      pen.moveTo(cx + dx * arm, cy);
      pen.lineTo(cx, cy);
      pen.lineTo(cx, cy + dy * arm);
    }
    for (const [width, colour] of [[7, "#111827"], [3, "#ffffff"]]) {
      pen.lineWidth = width;
      pen.strokeStyle = colour;
      pen.stroke();
    }
  }

  Object.assign(review, { adapt, leaveOut, paintNames, paintTint, paintMark, paintFocus });
})();
