// Gives each axis of a table of answers a range, and shows the answer that is chosen. All answers stand in the page.
"use strict";

for (const root of all(".sliders")) {
  const points = root.dataset.points.split(";");
  const answers = all(".result", root);
  const axes = all(".choice", root).map((axis) => {
    const values = axis.dataset.values.split("|");
    const label = one("span", axis).textContent;
    const range = make("input", "", [], { type: "range", max: values.length - 1, value: axis.dataset.start, ariaLabel: label });
    range.oninput = () => show();
    axis.append(range);
    return { values, range, shown: one("b", axis) };
  });
  const show = () => {
    let at = 0;
    for (const { values, range, shown } of axes) {
      at = at * values.length + +range.value;
      range.ariaValueText = shown.textContent = values[range.value];
    }
    points[at].split("|").forEach((row, number) => {
      const [text, ...widths] = row.split(" ");
      one("b", answers[number]).textContent = text;
      all("i", answers[number]).forEach((bar, part) => { bar.style.width = `${widths[part]}%`; });
    });
  };
  one(".results", root).ariaLive = "polite";
  // A browser may have kept what was chosen before the page was loaded again.
  show();
}
