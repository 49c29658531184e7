// Where two reviewers disagree on a label: what each has decided, in words below it, and the mask of each as an outline, both in
// the colour of that person's button.
(function () {
  const review = window.autolabelReview;
  const LOOKS = [["#f97316", 5], ["#f472b6", 2]]; // of the two, by name; px: where both have one rim, both are seen
  const STANDS = " (counts until it is settled)";
  let held = { id: "", opinions: [], masks: [] };

  // Of a verdict, so that it is not read as one on the person.
  function verdictOf(verdict) {
    if (["right", "wrong"].includes(verdict)) return `label is ${verdict}`;
    return verdict === "mask repaired" ? verdict : `class is ${verdict}`;
  }

  // What each of the two has said, and how it looks.
  function inFull(said) {
    return Object.entries(said).map(([who, verdict], row) => {
      const [colour, rim] = LOOKS[row] ?? [];
      return { who, text: `${who}: ${verdictOf(verdict)}`, colour, rim };
    });
  }

  // Asks for the masks that the two who have said something of a label hold it to have; who rejects it has none.
  async function fetchOpinions(id, opinions) {
    held = { id, opinions, masks: [] };
    const found = id && await review.send("opinions", { sample_id: review.openId(), label_id: id }).catch(() => null);
    const masks = opinions.filter(({ who }) => found?.[who]?.href).map(async (one) => {
      const bitmap = await createImageBitmap(await (await fetch(found[one.who].href)).blob());
      return { ...one, ...found[one.who], bitmap };
    });
    const shown = await Promise.all(masks);
    if (held.id === id) held.masks = shown;
    review.paint();
  }

  function paintOpinions(pen, id, [x, y, , h]) {
    if (held.id !== id) return;
    for (const { bounding_box, bitmap, colour, rim } of held.masks) {
      review.paintMask(pen, bitmap, review.boxOnPage({ bounding_box }), colour, rim, 0);
    }
    held.opinions.forEach(({ who, text, colour }, row) => {
      review.paintText(pen, `${text}${review.open.by[id] === who ? STANDS : ""}`, x, Math.min(y + h + 9, pen.canvas.clientHeight - 46) + 23 * row, colour);
    });
  }

  Object.assign(review, { inFull, fetchOpinions, paintOpinions });
})();
