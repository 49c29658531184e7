// Loads the parts of the review plugin. Each is a plain script: FiftyOne's App offers React, recoil and
// its own packages as globals, so nothing has to be built.
(function () {
  // Puts an element with a style and a text at the end of another one; returns it.
  function element(tag, style, parent, text = "") {
    const made = document.createElement(tag);
    made.style.cssText = style;
    made.textContent = text;
    parent.append(made);
    return made;
  }

  // Makes what the page does an operator, as only those can ask recoil; nobody finds them in FiftyOne's list.
  function operator(name, methods) {
    class Ours extends window.__foo__.Operator {
      get config() {
        return new window.__foo__.OperatorConfig({ name, label: name.replaceAll("_", " "), unlisted: true });
      }
    }
    Object.assign(Ours.prototype, methods);
    window.__foo__.registerOperator(Ours, "sam2-autolabel");
  }

  window.autolabelReview = { element, operator };
  // Advertisements: one over the grid, and the button that it points to.
  localStorage.setItem("fiftyone-enterprise-tooltip-seen", "true");
  element("style", "", document.head, 'a[href^="https://voxel51.com/why-upgrade"] { display: none }');
  // FiftyOne shows tooltips above buttons, those at the top of an open frame off the page.
  element("style", "", document.head, '[class^="_tooltip_"][style*="top: -"] { margin-top: 72px }');
  // FiftyOne 1.22 breaks when this entry of its list of views is chosen: the × beside the list leaves a view.
  element("style", "", document.head, "[data-cy=saved-views-unsaved-view-selection-option] { display: none !important }");
  // FiftyOne counts the labels beside an open frame by the view, which has none of those decided since.
  element("style", "", document.head, "[data-cy=modal] [data-cy^=entry-count] { display: none }");
  // FiftyOne's arrows lie over the picture, at half its height: beside the tab above it they hide no label.
  element("style", "", document.head, ":has(> [data-cy^=nav-]) { top: 1px !important; height: 23px !important; margin-left: 112px }");
  const PARTS = [
    "/autolabel/click_page.js", "dialogs.js", "fiftyone_private.js", "marks.js", "opinions.js", "strip.js", "open_frame.js",
    "redraw.js", "repair.js", "keys.js",
  ];
  for (const part of PARTS) {
    // FiftyOne shows its page when this script has run: with a part that came later, keys that
    // somebody presses at once would be lost.
    const asked = new XMLHttpRequest();
    asked.open("GET", new URL(`${part}?${Date.now()}`, document.currentScript.src), false);
    asked.send();
    element("script", "", document.head, `${asked.responseText}\n//# sourceURL=${part}`);
  }
})();
