// What the page says and asks: that keys rest, why something was refused, which class or sequence.
(function () {
  const review = window.autolabelReview;
  const { element } = review;
  const PATIENCE_MS = 250; // what is quicker needs no sign
  const STAYS_MS = { done: 6000, wrong: 20_000 };
  const MOST_ROWS = 200;
  const LOOKS = {
    wait: "bottom:46px;background:#111827e6", wrong: "bottom:90px;background:#b91c1c", done: "bottom:90px;background:#15803d",
    annotate: "bottom:4px;background:#1f2430",
    guide: "top:6px;width:max-content;max-width:62%;padding:5px 18px;font:14px/17px sans-serif;background:#1f2430", // above the tabs
    away: "inset:0;transform:none;max-width:none;padding:35vh 10vw;border-radius:0;background:#111827;font-size:18px;" +
      "text-align:center;white-space:pre-line;pointer-events:auto",
  };
  const signs = new Map(); // by kind
  element("style", "", document.head, "body:has([data-cy=modal]) [data-cy=sign-guide] { display: none }");

  function show(kind, text) {
    hide(kind);
    const sign = element(
      "div",
      "position:fixed;left:50%;transform:translateX(-50%);z-index:99998;max-width:70%;padding:8px 18px;" +
        "border-radius:8px;font:15px sans-serif;color:#f3f4f6;pointer-events:none;" +
        `box-shadow:0 4px 24px #000a;${LOOKS[kind]}`,
      document.body,
      text,
    );
    sign.dataset.cy = `sign-${kind}`;
    sign.setAttribute("role", kind === "wrong" ? "alert" : "status");
    signs.set(kind, sign);
    return sign;
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

  // Says how something went: that it was "done" until another frame opens, that it is "wrong" until the next
  // key or click. FiftyOne's own notifications wait until it has drawn.
  let since = 0;
  function tell(text, kind = "done") {
    hide("done");
    const sign = show(kind, text);
    since = performance.now();
    setTimeout(() => signs.get(kind) === sign && hide(kind), STAYS_MS[kind]);
  }

  const complain = (text) => tell(text, "wrong");
  for (const kind of ["keydown", "mousedown"]) {
    window.addEventListener(kind, (event) => {
      if (event.key !== "Shift" && performance.now() - since > PATIENCE_MS) hide("wrong");
    }, true);
  }

  // Rows whose text begins with what was typed, then those that hold it; a row is a value and its text.
  function fitting(rows, typed) {
    const wanted = typed.toLowerCase();
    const begins = rows.filter(([, text]) => text.toLowerCase().startsWith(wanted));
    const holds = rows.filter((row) => !begins.includes(row) && row[1].toLowerCase().includes(wanted));
    return [...begins, ...holds].slice(0, MOST_ROWS);
  }

  // Asks for one of some rows, at first the one whose value is `marked`, or for what was typed, which
  // `other` describes; null if somebody gives up.
  function pick(kind, title, rows, other, marked = "") {
    const dialog = element(
      "dialog",
      "width:420px;margin:18vh auto 0;padding:0;border:0;border-radius:8px;background:#1f2430;color:#f3f4f6;" +
        "font:15px sans-serif;box-shadow:0 8px 40px #000c",
      document.body,
    );
    dialog.dataset.cy = kind;
    const box = element("div", "padding:16px", dialog);
    element("div", "font-weight:bold;margin-bottom:10px", box, title);
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
      return [...fitting(rows, typed), ...(typed && !known ? [[typed, other(typed)]] : [])];
    };
    return new Promise((answer) => {
      const close = (value) => {
        dialog.remove();
        answer(value);
      };
      const draw = () => {
        const found = choices();
        at = Math.max(0, Math.min(at, found.length - 1));
        list.replaceChildren();
        found.forEach(([value, text], row) => {
          const mark = row === at ? "background:#38bdf8;color:#111827" : "";
          const cut = "overflow:hidden;text-overflow:ellipsis;white-space:nowrap;";
          const line = element("div", `padding:5px 8px;border-radius:4px;cursor:pointer;${cut}${mark}`, list, text);
          line.title = text;
          line.ariaSelected = row === at;
          line.addEventListener("click", () => close(value));
          if (row === at) line.scrollIntoView({ block: "nearest" });
        });
      };
      dialog.addEventListener("click", (event) => event.target === dialog && close(null));
      dialog.addEventListener("keydown", (event) => {
        event.stopPropagation(); // FiftyOne's own shortcuts are letters
        if (event.key === "Escape") close(null);
        else if (event.key === "Enter") {
          if (choices().length) close(choices()[at][0]);
        }
        else if (event.key === "ArrowDown") at += 1;
        else if (event.key === "ArrowUp") at -= 1;
        else return;
        event.preventDefault();
        draw();
      });
      field.addEventListener("input", () => { at = 0; draw(); });
      dialog.showModal();
      draw();
    });
  }

  Object.assign(review, { during, complain, tell, pick, show, hide });
})();
