// Keyboard shortcuts for the review operators. FiftyOne's own shortcuts are single letters, so
// these need Shift; none of them acts while somebody types into a field.
(function () {
  const shortcuts = {
    A: "accept",
    R: "reject",
    F: "fix_class",
    M: "merge",
    D: "delete",
    L: "send_to_relabel",
    E: "sequence_done",
  };
  const asks = new Set(["fix_class", "send_to_relabel"]);

  function typing(target) {
    return target && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
  }

  window.addEventListener("keydown", function (event) {
    const operator = shortcuts[event.key];
    if (!operator || !event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing(event.target) || !window.__foo__) return;
    event.preventDefault();
    event.stopPropagation();
    const prefix = "sam2-autolabel/";
    if (asks.has(operator)) window.__foo__.executeOperator(prefix + "ask", { operator });
    else window.__foo__.executeOperator(prefix + operator, {});
  }, true);
})();
