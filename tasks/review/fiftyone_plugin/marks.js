// How labels look on the layer over FiftyOne's canvas: what was decided, and what has the focus.
(function () {
  const review = window.autolabelReview;
  const LOOKS = { // the same colours as in summary.py
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
