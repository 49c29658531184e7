// A picture over the whole page on which clicks and a dragged box make a mask: in the App to repair a
// label's mask, and on the page of `serve --demo`. The whole picture or what is around a box is shown as
// large as the page has room.
(function () {
  const DRAG_PX = 5; // less is a click
  const MOST_ENLARGED = 8; // when it opens
  const SVG = "http://www.w3.org/2000/svg";
  const COLOURS = { wrong: "#fca5a5", wait: "#facc15", ready: "#d1d5db" };
  const HELP = "click: object · right or Alt+click: not the object · drag: box · wheel: zoom · " +
    "middle drag: move · Z: undo";
  const clamp = (value, least, most) => Math.min(Math.max(value, least), most);
  let open = null; // the one that is open

  function element(tag, style, parent, text = "") {
    const made = document.createElement(tag);
    made.style.cssText = style;
    made.textContent = text;
    parent.append(made);
    return made;
  }

  function shape(kind, attributes, parent) {
    const made = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    parent.append(made);
    return made;
  }

  function say(text, kind = "ready") {
    open.status.textContent = open.status.title = text;
    open.status.style.color = COLOURS[kind];
    open.spinner.style.visibility = kind === "wait" ? "visible" : "hidden";
    open.page.dataset.status = kind;
  }

  // The part of the picture that is seen, as x, y, width and height: the box with as much around it as it
  // has itself, and never more than 8 times enlarged; at the picture's border, the picture's edge is the
  // page's.
  function around([x0, y0, x1, y1], [height, width], canvas) {
    const [across, down] = [canvas.clientWidth, canvas.clientHeight];
    const whole = Math.min(across / width, down / height);
    const scale = clamp(Math.min(across / (3 * (x1 - x0) || 1), down / (3 * (y1 - y0) || 1)), whole, Math.max(whole, MOST_ENLARGED));
    const begin = (middle, seen, all) => (seen > all ? (all - seen) / 2 : clamp(middle - seen / 2, 0, all - seen));
    const [w, h] = [across / scale, down / scale];
    return [begin((x0 + x1) / 2, w, width), begin((y0 + y1) / 2, h, height), w, h];
  }

  // Pixels of the picture for one of the page.
  function pixel() {
    return 1 / open.canvas.getScreenCTM().a;
  }

  function toPicture(event) {
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(open.canvas.getScreenCTM().inverse());
    return [x, y];
  }

  function paint() {
    const { canvas, drawing, points, made, about } = open, box = open.dragged ?? open.box ?? made?.box_xyxy_px;
    canvas.setAttribute("viewBox", open.view.join(" "));
    const size = pixel();
    canvas.style.imageRendering = size < 1 / 3 ? "pixelated" : "auto";
    drawing.replaceChildren();
    const mask = made?.mask ?? about.mask;
    if (mask?.width) shape("image", mask, drawing);
    const line = { fill: "none", stroke: "#ffffff", "stroke-width": 2 * size };
    if (box) {
      const [x, y, right, bottom] = box, dashes = `${6 * size} ${4 * size}`;
      shape("rect", { ...line, x, y, width: right - x, height: bottom - y, "stroke-dasharray": dashes }, drawing);
    }
    for (const [cx, cy, yes] of points) {
      shape("circle", { ...line, cx, cy, r: 6 * size, fill: yes ? "#22c55e" : "#ef4444" }, drawing);
    }
  }

  const clicked = () => ({ points: open.points, box_xyxy_px: open.box });
  const isEmpty = () => !open.points.length && !open.box;

  function decoded(href) {
    const image = new Image();
    image.src = href;
    return image.decode().then(() => image);
  }

  // Asks for the mask of all clicks; a later question takes the earlier one back.
  async function ask() {
    const here = open, started = performance.now();
    here.question?.abort();
    const question = here.question = new AbortController();
    const isStale = () => open !== here || here.question !== question;
    if (isEmpty()) here.made = null;
    paint();
    say("computing …", "wait");
    try {
      if (!isEmpty()) {
        const made = await here.about.ask(clicked(), question.signal);
        if (made.mask.width) await decoded(made.mask.href);
        if (isStale()) return;
        here.made = made;
        paint();
      }
      const { area_px, predicted_iou } = here.made ?? {};
      say(here.made ? `${area_px} px; the model expects it to overlap the object by ${Math.round(100 * predicted_iou)}%` : here.about.hint);
      requestAnimationFrame(() => {
        here.page.dataset.milliseconds = Math.round(performance.now() - started);
        here.page.dataset.drawn = ++here.drawn;
      });
    } catch (error) {
      if (isStale()) return;
      here.made = null;
      paint();
      say(error.message, "wrong");
    }
  }

  function undo() {
    const before = open.history.pop();
    if (!before) return;
    [open.points, open.box] = before;
    ask();
  }

  async function accept() {
    const here = open;
    if (!here.about.accept || here.accepting || isEmpty()) return;
    here.accepting = true;
    say("saving …", "wait");
    const problem = await here.about.accept(clicked());
    here.accepting = false;
    if (open !== here) return;
    if (problem) say(problem, "wrong");
    else close();
  }

  // Closes the page, or begins anew on one that stays.
  function close() {
    open.question?.abort();
    if (open.about.stays) {
      Object.assign(open, { points: [], box: null, history: [], made: null, view: open.first() });
      ask();
    } else {
      open.page.remove();
      open = null;
    }
  }

  function press(event) {
    event.preventDefault();
    const here = open, view = here.view, [height, width] = here.about.size_hw;
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
      if (open === here) paint();
    };
    const end = () => {
      until.abort();
      if (open !== here || event.button === 1) return;
      here.history.push([here.points, here.box]);
      if (here.dragged) here.box = here.dragged;
      else here.points = [...here.points, [...start, isLeft && !event.altKey && !event.shiftKey]];
      here.dragged = null;
      ask();
    };
    window.addEventListener("mousemove", move, { capture: true, signal: until.signal });
    window.addEventListener("mouseup", end, { capture: true, signal: until.signal });
  }

  function zoom(event) {
    event.preventDefault();
    const [x, y, width, height] = open.view, at = toPicture(event);
    const times = clamp(width * Math.exp(event.deltaY / 500), 20, 10 * open.about.size_hw[1]) / width;
    open.view = [at[0] - (at[0] - x) * times, at[1] - (at[1] - y) * times, width * times, height * times];
    paint();
  }

  // Opens the page.
  //
  // about: `title`; `picture`, its address; `size_hw` in pixels; `box_xyxy_px` to look at, by default all;
  //   `mask` at first (href, x, y, width, height); `hint`, said while nothing is clicked; `stays`: Escape
  //   begins anew; `ready(picture)`, a promise of the model's name;
  //   `ask({points, box_xyxy_px}, signal)`, a promise of `mask`, `area_px`, `predicted_iou` and perhaps
  //   the `box_xyxy_px` that was taken; `accept({points, box_xyxy_px})`, a promise of what is wrong.
  async function show(about) {
    if (open) return;
    const page = element("div", "position:fixed;inset:0;z-index:99999;background:#0b0e14;display:flex;" +
      "flex-direction:column;font:15px sans-serif;color:#f3f4f6", document.body);
    page.dataset.cy = "repair";
    const bar = element("div", "display:flex;gap:12px;padding:10px 16px;background:#1f2430;align-items:center", page);
    element("b", "white-space:nowrap", bar, about.title);
    const spinner = element("span", "flex:none;width:14px;height:14px;border:2px solid #facc15;" +
      "border-top-color:transparent;border-radius:50%", bar);
    spinner.dataset.cy = "spinner";
    spinner.animate([{ transform: "none" }, { transform: "rotate(360deg)" }], { duration: 800, iterations: Infinity });
    const status = element("span", "flex:1;overflow:hidden;text-overflow:ellipsis;white-space:nowrap", bar);
    status.setAttribute("role", "status");
    const canvas = shape("svg", { style: "flex:1;min-height:0;width:100%;cursor:crosshair" }, page);
    const ends = about.stays ? "Escape: begin anew" : "Enter: accept · Escape: cancel";
    element("div", "padding:8px 16px;background:#1f2430;color:#9ca3af;font-size:13px", page, `${HELP} · ${ends}`);
    const [height, width] = about.size_hw;
    shape("image", { href: about.picture, width, height }, canvas);
    const first = () => around(about.box_xyxy_px ?? [0, 0, width, height], about.size_hw, canvas);
    const here = open = { about, page, status, spinner, canvas, first, drawing: shape("g", {}, canvas), points: [],
      box: null, history: [], drawn: 0, view: first() };
    paint();
    say("loading the model …", "wait");
    canvas.addEventListener("mousedown", press);
    canvas.addEventListener("wheel", zoom, { passive: false });
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    const seen = decoded(about.picture).catch(() => { throw new Error("the picture cannot be shown: it is gone or was changed"); });
    try {
      const [model] = await Promise.all([about.ready(), seen]);
      page.dataset.model = model;
      if (open === here && !here.question) say(`${model}: ${about.hint}`);
    } catch (error) {
      if (open === here) say(error.message, "wrong");
    }
  }

  // While it is open the keyboard is its own; this listener is there before those of the page's other keys.
  window.addEventListener("keydown", (event) => {
    if (!open) return;
    if (event.key === "Enter") accept();
    else if (event.key === "Escape") close();
    else if (event.key === "z" || event.key === "Z") undo();
    else if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);
  window.addEventListener("resize", () => open && paint());

  window.autolabelClickPage = { show, isOpen: () => Boolean(open) };
})();
