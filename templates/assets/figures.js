// Shows a drawing as large as the window. The control exists only here: without scripts it would be dead.
"use strict";

for (const figure of all("figure.drawing")) {
  const sheet = one(".sheet", figure);
  const control = (label, act) => Object.assign(button("enlarge", [], act), { title: label, ariaLabel: label });
  const enlarge = () => {
    const copy = one("svg", sheet).cloneNode(true);
    for (const part of all("[id]", copy)) part.removeAttribute("id");
    const dialog = make("dialog", "sheet", [control(figure.dataset.close, () => dialog.close()), copy]);
    dialog.setAttribute("aria-labelledby", `${figure.id}-title`);
    copy.onclick = () => dialog.close();
    dialog.onclose = () => dialog.remove();
    document.body.append(dialog);
    // What has the focus now gets it back.
    opener.focus();
    dialog.showModal();
  };
  const opener = control(figure.dataset.enlarge, enlarge);
  for (const drawing of all("svg", sheet)) drawing.onclick = enlarge;
  sheet.onkeydown = (event) => {
    if (event.key !== "Enter") return;
    // Or the same key would press the button that has the focus by then.
    event.preventDefault();
    enlarge();
  };
  sheet.after(opener);
}
