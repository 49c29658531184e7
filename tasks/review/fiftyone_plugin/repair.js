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

  Object.assign(review, { repair: start });
})();
