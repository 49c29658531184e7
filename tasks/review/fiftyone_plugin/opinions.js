// Where two reviewers disagree on a label: the mask of each, as an outline in the colour of that person's button.
(function () {
  const review = window.autolabelReview;
  const COLOURS = ["#38bdf8", "#f472b6"]; // of the two, by name
  const RIMS = [5, 2]; // px: where both have the same rim, both colours are seen
  let held = { id: "", masks: [] };

  const colourOf = (who, said) => COLOURS[Object.keys(said).indexOf(who)];

  // Asks for the masks of a label, of the two who have said something of it; there is none of who rejects it.
  async function fetchOpinions(id, said) {
    const now = { id, masks: [] };
    held = now;
    const found = id && await review.send("opinions", { sample_id: review.openId(), label_id: id }).catch(() => null);
    for (const who of Object.keys(said)) {
      const { bounding_box, href } = found?.[who] ?? {};
      if (!href) continue;
      const bitmap = await createImageBitmap(await (await fetch(href)).blob());
      now.masks.push({ bounding_box, bitmap, colour: colourOf(who, said) });
    }
    if (held === now) review.paint();
  }

  function paintOpinions(pen, id) {
    if (held.id !== id) return;
    held.masks.forEach(({ bounding_box, bitmap, colour }, row) => {
      review.paintMask(pen, bitmap, review.boxOnPage({ bounding_box }), colour, RIMS[row], 0);
    });
  }

  Object.assign(review, { colourOf, fetchOpinions, paintOpinions });
})();
