// Where two reviewers disagree on a label: the mask of each, as an outline in the colour of that person's button.
(function () {
  const review = window.autolabelReview;
  const LOOKS = [["#38bdf8", 5], ["#f472b6", 2]]; // of the two, by name; px: where both have one rim, both are seen
  let held = { id: "", masks: [] };

  const lookOf = (who, said) => LOOKS[Object.keys(said).indexOf(who)] ?? [];

  // Asks for the masks that the two who have said something of a label hold it to have; who rejects it has none.
  async function fetchOpinions(id, said) {
    held = { id, masks: [] };
    const found = id && await review.send("opinions", { sample_id: review.openId(), label_id: id }).catch(() => null);
    const masks = Object.keys(said).filter((who) => found?.[who]?.href).map(async (who) => {
      const bitmap = await createImageBitmap(await (await fetch(found[who].href)).blob());
      return { ...found[who], bitmap, look: lookOf(who, said) };
    });
    const shown = await Promise.all(masks);
    if (held.id === id) held.masks = shown;
    review.paint();
  }

  function paintOpinions(pen, id) {
    for (const { bounding_box, bitmap, look } of held.id === id ? held.masks : []) {
      review.paintMask(pen, bitmap, review.boxOnPage({ bounding_box }), ...look, 0);
    }
  }

  Object.assign(review, { colourOf: (who, said) => lookOf(who, said)[0], fetchOpinions, paintOpinions });
})();
