// Loads the parts of the review plugin, in order. Each is a plain script: FiftyOne's App offers
// React, recoil and its own packages as globals, so nothing has to be built.
(function () {
  // Puts an element with a style and a text at the end of another one; returns it.
  function element(tag, style, parent, text = "") {
    const made = document.createElement(tag);
    made.style.cssText = style;
    made.textContent = text;
    parent.append(made);
    return made;
  }

  window.autolabelReview = { element };
  // Advertisements: one over the grid, and the button that it points to.
  localStorage.setItem("fiftyone-enterprise-tooltip-seen", "true");
  element("style", "", document.head, 'a[href^="https://voxel51.com/why-upgrade"] { display: none }');
  const here = document.currentScript.src;
  for (const part of [
    "marks.js", "open_frame.js", "redraw.js", "repair.js", "dialogs.js", "decide.js",
    "keys.js", "sidebar.js",
  ]) {
    const script = document.createElement("script");
    const address = new URL(part, here);
    address.search = `?${Date.now()}`; // never an older version from the browser's cache
    script.src = address.href;
    script.async = false; // in order
    document.head.append(script);
  }
})();
