// Which lessons are finished is remembered in this browser and nowhere else. The button is made here: without
// scripts, or where nothing may be stored, it would be dead.
"use strict";

{
  const KEY = "sidelit-lessons";
  const words = document.body.dataset;
  const lesson = one("article[data-lesson]");
  const read = () => new Set(JSON.parse(stored(KEY) ?? "[]"));
  const show = () => {
    const done = read();
    for (const link of all("a[data-lesson]")) {
      one(".finished", link)?.remove();
      if (!done.has(link.dataset.lesson)) continue;
      const mark = make("span", "finished", ["✓"], { role: "img", ariaLabel: words.finished });
      (one("b", link) ?? link).append(mark);
    }
    if (lesson) finish.textContent = done.has(lesson.dataset.lesson) ? words.unfinish : words.finish;
  };
  const finish = button("finish", [], () => {
    const done = read();
    const { lesson: key } = lesson.dataset;
    if (!done.delete(key)) done.add(key);
    stored(KEY, JSON.stringify([...done]));
    show();
  });
  if (words.finish && stored(KEY, stored(KEY) ?? "[]")) {
    lesson?.append(finish);
    addEventListener("storage", show);
    show();
  }
}
