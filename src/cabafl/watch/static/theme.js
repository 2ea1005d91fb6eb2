// Runs before the page is drawn, so that a chosen colour scheme does not flash. A classic script: modules are deferred.
(() => {
  try {
    const chosen = localStorage.getItem("cabafl-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // no storage: the system's scheme
  }
})();
