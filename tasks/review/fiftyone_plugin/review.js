// Loads the parts of the review plugin, in order. Each is a plain script: FiftyOne's App offers
// React, recoil and its own packages as globals, so nothing has to be built.
(function () {
  window.autolabelReview = {};
  localStorage.setItem("fiftyone-enterprise-tooltip-seen", "true"); // an advertisement over the grid
  const here = document.currentScript.src;
  for (const part of ["open_frame.js", "redraw.js", "repair.js", "dialogs.js", "keys.js"]) {
    const script = document.createElement("script");
    const address = new URL(part, here);
    address.search = `?${Date.now()}`; // never an older version from the browser's cache
    script.src = address.href;
    script.async = false; // in order
    document.head.append(script);
  }
})();
