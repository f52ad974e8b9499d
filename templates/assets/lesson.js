// Which lessons are finished is remembered in this browser and nowhere else; a teacher opens all answers, to print them,
// by a button or the address `?answers`. Without scripts, or where nothing may be stored, the buttons would be dead.
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
    // How many of a group are done is seen where it is folded.
    for (const group of all(".book > details.group")) {
      const links = all("a[data-lesson]", group);
      const count = links.filter(({ dataset }) => done.has(dataset.lesson)).length;
      one(".progress", group)?.remove();
      if (count) one("summary", group).append(make("span", "progress", [`${count}/${links.length}`]));
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

  // Paper shows what is open.
  const answers = lesson ? all(".answer", lesson) : [];
  if (answers[0]) {
    const every = button("every", [], () => turn(!answers[0].open));
    const turn = (open) => {
      for (const answer of answers) answer.open = open;
      every.textContent = open ? lesson.dataset.fold : lesson.dataset.open;
    };
    turn(location.search === "?answers");
    lesson.append(every);
  }
}
