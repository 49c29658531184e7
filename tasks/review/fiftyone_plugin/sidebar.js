// The sidebar as the dataset has it, in every view. FiftyOne drops fields that a view does not have, as
// one of patches, from their groups, and puts them in no order under PRIMITIVES when they come back.
(function () {
  const review = window.autolabelReview;
  const foo = window.__foo__, fos = window.__fos__;
  const SOON_MS = [300, 1500]; // a view with nothing in it draws nothing that would tell
  let arranged = ""; // the view that it was done for: what somebody moves in it stays

  // Groups as the dataset has them, of fields that are there; other fields keep the groups they are in.
  function inOrder(groups, current, isThere) {
    const placed = new Set(groups.flatMap(({ paths }) => paths));
    const rest = current.map((group) => ({ ...group, paths: group.paths.filter((one) => !placed.has(one)) }));
    const named = new Map(rest.map((group) => [group.name, group]));
    const ours = groups.map(({ name, paths, expanded }) => {
      const old = named.get(name);
      return { name, expanded: old?.expanded ?? expanded, paths: [...paths.filter(isThere), ...(old?.paths ?? [])] };
    });
    const known = new Set(groups.map(({ name }) => name));
    return [...ours, ...rest.filter(({ name, paths }) => paths.length && !known.has(name))];
  }

  const order = ({ name, paths }) => [name, paths];

  class ArrangeSidebar extends foo.Operator {
    get config() {
      return new foo.OperatorConfig({ name: "arrange_sidebar", label: "Arrange the sidebar", unlisted: true });
    }
    async execute({ state }) {
      const { snapshot } = state;
      const name = await snapshot.getPromise(fos.datasetName);
      const view = `${name} ${JSON.stringify(await snapshot.getPromise(fos.view))}`;
      if (!name || view === arranged) return;
      const groups = (await review.ask("sidebar"))?.groups;
      if (!groups?.length) return;
      arranged = view;
      const fields = await Promise.all(
        groups.flatMap(({ paths }) => paths).map(async (path) => [path, await snapshot.getPromise(fos.field(path))]),
      );
      const there = new Set(fields.filter(([, field]) => field).map(([path]) => path));
      const current = await snapshot.getPromise(fos.sidebarGroupsDefinition(false));
      const wanted = inOrder(groups, current, (path) => there.has(path));
      const same = (one, other) => JSON.stringify(one.map(order)) === JSON.stringify(other.map(order));
      if (!same(current, wanted)) state.set(fos.sidebarGroupsDefinition(false), wanted);
    }
  }
  foo.registerOperator(ArrangeSidebar, "sam2-autolabel");

  let coming = [];
  function soon() {
    coming.forEach(clearTimeout);
    coming = SOON_MS.map((ms) => setTimeout(() => foo.executeOperator("sam2-autolabel/arrange_sidebar", {}), ms));
  }
  for (const kind of ["popstate", "fo:url-changed"]) window.addEventListener(kind, soon);
  window.addEventListener("canvas-loaded", (event) => {
    if (!event.target.closest?.("[data-cy=modal]")) soon();
  });
})();
