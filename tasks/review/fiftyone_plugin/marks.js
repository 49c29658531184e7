// How decided labels look, on the layer over the open frame and on the tiles of the grid.
(function () {
  const review = window.autolabelReview;
  const LOOKS = { // the same colours as in stats.py
    accepted: { colour: "#22c55e", mark: "✓" },
    rejected: { colour: "#ef4444", mark: "✗" },
    corrected: { colour: "#fde047", mark: "✎" },
    edited: { colour: "#fde047", mark: "✎" },
    merged: { colour: "#c084fc", mark: "∪" },
    deleted: { colour: "#9ca3af", mark: "−" },
    added: { colour: "#a3e635", mark: "+" },
  };
  const NOT_YET = "…"; // in place of the mark until the decision is written
  const MOST_PX = 2048; // of a mask on the layer, however far somebody has zoomed in

  // A decided label's mask: a tint under which the picture can still be judged, and its rim.
  function renderedMask(bitmap, w, h, colour, rim, tint) {
    const shrink = Math.min(1, MOST_PX / w, MOST_PX / h);
    const size = [w, h].map((one) => Math.max(1, Math.round(one * shrink)));
    const solid = new OffscreenCanvas(...size), fill = solid.getContext("2d");
    fill.drawImage(bitmap, 0, 0, ...size);
    fill.globalCompositeOperation = "source-in";
    fill.fillStyle = colour;
    fill.fillRect(0, 0, ...size);
    const whole = new OffscreenCanvas(...size), brush = whole.getContext("2d");
    for (const [dx, dy] of [[rim, 0], [-rim, 0], [0, rim], [0, -rim]]) brush.drawImage(solid, dx, dy);
    brush.globalCompositeOperation = "destination-out";
    brush.drawImage(solid, 0, 0);
    brush.globalCompositeOperation = "source-over";
    brush.globalAlpha = tint;
    brush.drawImage(solid, 0, 0);
    return whole;
  }

  const rendered = new WeakMap(); // by the mask's bitmap: rendering takes longer than painting

  function paintMask(pen, bitmap, box, colour, rim, tint) {
    const [, , w, h] = box;
    if (!bitmap?.width || !(w > 0 && h > 0)) return;
    const key = `${w} ${h} ${colour}`;
    if (rendered.get(bitmap)?.key !== key) rendered.set(bitmap, { key, canvas: renderedMask(bitmap, w, h, colour, rim, tint) });
    pen.drawImage(rendered.get(bitmap).canvas, ...box);
  }

  function paintTint(pen, bitmap, box, decision) {
    if (LOOKS[decision]) paintMask(pen, bitmap, box, LOOKS[decision].colour, 2, 0.3);
  }

  // A decided label: besides its tint a solid box, and a mark in the middle; dots until the decision is
  // written.
  function paintMark(pen, [x, y, w, h], decision, written) {
    const look = LOOKS[decision];
    if (!look) return;
    pen.lineWidth = 3;
    pen.strokeStyle = look.colour;
    pen.setLineDash([]);
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

  // A text on a plate, which is never cut by the picture's edge.
  function paintText(pen, text, x, y, colour, plate = "#111827d0") {
    pen.font = "bold 13px sans-serif";
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    const density = window.devicePixelRatio || 1, across = pen.measureText(text).width + 14;
    const [right, low] = [pen.canvas.width / density - across - 6, pen.canvas.height / density - 22];
    const place = [Math.max(0, Math.min(x, right)), Math.min(y, low)];
    pen.fillStyle = plate;
    pen.beginPath();
    pen.roundRect(...place, across, 22, 6);
    pen.fill();
    pen.fillStyle = colour;
    pen.fillText(text, place[0] + 7, place[1] + 12);
  }

  // A tile of the grid: marks, and of a frame how many of its labels are decided, or that it is confirmed as empty.
  // `made` are what people have made of labels that the view leaves out, and what they have added.
  function paintTile(pen, width, marked, made, isLabel, isEmpty, isDone) {
    const decided = marked.filter(([, decision]) => decision), density = window.devicePixelRatio || 1;
    if (!decided.length && !made.length && !isDone) return;
    pen.save();
    pen.setTransform(density, 0, 0, density, 0, 0);
    for (const [box, decision] of [...decided, ...made]) paintMark(pen, box, decision, true);
    const added = made.filter(([, decision]) => decision === "added").length;
    const count = decided.length ? `${decided.length} of ${marked.length}${isDone ? " ✓" : ""}` : isDone ? "done ✓" : "";
    const text = isEmpty ? "empty ✓" : [count, added && `${added} added`].filter(Boolean).join(" · ");
    if (text && !isLabel) paintText(pen, text, width, 6, "#111827", isDone ? LOOKS.accepted.colour : "#f3f4f6");
    pen.restore();
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

  // A label that the view leaves out, with a text below it.
  function paintOther(pen, [x, y, w, h], text) {
    pen.save();
    pen.setLineDash([6, 4]);
    pen.lineWidth = 1.5;
    pen.strokeStyle = "#ffffff";
    pen.strokeRect(x, y, w, h);
    pen.restore();
    paintText(pen, text, x, y + h + 3, "#ffffff");
  }

  // A decision in words, with its mark before it.
  const markOf = (decision) => (decision ? `${LOOKS[decision]?.mark ?? ""} ${decision}` : "");

  // All marks with their outlines, for the list of all keys: styles and marks of its keys, and what they say.
  const unlike = Object.entries(LOOKS).filter(([name]) => name !== "edited"); // as corrected ones
  const LEGEND = [
    [...unlike.map(([, { colour, mark }]) => [mark, `color:${colour};background:#111827;border:2px solid`]), NOT_YET],
    `on labels: ${unlike.map(([name]) => name).join(", ")}, being written`,
  ];

  // Of a label of the machine: "followed from frame 3".
  const unseen = ({ changed }) => `${changed.replace("mask: ", "")}, not seen yet`;

  Object.assign(review, { LEGEND, markOf, unseen, paintMask, paintText, paintOther, paintTint, paintMark, paintFocus, paintTile });
})();
