// Runs before the first paint, so that a chosen theme never flashes the other one, and before the stylesheets name
// the fonts, so that fewer words are shown in another face first. The theme's switch itself is in sidelit.js.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("sidelit-theme");
  } catch {
    // Storage may be forbidden; then the system's wish stands.
  }
  // A page that was opened from a disk may use its fonts, but not ask for them ahead.
  if (location.protocol !== "file:") {
    for (const href of document.currentScript.dataset.faces.split(" ")) {
      document.head.append(Object.assign(document.createElement("link"), { rel: "preload", as: "font", type: "font/woff2", crossOrigin: "", href }));
    }
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
