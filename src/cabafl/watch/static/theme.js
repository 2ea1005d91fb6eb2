// Chooses the colour scheme before the page is drawn, so that it does not flash. A classic script: modules come later.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("cabafl-theme");
  } catch {
    // no storage: the system's scheme
  }
  const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = chosen === "light" || chosen === "dark" ? chosen : system;
})();
