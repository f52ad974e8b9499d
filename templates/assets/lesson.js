// Which lessons are finished is remembered in this browser and nowhere else. The button is made here: without
// scripts, or where nothing may be stored, it would be dead.
"use strict";

(() => {
  const KEY = "sidelit-lessons";
  const words = document.body.dataset;
  let done;
  const read = () => { done = new Set(JSON.parse(localStorage[KEY] ?? "[]")); };
  const write = () => { localStorage[KEY] = JSON.stringify([...done]); };
  try {
    read();
    write();
  } catch {
    return;
  }

  const lesson = document.querySelector("article[data-lesson]");
  const button = document.createElement("button");
  const show = () => {
    for (const link of document.querySelectorAll("a[data-lesson]")) {
      link.querySelector(".finished")?.remove();
      if (!done.has(link.dataset.lesson)) continue;
      const mark = document.createElement("span");
      mark.className = "finished";
      mark.role = "img";
      mark.ariaLabel = words.finished;
      mark.textContent = "✓";
      (link.querySelector("b") ?? link).append(mark);
    }
    if (lesson) button.textContent = done.has(lesson.dataset.lesson) ? words.unfinish : words.finish;
  };
  if (lesson) {
    button.className = "finish";
    button.addEventListener("click", () => {
      read();
      const { lesson: key } = lesson.dataset;
      if (!done.delete(key)) done.add(key);
      write();
      show();
    });
    lesson.append(button);
  }
  addEventListener("storage", () => { read(); show(); });
  show();
})();
