// Runs before the first paint, so that a chosen theme never flashes the other one. The switch itself is in sidelit.js.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("sidelit-theme");
  } catch {
    // Storage may be forbidden; then the system's wish stands.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
