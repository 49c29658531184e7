// The open frame: which labels it shows, which one has the focus, and a layer over FiftyOne's canvas
// that shows both. FiftyOne paints by class; what was decided is ours to show.
(function () {
  const review = window.autolabelReview;
  const CONTAINER = "[data-cy=modal-looker-container]";
  const FIELD = "detections";
  const LOOKS = { // the same colours as in summary.py
    accepted: { colour: "#22c55e", mark: "✓" },
    rejected: { colour: "#ef4444", mark: "✗" },
    corrected: { colour: "#fde047", mark: "✎" },
    edited: { colour: "#fde047", mark: "✎" },
    merged: { colour: "#c084fc", mark: "∪" },
    deleted: { colour: "#9ca3af", mark: "−" },
    relabel: { colour: "#f59e0b", mark: "↻" },
  };
  const FOCUS = "#ffffff";
  const MOMENT_MS = 1500;
  const MOST_PX = 2048; // of a mask on the layer, however far somebody has zoomed in
  const open = { looker: null, focus: null, next: null, last: [], emptySince: null, drawn: 0 };

  // Labels of the machine that FiftyOne draws now, riskiest first: view and filters are applied. It
  // draws none for a moment whenever it paints anew; those before still count then.
  function labels() {
    if (!open.looker || open.looker.state.destroyed) return [];
    const drawn = open.looker.currentOverlays;
    const found = drawn.filter((one) => one.field === FIELD && one.label?.bounding_box);
    const now = performance.now();
    if (found.length) open.emptySince = null;
    else open.emptySince ??= now;
    if (!found.length && now - open.emptySince < MOMENT_MS) return open.last;
    open.last = found.map((one) => one.label).sort((a, b) => (b.risk ?? 0) - (a.risk ?? 0));
    return open.last;
  }

  function undecided() {
    return labels().filter((one) => !one.decision);
  }

  // The label with the focus: the one that was chosen, or else the riskiest undecided one.
  function focused() {
    const chosen = labels().find((one) => one.id === open.focus);
    return chosen ?? undecided()[0] ?? null;
  }

  function focusOn(id) {
    open.focus = id;
    paint();
  }

  // A label of the frame that is opened next.
  function focusNext(id) {
    open.next = id || null;
  }

  // Moves the focus among the undecided labels: 1 to the next one, -1 to the one before.
  function moveFocus(step) {
    const row = undecided();
    if (!row.length) return;
    const at = row.findIndex((one) => one.id === focused()?.id);
    focusOn(row[(at + step + row.length) % row.length].id);
  }

  function boxOnPage(label) {
    const { pan, scale, canvasBBox } = open.looker.state;
    const [x, y, w, h] = label.bounding_box;
    return [
      pan[0] + scale * (canvasBBox[0] + x * canvasBBox[2]),
      pan[1] + scale * (canvasBBox[1] + y * canvasBBox[3]),
      scale * w * canvasBBox[2],
      scale * h * canvasBBox[3],
    ];
  }

  function layer(container) {
    let canvas = container.querySelector("canvas.autolabel-layer");
    if (!canvas) {
      canvas = document.createElement("canvas");
      canvas.className = "autolabel-layer";
      canvas.style.cssText = "position:absolute;inset:0;width:100%;height:100%;pointer-events:none";
      container.append(canvas);
    }
    const density = window.devicePixelRatio || 1;
    canvas.width = container.clientWidth * density;
    canvas.height = container.clientHeight * density;
    const pen = canvas.getContext("2d");
    pen.scale(density, density);
    return pen;
  }

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
  function renderedMask(bitmap, [x, y, w, h], colour, picture) {
    const fill = (brush) => {
      brush.fillStyle = colour;
      brush.fillRect(0, 0, w, h);
    };
    const solid = stencil(bitmap, w, h, fill);
    const { pan, scale, canvasBBox: [left, top, width, height] } = open.looker.state;
    const seen = stencil(bitmap, w, h, (brush) => {
      if (picture) {
        brush.drawImage(picture, pan[0] + scale * left - x, pan[1] + scale * top - y, scale * width, scale * height);
      }
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

  function paintMask(pen, bitmap, [x, y, w, h], colour) {
    const picture = open.looker.getImageSource?.();
    const look = `${w} ${h} ${colour} ${Boolean(picture)}`;
    if (rendered.get(bitmap)?.look !== look) {
      rendered.set(bitmap, { look, canvas: renderedMask(bitmap, [x, y, w, h], colour, picture) });
    }
    pen.drawImage(rendered.get(bitmap).canvas, x, y, w, h);
  }

  // A decided label: its mask as above, a solid box, and a mark in the middle.
  function paintDecided(pen, label, look) {
    const [x, y, w, h] = boxOnPage(label);
    const bitmap = label.mask?.bitmap;
    if (bitmap?.width && w > 0 && h > 0) paintMask(pen, bitmap, [x, y, w, h], look.colour);
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
    pen.fillText(look.mark, x + w / 2, y + h / 2 + 1);
  }

  // The label that a key would act on: corners outside its box, so that nothing of it is hidden.
  function paintFocus(pen, label) {
    const [x, y, w, h] = boxOnPage(label);
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

  // What a machine label has become: another mask, perhaps, than the one it had.
  function correctionOf(label) {
    const shown = open.looker.currentOverlays.map((one) => (one.field === "reviewed" ? one.label : null));
    return shown.find((one) => one?.bounding_box && one.sources?.length === 1 && one.sources[0] === label.id) ?? label;
  }

  // Reviewed labels whose machine labels are not drawn: the queue has no decided labels any more when
  // it is opened again, and these are what people made of them.
  function reviewedAlone(drawn) {
    const shown = new Set(drawn.map((one) => one.id));
    const reviewed = open.looker.currentOverlays.filter((one) => one.field === "reviewed").map((one) => one.label);
    return reviewed.filter((one) => one?.bounding_box && !(one.sources ?? []).some((id) => shown.has(id)));
  }

  function paint() {
    const container = document.querySelector(CONTAINER);
    const looker = open.looker;
    if (!container || !looker || looker.state.destroyed || !looker.state.canvasBBox) return;
    const pen = layer(container);
    const drawn = labels();
    for (const label of [...drawn, ...reviewedAlone(drawn)]) {
      if (LOOKS[label.decision]) paintDecided(pen, correctionOf(label), LOOKS[label.decision]);
    }
    const focus = focused();
    const selected = looker.state.options.selectedLabels ?? [];
    if (focus && !selected.length) paintFocus(pen, focus); // else keys act on what is selected
    container.dataset.reviewSample = looker.sample?._id ?? looker.sample?.id ?? "";
    container.dataset.reviewFocus = focus?.id ?? "";
    container.dataset.reviewOpen = undecided().length;
    container.dataset.reviewDrawn = ++open.drawn;
  }

  // Id of the frame that is open; of the frame of a patch.
  function openId() {
    const sample = open.looker?.sample;
    return sample?._sample_id ?? sample?._id ?? sample?.id;
  }

  // Recoil holds the looker of the open frame; only an operator can ask it.
  class Attend extends window.__foo__.Operator {
    get config() {
      return new window.__foo__.OperatorConfig({ name: "attend", label: "Attend", unlisted: true });
    }
    async execute({ state }) {
      const looker = await state.snapshot.getPromise(window.__fos__.modalLooker);
      if (looker && looker !== open.looker) {
        open.looker = looker;
        open.focus = open.next;
        open.next = null;
        open.last = [];
        review.drawWaiting(review.openId());
      }
      paint();
    }
  }
  window.__foo__.registerOperator(Attend, "sam2-autolabel");

  // FiftyOne says so after it has drawn. Another canvas is another looker, of another frame.
  window.addEventListener("canvas-loaded", (event) => {
    if (!event.target.closest?.(CONTAINER)) return;
    if (open.looker?.canvas === event.target && !open.looker.state.destroyed) {
      paint();
    } else {
      window.__foo__.executeOperator("sam2-autolabel/attend", {});
    }
  });

  Object.assign(review, {
    open, openId, labels, undecided, focused, boxOnPage, focusOn, focusNext, moveFocus, paint,
  });
})();
