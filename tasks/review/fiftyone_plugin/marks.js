// What the review has to say over the open frame: that keys rest while something is loaded or written,
// and why a decision was refused. FiftyOne's own notifications are gone after two seconds.
(function () {
  const review = window.autolabelReview;
  const PATIENCE_MS = 250; // what is quicker needs no sign
  const REASON_MS = 20_000;
  const LOOKS = { wait: "background:#111827e6;color:#f3f4f6", wrong: "background:#b91c1c;color:#fff" };
  const signs = new Map(); // by kind

  function show(kind, text) {
    hide(kind);
    const bottom = kind === "wait" ? 24 : 70;
    const sign = review.element(
      "div",
      `position:fixed;left:50%;bottom:${bottom}px;transform:translateX(-50%);z-index:100001;` +
        "max-width:70%;padding:8px 18px;border-radius:8px;font:15px sans-serif;" +
        `pointer-events:none;box-shadow:0 4px 24px #000a;${LOOKS[kind]}`,
      document.body,
      text,
    );
    sign.dataset.cy = `review-${kind}`;
    sign.setAttribute("role", kind === "wrong" ? "alert" : "status");
    signs.set(kind, sign);
  }

  function hide(kind) {
    signs.get(kind)?.remove();
    signs.delete(kind);
  }

  // Says what is waited for, if it takes a moment.
  async function during(text, what) {
    const late = setTimeout(() => show("wait", text), PATIENCE_MS);
    try {
      return await what;
    } finally {
      clearTimeout(late);
      hide("wait");
    }
  }

  // Says why something was not done; until the next key or click.
  let since = 0, fading = 0;
  function complain(text) {
    show("wrong", text);
    since = performance.now();
    clearTimeout(fading);
    fading = setTimeout(() => hide("wrong"), REASON_MS);
  }
  for (const kind of ["keydown", "mousedown"]) {
    window.addEventListener(kind, (event) => {
      if (event.key !== "Shift" && performance.now() - since > PATIENCE_MS) hide("wrong");
    }, true);
  }

  Object.assign(review, { during, complain });
})();

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

// How labels look on the layer over FiftyOne's canvas: what was decided, and what has the focus.
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
  const FOCUS = "#ffffff";
  const MOST_PX = 2048; // of a mask on the layer, however far somebody has zoomed in

  // A label's mask in one colour, in the layer's own pixels; `inside` says what is seen through it.
  function stencil(bitmap, w, h, inside) {
    const shrink = Math.min(1, MOST_PX / w, MOST_PX / h);
    const made = new OffscreenCanvas(Math.max(1, Math.round(w * shrink)), Math.max(1, Math.round(h * shrink)));
    const brush = made.getContext("2d");
    brush.drawImage(bitmap, 0, 0, made.width, made.height);
    brush.globalCompositeOperation = "source-in";
    brush.scale(made.width / w, made.height / h);
    inside(brush);
    return made;
  }

  // FiftyOne's own mask is there twice once a label is accepted: most of the picture is put back, so
  // that it can still be judged, under a tint of the decision's colour and within its outline.
  // `place` is that of the picture on the layer.
  function renderedMask(bitmap, [x, y, w, h], colour, picture, [left, top, width, height]) {
    const fill = (brush) => {
      brush.fillStyle = colour;
      brush.fillRect(0, 0, w, h);
    };
    const solid = stencil(bitmap, w, h, fill);
    const seen = stencil(bitmap, w, h, (brush) => {
      if (picture) brush.drawImage(picture, left - x, top - y, width, height);
    });
    const edge = new OffscreenCanvas(solid.width, solid.height), cut = edge.getContext("2d");
    cut.drawImage(solid, 0, 0);
    cut.globalCompositeOperation = "destination-out";
    // What is left when the mask is moved by a little each way and taken out is its inside's rim.
    const inner = new OffscreenCanvas(solid.width, solid.height), rest = inner.getContext("2d");
    rest.drawImage(solid, 0, 0);
    rest.globalCompositeOperation = "destination-in";
    for (const [dx, dy] of [[2, 0], [-2, 0], [0, 2], [0, -2]]) rest.drawImage(solid, dx, dy);
    cut.drawImage(inner, 0, 0);
    const whole = new OffscreenCanvas(solid.width, solid.height), brush = whole.getContext("2d");
    for (const [what, share] of [[seen, 0.7], [solid, 0.3], [edge, 1]]) {
      brush.globalAlpha = share;
      brush.drawImage(what, 0, 0);
    }
    return whole;
  }

  // FiftyOne draws often, and each mask takes milliseconds: it is made once for each size.
  const rendered = new WeakMap();

  function paintMask(pen, bitmap, box, colour, picture, place) {
    const look = `${box[2]} ${box[3]} ${colour} ${Boolean(picture)}`;
    if (rendered.get(bitmap)?.look !== look) {
      rendered.set(bitmap, { look, canvas: renderedMask(bitmap, box, colour, picture, place) });
    }
    pen.drawImage(rendered.get(bitmap).canvas, ...box);
  }

  function paintTint(pen, bitmap, box, decision, picture, place) {
    const look = LOOKS[decision], [, , w, h] = box;
    if (look && bitmap?.width && w > 0 && h > 0) paintMask(pen, bitmap, box, look.colour, picture, place);
  }

  // A decided label: besides its tint a solid box, and a mark in the middle; dots until the decision is
  // written.
  function paintMark(pen, [x, y, w, h], decision, written) {
    const look = LOOKS[decision];
    if (!look) return;
    pen.lineWidth = 3;
    pen.setLineDash([]);
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
    for (const [width, colour] of [[7, "#111827"], [3, FOCUS]]) {
      pen.lineWidth = width;
      pen.strokeStyle = colour;
      pen.stroke();
    }
  }

  Object.assign(review, { paintTint, paintMark, paintFocus });
})();
