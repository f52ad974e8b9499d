// Waits for the next build and loads the page again; the browser keeps the place.
"use strict";
(() => {
  const state = document.currentScript.dataset.state;
  const show = (text) => {
    let box = document.getElementById("sidelit-error");
    if (!text) { if (box) box.remove(); return; }
    if (!box) {
      box = document.createElement("pre");
      box.id = "sidelit-error";
      box.setAttribute("role", "alert");
      Object.assign(box.style, {
        position: "fixed", inset: "auto 0 0 0", zIndex: "99", margin: "0", padding: "1rem 1.5rem",
        background: "#7f1d1d", color: "#fff", font: "14px/1.5 monospace", whiteSpace: "pre-wrap",
      });
      document.body.append(box);
    }
    box.textContent = text;
  };
  const key = "sidelit-scroll";
  const kept = sessionStorage.getItem(key);
  sessionStorage.removeItem(key);
  if (kept && !location.hash) addEventListener("load", () => scrollTo(0, Number(kept)));
  const wait = async (seen) => {
    try {
      const answer = await (await fetch("/-/wait?" + seen)).json();
      if (answer.site !== state) {
        sessionStorage.setItem(key, String(scrollY));
        location.reload();
        return;
      }
      show(answer.error);
      seen = answer.turn;
    } catch {
      await new Promise((done) => setTimeout(done, 1000));
    }
    wait(seen);
  };
  wait("");
})();
