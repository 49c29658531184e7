// Mends a mask by clicking: the page for clicks, with the model in the App's own process. Shift+C opens it.
(function () {
  const review = window.autolabelReview;
  const clickPage = window.autolabelClickPage;

  // `signal` takes a question back.
  async function send(act, params, signal) {
    const answer = await review.send(act, params, { signal });
    if (!answer.ok) throw new Error(answer.message);
    return answer;
  }

  async function start() {
    if (clickPage.isOpen() || !(await review.reachable())) return;
    const about = await review.act("repair_open", {});
    if (!about?.ok) return; // a notification has said why not
    const { sample_id, label_id, version } = about;
    clickPage.show({
      ...about,
      title: `Repair the mask: ${about.label}`,
      hint: "click on what is missing or too much, or drag a box",
      picture: `/media?filepath=${encodeURIComponent(about.filepath)}`,
      ready: async () => (await send("repair_warm", { sample_id, label_id })).model,
      ask: (clicked, signal) => send("repair_click", { sample_id, label_id, version, ...clicked }, signal),
      accept: async (clicked) => {
        const done = await review.act("repair_accept", { sample_id, label_id, version, ...clicked });
        return done?.ok ? "" : done?.message ?? "the App gives no answer: try again";
      },
    });
  }

  // Boxes that somebody draws in FiftyOne's tab Annotate get their masks when that tab is left.
  const HOW = "labels that nobody has decided on are not shown here: look in Explore first, where 'hidden' below the picture outlines them; draw a box around what has no label, then " +
    "choose its class at the right; its mask is made when you go back to Explore";
  // FiftyOne's own words for a frame on which nobody has accepted a label, and ours.
  const NOTHING = "No labels to annotate";
  const INSTEAD = ["Nothing to edit here yet", "Draw a box around what has no label, or accept labels in Explore to edit them"];
  const saved = new Set(); // ids of samples
  let isDrawing = false, advice = "";

  async function takeDrawn() {
    if (isDrawing || !saved.size) return;
    const sample_ids = [...saved];
    saved.clear();
    const done = await review.during("making masks of the boxes …", review.act("drawn", { sample_ids }));
    if (done?.message === "") review.redraw({ [review.openId()]: [{ labels: {}, gone: [], values: {} }] });
  }

  // What to do in the tab: the label that is open there has a class, which FiftyOne chooses for a new one.
  function advise() {
    const modal = document.querySelector("[data-cy=modal]"), chosen = modal?.querySelector("input[role=combobox]")?.value;
    const text = chosen
      ? `its class is "${chosen}": choose another one under "label" at the right, or press F in Explore, where a new box gets its mask`
      : HOW;
    if (text !== advice) review.show("annotate", text);
    advice = text;
    for (const one of modal?.querySelectorAll("span") ?? []) {
      if (one.textContent === NOTHING) [one.textContent, one.nextSibling.textContent] = INSTEAD;
    }
  }

  new MutationObserver(() => {
    const wasDrawing = isDrawing;
    isDrawing = review.fiftyone.isAnnotating();
    if (isDrawing) advise();
    if (isDrawing || !wasDrawing) return;
    advice = "";
    review.hide("annotate");
    takeDrawn();
  }).observe(document.body, { childList: true, subtree: true, attributes: true, attributeFilter: ["value"] });
  review.fiftyone.onSaved((id) => {
    saved.add(id);
    takeDrawn();
  });

  Object.assign(review, { repair: start });
})();
