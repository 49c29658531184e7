// Mends a mask by clicking: shows the picture of a label over the whole page, sends clicks and boxes to
// the model in the App's own process, draws the mask that comes back. Shift+C opens it.
(function () {
  const review = window.autolabelReview;
  const { element } = review;
  const DRAG_PX = 5; // less is a click
  const MOST_ENLARGED = 8; // when it opens
  const SVG = "http://www.w3.org/2000/svg";
  const COLOURS = { wrong: "#fca5a5", wait: "#facc15", ready: "#d1d5db" };
  const HELP = "click: object · right or Alt+click: not the object · drag: box · wheel: zoom · " +
    "middle drag: move · Z: undo · Enter: accept · Escape: cancel";
  let repair = null; // the one that is open

  const clamp = (value, least, most) => Math.min(Math.max(value, least), most);

  // `signal` takes a question back.
  async function send(act, params, signal) {
    const answer = await review.send(act, params, { signal });
    if (!answer.ok) throw new Error(answer.message);
    return answer;
  }

  function say(text, kind = "ready") {
    repair.status.textContent = text;
    repair.status.style.color = COLOURS[kind];
    repair.page.dataset.status = kind;
  }

  // The part of the picture that is seen, as x, y, width and height: the label with as much around it
  // as it has itself, and never more than 8 times enlarged; at the picture's border, the picture's edge
  // is the page's.
  function aroundLabel({ box_xyxy_px: [x0, y0, x1, y1], size_hw: [height, width] }, canvas) {
    const [across, down] = [canvas.clientWidth, canvas.clientHeight];
    const whole = Math.min(across / width, down / height);
    const scale = clamp(Math.min(across / (3 * (x1 - x0) || 1), down / (3 * (y1 - y0) || 1)), whole, MOST_ENLARGED);
    const begin = (middle, seen, all) => (seen > all ? (all - seen) / 2 : clamp(middle - seen / 2, 0, all - seen));
    const [w, h] = [across / scale, down / scale];
    return [begin((x0 + x1) / 2, w, width), begin((y0 + y1) / 2, h, height), w, h];
  }

  function shape(kind, attributes, parent) {
    const made = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    parent.append(made);
    return made;
  }

  // Pixels of the picture for one of the page.
  function pixel() {
    return 1 / repair.canvas.getScreenCTM().a;
  }

  function toPicture(event) {
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(repair.canvas.getScreenCTM().inverse());
    return [x, y];
  }

  function paint() {
    const { canvas, about, drawing, points } = repair, box = repair.dragged ?? repair.box;
    canvas.setAttribute("viewBox", repair.view.join(" "));
    const size = pixel();
    canvas.style.imageRendering = size < 1 / 3 ? "pixelated" : "auto";
    drawing.replaceChildren();
    const mask = (repair.made ?? about).mask;
    if (mask.width) shape("image", mask, drawing);
    const line = { fill: "none", stroke: "#ffffff", "stroke-width": 2 * size };
    if (box) {
      const [x, y, right, bottom] = box, dashes = `${6 * size} ${4 * size}`;
      shape("rect", { ...line, x, y, width: right - x, height: bottom - y, "stroke-dasharray": dashes }, drawing);
    }
    for (const [cx, cy, yes] of points) {
      shape("circle", { ...line, cx, cy, r: 6 * size, fill: yes ? "#22c55e" : "#ef4444" }, drawing);
    }
  }

  function clicked() {
    const { about, points, box } = repair;
    const { sample_id, label_id, version } = about;
    return { sample_id, label_id, version, points, box_xyxy_px: box };
  }

  function isEmpty() {
    return !repair.points.length && !repair.box;
  }

  // Asks for the mask of all clicks; a later question takes the earlier one back.
  async function ask() {
    const here = repair, started = performance.now();
    here.question?.abort();
    here.made = null;
    const question = here.question = new AbortController();
    const isStale = () => repair !== here || here.question !== question;
    paint();
    say(here.page.dataset.model ? "…" : "loading the model …", "wait");
    try {
      if (!isEmpty()) {
        const made = await send("repair_click", clicked(), question.signal);
        await decoded(made.mask.href);
        if (isStale()) return;
        here.made = made;
        paint();
      }
      say(here.made ? `${here.made.area_px} px, expected IoU ${here.made.predicted_iou}` : "this is the mask as it is");
      requestAnimationFrame(() => {
        here.page.dataset.milliseconds = Math.round(performance.now() - started);
        here.page.dataset.drawn = ++here.drawn;
      });
    } catch (error) {
      if (!isStale()) say(error.message, "wrong");
    }
  }

  function decoded(href) {
    const image = new Image();
    image.src = href;
    return image.decode();
  }

  function undo() {
    const before = repair.history.pop();
    if (!before) return;
    [repair.points, repair.box] = before;
    ask();
  }

  async function accept() {
    const here = repair;
    if (here.accepting || isEmpty()) return;
    here.accepting = true;
    say("saving …", "wait");
    const done = await review.act("repair_accept", clicked());
    here.accepting = false;
    if (repair !== here) return;
    if (done?.ok) close();
    else say(done?.message ?? "the App gives no answer: try again", "wrong");
  }

  function close() {
    repair.question?.abort();
    repair.page.remove();
    repair = null;
  }

  function press(event) {
    event.preventDefault();
    const here = repair, view = here.view, [height, width] = here.about.size_hw;
    const place = (now) => toPicture(now).map((one, row) => clamp(one, 0, [width, height][row]));
    const start = place(event), size = pixel(), isLeft = event.button === 0;
    const until = new AbortController();
    const move = (now) => {
      const [dx, dy] = [now.clientX - event.clientX, now.clientY - event.clientY];
      if (event.button === 1) here.view = [view[0] - dx * size, view[1] - dy * size, view[2], view[3]];
      else if (isLeft && Math.hypot(dx, dy) > DRAG_PX) {
        const [x, y] = place(now);
        here.dragged = [Math.min(start[0], x), Math.min(start[1], y), Math.max(start[0], x), Math.max(start[1], y)];
      }
      if (repair === here) paint();
    };
    const end = () => {
      until.abort();
      if (repair !== here || event.button === 1) return;
      here.history.push([here.points, here.box]);
      if (here.dragged) here.box = here.dragged;
      else here.points = [...here.points, [...start, isLeft && !event.altKey]];
      here.dragged = null;
      ask();
    };
    window.addEventListener("mousemove", move, { capture: true, signal: until.signal });
    window.addEventListener("mouseup", end, { capture: true, signal: until.signal });
  }

  function zoom(event) {
    event.preventDefault();
    const [x, y, width, height] = repair.view, at = toPicture(event);
    const times = clamp(width * Math.exp(event.deltaY / 500), 20, 10 * repair.about.size_hw[1]) / width;
    repair.view = [at[0] - (at[0] - x) * times, at[1] - (at[1] - y) * times, width * times, height * times];
    paint();
  }

  async function show(about) {
    const page = element("div", "position:fixed;inset:0;z-index:99999;background:#0b0e14;display:flex;" +
      "flex-direction:column;font:15px sans-serif;color:#f3f4f6", document.body);
    page.dataset.cy = "repair";
    const bar = element("div", "display:flex;gap:24px;padding:10px 16px;background:#1f2430", page);
    element("b", "white-space:nowrap", bar, `Repair the mask: ${about.label}`);
    const status = element("span", "flex:1", bar);
    const canvas = shape("svg", { style: "flex:1;min-height:0;width:100%;cursor:crosshair" }, page);
    element("div", "padding:8px 16px;background:#1f2430;color:#9ca3af;font-size:13px", page, HELP);
    const [height, width] = about.size_hw, href = `/media?filepath=${encodeURIComponent(about.filepath)}`;
    shape("image", { href, width, height }, canvas);
    const here = repair = { about, page, status, canvas, drawing: shape("g", {}, canvas), points: [], box: null,
      history: [], drawn: 0, view: aroundLabel(about, canvas) };
    paint();
    say("loading the model …", "wait");
    canvas.addEventListener("mousedown", press);
    canvas.addEventListener("wheel", zoom, { passive: false });
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    const seen = decoded(href).catch(() => { throw new Error("the picture cannot be shown: it is gone or was changed"); });
    try {
      const { sample_id, label_id } = about;
      const [{ model }] = await Promise.all([send("repair_warm", { sample_id, label_id }), seen]);
      page.dataset.model = model;
      if (repair === here && !here.question) say(`${model}: click on what is missing or too much, or drag a box`);
    } catch (error) {
      if (repair === here) say(error.message, "wrong");
    }
  }

  async function start() {
    if (repair || !(await review.reachable())) return;
    const about = await review.act("repair_open", {});
    if (about?.ok && !repair) show(about); // else a notification has said why not
  }

  // While it is open the keyboard is its own; this listener is there before those of the other keys.
  window.addEventListener("keydown", (event) => {
    if (!repair) return;
    if (event.key === "Enter") accept();
    else if (event.key === "Escape") close();
    else if (event.key === "z" || event.key === "Z") undo();
    else if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);
  window.addEventListener("resize", () => repair && paint());

  Object.assign(review, { repair: start });
})();
