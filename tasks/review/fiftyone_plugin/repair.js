// Mends a mask by clicking: shows the picture of a label over the whole page, sends clicks and boxes to
// the model in the App's own process, draws the mask that comes back. Shift+C opens it.
(function () {
  const review = window.autolabelReview;
  const foo = window.__foo__;
  const { element } = review;
  const PLUGIN = "sam2-autolabel";
  const DRAG_PX = 5; // less is a click
  const COLOURS = { mask: [56, 189, 248], old: [250, 204, 21], yes: "#22c55e", no: "#ef4444" };
  const HELP = "click: object · right or Alt+click: not the object · drag: box · wheel: zoom · " +
    "middle drag: move · Z: undo · Enter: accept · Escape: cancel";
  let repair = null; // the one that is open

  function focusParams() {
    const label = review.focused?.();
    if (!label) return {};
    const sample = review.open.looker.sample;
    return { focus: { sample_id: sample._sample_id ?? sample._id ?? sample.id, label_id: label.id } };
  }

  // `signal` takes a question back.
  async function send(operator, params, signal) {
    const answer = await review.send(operator, params, { signal });
    if (answer.problem) throw new Error(answer.problem);
    return answer;
  }

  // Runs of a mask, row by row, as pixels of a colour; its edge is opaque.
  function painted({ width, height, runs }, [red, green, blue], inner) {
    if (!width || !height) return null;
    const mask = new Uint8Array(width * height);
    let at = 0;
    runs.forEach((run, index) => {
      if (index % 2) mask.fill(1, at, at + run);
      at += run;
    });
    const canvas = new OffscreenCanvas(width, height);
    const pen = canvas.getContext("2d");
    const pixels = pen.createImageData(width, height);
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        const here = y * width + x;
        if (!mask[here]) continue;
        const inside = x && y && x < width - 1 && y < height - 1 &&
          mask[here - 1] && mask[here + 1] && mask[here - width] && mask[here + width];
        pixels.data.set([red, green, blue, inside ? inner : 255], 4 * here);
      }
    }
    pen.putImageData(pixels, 0, 0);
    return canvas;
  }

  function say(text, kind = "") {
    repair.status.textContent = text;
    repair.status.style.color = { wrong: "#fca5a5", wait: "#facc15" }[kind] ?? "#d1d5db";
    repair.page.dataset.status = kind || "ready";
  }

  function toPage(x, y) {
    const { scale, left, top } = repair.view;
    return [left + x * scale, top + y * scale];
  }

  function toPicture(event) {
    const { scale, left, top } = repair.view;
    const place = repair.canvas.getBoundingClientRect();
    const [height, width] = repair.about.size_hw;
    const limit = (value, most) => Math.min(Math.max(value, 0), most);
    return [limit((event.clientX - place.left - left) / scale, width),
      limit((event.clientY - place.top - top) / scale, height)];
  }

  // The label with as much around it as it has itself, and never more than 8 times enlarged; at the
  // picture's border, the picture's edge is the page's.
  function lookAtLabel() {
    const { canvas, about } = repair;
    const [x0, y0, x1, y1] = about.box_xyxy_px;
    const fit = Math.min(canvas.clientWidth / (3 * (x1 - x0) || 1), canvas.clientHeight / (3 * (y1 - y0) || 1));
    const whole = Math.min(canvas.clientWidth / about.size_hw[1], canvas.clientHeight / about.size_hw[0]);
    const scale = Math.min(Math.max(fit, whole), 8);
    const [height, width] = about.size_hw;
    repair.view = {
      scale,
      left: within(canvas.clientWidth / 2 - (scale * (x0 + x1)) / 2, canvas.clientWidth - scale * width),
      top: within(canvas.clientHeight / 2 - (scale * (y0 + y1)) / 2, canvas.clientHeight - scale * height),
    };
  }

  // Where a picture begins that leaves no room beside it; in the middle if it is too small for that.
  function within(start, room) {
    return room > 0 ? room / 2 : Math.min(0, Math.max(start, room));
  }

  function paint() {
    const { canvas, view, picture } = repair;
    const density = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * density;
    canvas.height = canvas.clientHeight * density;
    const pen = canvas.getContext("2d");
    pen.scale(density, density);
    pen.imageSmoothingEnabled = view.scale < 3;
    const [height, width] = repair.about.size_hw;
    if (picture) pen.drawImage(picture, view.left, view.top, width * view.scale, height * view.scale);
    const lay = (made, place) => {
      if (!made) return;
      const [x, y] = toPage(place.left, place.top);
      pen.drawImage(made, x, y, place.width * view.scale, place.height * view.scale);
    };
    if (repair.made) lay(repair.madeCanvas, repair.made.mask);
    else lay(repair.oldCanvas, repair.about.mask);
    const box = repair.dragged ?? repair.box;
    if (box) {
      const [x0, y0] = toPage(box[0], box[1]), [x1, y1] = toPage(box[2], box[3]);
      pen.lineWidth = 2;
      pen.setLineDash([6, 4]);
      pen.strokeStyle = "#ffffff";
      pen.strokeRect(x0, y0, x1 - x0, y1 - y0);
      pen.setLineDash([]);
    }
    for (const [px, py, yes] of repair.points) {
      const [x, y] = toPage(px, py);
      pen.beginPath();
      pen.arc(x, y, 6, 0, 2 * Math.PI);
      pen.fillStyle = yes ? COLOURS.yes : COLOURS.no;
      pen.fill();
      pen.lineWidth = 2;
      pen.strokeStyle = "#ffffff";
      pen.stroke();
    }
  }

  function clicked() {
    const { about, points, box } = repair;
    const { sample_id, label_id, version } = about;
    return { sample_id, label_id, version, points, box_xyxy_px: box };
  }

  // Asks for the mask of all clicks; a later question takes the earlier one back.
  async function ask() {
    const here = repair;
    here.question?.abort();
    here.made = here.madeCanvas = null;
    if (!here.points.length && !here.box) {
      here.question = null;
      paint();
      say("this is the mask as it is");
      here.page.dataset.drawn = ++here.drawn;
      return;
    }
    const started = performance.now();
    const question = here.question = new AbortController();
    paint();
    say(here.warm ? "…" : "loading the model …", "wait");
    try {
      const made = await send("repair_click", clicked(), question.signal);
      if (repair !== here || here.question !== question) return;
      here.made = made;
      here.madeCanvas = painted(made.mask, COLOURS.mask, 110);
      paint();
      requestAnimationFrame(() => {
        here.page.dataset.milliseconds = Math.round(performance.now() - started);
        here.page.dataset.drawn = ++here.drawn;
      });
      say(`${made.area_px} px, expected IoU ${made.predicted_iou}`);
    } catch (error) {
      if (repair === here && here.question === question) say(error.message, "wrong");
    }
  }

  function remember() {
    repair.history.push([[...repair.points], repair.box]);
  }

  function undo() {
    const before = repair.history.pop();
    if (!before) return;
    [repair.points, repair.box] = before;
    ask();
  }

  async function accept() {
    const here = repair;
    if (here.accepting || (!here.points.length && !here.box)) return;
    here.accepting = true;
    const params = clicked();
    say("saving …", "wait");
    const done = await review.act("repair_accept", params);
    here.accepting = false;
    if (repair !== here) return;
    if (done?.ok) close();
    else say(done?.message ?? "the App gives no answer: try again", "wrong");
  }

  function close() {
    repair?.question?.abort();
    repair?.page.remove();
    repair = null;
  }

  function press(event) {
    event.preventDefault();
    const start = toPicture(event), from = [event.clientX, event.clientY], view = { ...repair.view };
    const moves = event.button === 1;
    const yes = event.button === 0 && !event.altKey;
    const here = repair;
    const far = (now) => Math.hypot(now.clientX - from[0], now.clientY - from[1]) > DRAG_PX;
    const move = (now) => {
      if (moves) here.view = { ...view, left: view.left + now.clientX - from[0], top: view.top + now.clientY - from[1] };
      else if (event.button === 0 && far(now)) here.dragged = [...start, ...toPicture(now)];
      paint();
    };
    const end = (now) => {
      window.removeEventListener("mousemove", move, true);
      window.removeEventListener("mouseup", end, true);
      if (repair !== here) return;
      const box = here.dragged;
      here.dragged = null;
      if (moves) return;
      remember();
      if (box) {
        const [x0, y0, x1, y1] = box;
        here.box = [Math.min(x0, x1), Math.min(y0, y1), Math.max(x0, x1), Math.max(y0, y1)];
      } else {
        here.points.push([...start, yes]);
      }
      ask();
    };
    window.addEventListener("mousemove", move, true);
    window.addEventListener("mouseup", end, true);
  }

  function zoom(event) {
    event.preventDefault();
    const place = repair.canvas.getBoundingClientRect();
    const x = event.clientX - place.left, y = event.clientY - place.top;
    const { scale, left, top } = repair.view;
    const next = Math.min(Math.max(scale * Math.exp(-event.deltaY / 500), 0.1), 32);
    repair.view = { scale: next, left: x - ((x - left) * next) / scale, top: y - ((y - top) * next) / scale };
    paint();
  }

  function show(about) {
    const page = element("div", "position:fixed;inset:0;z-index:99999;background:#0b0e14;display:flex;" +
      "flex-direction:column;font:15px sans-serif;color:#f3f4f6", document.body);
    page.dataset.cy = "repair";
    const bar = element("div", "display:flex;gap:24px;padding:10px 16px;background:#1f2430", page);
    element("b", "white-space:nowrap", bar, `Repair the mask: ${about.label}`);
    const status = element("span", "flex:1", bar);
    const canvas = element("canvas", "flex:1;min-height:0;width:100%;cursor:crosshair", page);
    element("div", "padding:8px 16px;background:#1f2430;color:#9ca3af;font-size:13px", page, HELP);
    repair = { about, page, status, canvas, points: [], box: null, history: [], drawn: 0, warm: false,
      oldCanvas: painted(about.mask, COLOURS.old, 90) };
    const here = repair;
    lookAtLabel();
    paint();
    say("loading the model …", "wait");
    canvas.addEventListener("mousedown", press);
    canvas.addEventListener("wheel", zoom, { passive: false });
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    const picture = new Image();
    picture.onload = () => {
      if (repair !== here) return;
      here.picture = picture;
      paint();
    };
    picture.onerror = () => repair === here && say("the picture cannot be shown: it is gone or was changed", "wrong");
    picture.src = `/media?filepath=${encodeURIComponent(about.filepath)}`;
    const { sample_id, label_id } = about;
    send("repair_warm", { sample_id, label_id }).then(
      ({ model }) => {
        if (repair !== here) return;
        here.warm = true;
        page.dataset.model = model;
        if (!here.question) say(`${model}: click on what is missing or too much, or drag a box`);
      },
      (error) => repair === here && say(error.message, "wrong"),
    );
  }

  async function start() {
    if (repair || !(await review.reachable())) return;
    const about = await review.ask(`${PLUGIN}/repair_open`, focusParams());
    if (about?.filepath && !repair) show(about); // else a notification has said why not
  }

  // While it is open the keyboard is its own; this listener is there before those of the other keys.
  window.addEventListener("keydown", (event) => {
    if (!repair) {
      const typing = event.target?.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target?.tagName);
      const asked = event.key === "C" && event.shiftKey && !event.ctrlKey && !event.metaKey && !event.altKey;
      if (typing || !asked || !document.querySelector("[data-cy=modal]")) return;
      start();
    } else if (event.key === "Enter") accept();
    else if (event.key === "Escape") close();
    else if (event.key === "z" || event.key === "Z") undo();
    else if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);
  window.addEventListener("resize", () => repair && paint());

  class Press extends foo.Operator {
    get config() {
      return new foo.OperatorConfig({ name: "press_repair", label: "Repair the mask", unlisted: true });
    }
    async resolvePlacement() {
      const { Button, Placement, Places } = foo.types;
      const view = new Button({ label: "Repair the mask (Shift+C)", icon: "/assets/ads_click.svg", prompt: false });
      return new Placement(Places.SAMPLES_VIEWER_ACTIONS, view);
    }
    async execute() {
      await start();
    }
  }
  foo.registerOperator(Press, PLUGIN);
  Object.assign(review, { repair: start });
})();
