// Questions for the keyboard: which class or sequence (a few letters, Enter takes the first that fits),
// and whether to go on.
(function () {
  const review = window.autolabelReview;
  const foo = window.__foo__;
  const { element } = review;
  const SILENT_MS = 60_000;
  const MOST_ROWS = 200;

  // Runs an operator and returns what it says; null if it says nothing, as while the App still loads
  // its operators.
  function ask(uri, params = {}) {
    const said = new Promise((answer) => {
      foo.executeOperator(uri, params, { callback: (done) => answer(done?.result ?? null) });
    });
    return Promise.race([said, new Promise((late) => setTimeout(late, SILENT_MS, null))]);
  }

  // Rows whose text begins with what was typed, then those that hold it; a row is a value and its text.
  function fitting(rows, typed) {
    const wanted = typed.trim().toLowerCase();
    const begins = rows.filter(([, text]) => text.toLowerCase().startsWith(wanted));
    const holds = rows.filter((row) => !begins.includes(row) && row[1].toLowerCase().includes(wanted));
    return [...begins, ...holds];
  }

  function panel(name, title) {
    const box = element(
      "div",
      "position:fixed;top:18%;left:50%;transform:translateX(-50%);z-index:100000;width:420px;" +
        "padding:16px;border-radius:8px;background:#1f2430;color:#f3f4f6;" +
        "font:15px sans-serif;box-shadow:0 8px 40px #000c",
      document.body,
    );
    box.dataset.cy = name;
    element("div", "font-weight:bold;margin-bottom:10px", box, title);
    return box;
  }

  // Opens on the class that the label has now.
  async function pickClass(title, now) {
    const names = (await ask("sam2-autolabel/classes"))?.classes ?? [];
    return pick("class-picker", title, names.map((name) => [name, name]), (typed) => `new class "${typed}"`, now);
  }

  async function pickSequence(title) {
    const found = (await ask("sam2-autolabel/sequences"))?.sequences ?? [];
    return pick("sequence-picker", title, found, (typed) => `all with "${typed}" in their names`);
  }

  // Asks for one of some rows, at first the one whose value is `marked`, or for something else that
  // `other` describes; "" if somebody gives up.
  function pick(kind, title, rows, other, marked = "") {
    const box = panel(kind, title);
    const field = element(
      "input",
      "width:100%;box-sizing:border-box;padding:8px;font:inherit;border-radius:4px;" +
        "border:1px solid #6b7280;background:#111827;color:inherit;outline:2px solid #38bdf8",
      box,
    );
    const list = element("div", "max-height:320px;overflow:auto;margin-top:8px", box);
    element("div", "margin-top:10px;font-size:12px;color:#9ca3af", box,
      "Enter takes the marked one, ↑ ↓ move the mark, Escape closes");
    let at = rows.slice(0, MOST_ROWS).findIndex(([value]) => value === marked);
    const choices = () => {
      const typed = field.value.trim();
      const known = rows.some(([value]) => value.toLowerCase() === typed.toLowerCase());
      const found = fitting(rows, field.value).slice(0, MOST_ROWS);
      return typed && !known ? [...found, [typed, other(typed)]] : found;
    };
    return new Promise((answer) => {
      const close = (name) => {
        document.removeEventListener("mousedown", outside, true);
        field.removeEventListener("blur", back);
        box.remove();
        answer(name);
      };
      // What is drawn anew behind the dialog may take the focus; only a click there closes it.
      const back = () => setTimeout(() => field.focus());
      const outside = (event) => {
        if (!box.contains(event.target)) close("");
      };
      document.addEventListener("mousedown", outside, true);
      const show = () => {
        const rows = choices();
        at = Math.max(0, Math.min(at, rows.length - 1));
        list.replaceChildren();
        rows.forEach(([name, text], row) => {
          const mark = row === at ? "background:#38bdf8;color:#111827" : "";
          const cut = "overflow:hidden;text-overflow:ellipsis;white-space:nowrap;";
          const line = element("div", `padding:5px 8px;border-radius:4px;cursor:pointer;${cut}${mark}`, list, text);
          line.title = text;
          line.ariaSelected = row === at;
          line.addEventListener("mousedown", () => close(name));
          if (row === at) line.scrollIntoView?.({ block: "nearest" });
        });
      };
      field.addEventListener("input", () => { at = 0; show(); });
      field.addEventListener("blur", back);
      field.addEventListener("keydown", (event) => {
        event.stopPropagation(); // FiftyOne's own shortcuts are letters
        if (event.key === "Escape") close("");
        else if (event.key === "Enter") close(choices()[at]?.[0] ?? "");
        else if (event.key === "ArrowDown") at += 1;
        else if (event.key === "ArrowUp") at -= 1;
        else return;
        event.preventDefault();
        if (box.isConnected) show();
      });
      show();
      field.focus();
    });
  }

  // Enter says yes; Escape, or a click elsewhere, says no.
  function confirm(title, question) {
    const box = panel("review-confirm", title);
    element("div", "margin-bottom:12px", box, question);
    const style = "margin-right:8px;padding:6px 14px;border-radius:4px;border:0;font:inherit;";
    const yes = element("button", `${style}background:#38bdf8;color:#111827`, box, "Yes (Enter)");
    element("button", `${style}background:#374151;color:inherit`, box, "No (Escape)");
    return new Promise((answer) => {
      const close = (agreed) => {
        answer(agreed);
        if (box.isConnected) box.remove();
      };
      yes.addEventListener("keydown", (event) => {
        event.stopPropagation();
        if (event.key === "Escape") close(false);
      });
      yes.addEventListener("mousedown", (event) => event.preventDefault()); // keeps the focus
      yes.addEventListener("click", () => close(true));
      yes.addEventListener("blur", () => close(false));
      yes.focus();
    });
  }

  class Confirm extends foo.Operator {
    get config() {
      return new foo.OperatorConfig({ name: "confirm", label: "Confirm", unlisted: true });
    }
    async execute({ params }) {
      const { question, operator } = params;
      if (!(await confirm(operator.replaceAll("_", " "), question))) return;
      await review.act(operator, { ...params.params, confirmed: true });
    }
  }
  foo.registerOperator(Confirm, "sam2-autolabel");

  Object.assign(review, { ask, pickClass, pickSequence, confirm });
})();
