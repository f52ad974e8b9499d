// Shows a drawing as large as the window. The control exists only here: without scripts it would be dead.
"use strict";

for (const figure of document.querySelectorAll("figure.drawing")) {
  const sheet = figure.querySelector(".sheet");
  const button = (label, act) => {
    const made = Object.assign(document.createElement("button"), { type: "button", className: "enlarge", title: label, onclick: act });
    made.setAttribute("aria-label", label);
    return made;
  };
  const enlarge = () => {
    const dialog = Object.assign(document.createElement("dialog"), { className: "sheet" });
    dialog.setAttribute("aria-labelledby", `${figure.id}-title`);
    const copy = sheet.querySelector("svg").cloneNode(true);
    for (const named of copy.querySelectorAll("[id]")) named.removeAttribute("id");
    dialog.append(copy, button(figure.dataset.close, () => dialog.close()));
    copy.onclick = () => dialog.close();
    dialog.onclose = () => dialog.remove();
    document.body.append(dialog);
    // What has the focus now gets it back.
    control.focus();
    dialog.showModal();
  };
  const control = button(figure.dataset.enlarge, enlarge);
  for (const drawing of sheet.querySelectorAll("svg")) drawing.onclick = enlarge;
  sheet.onkeydown = (event) => {
    if (event.key !== "Enter") return;
    // Or the same key would press the button that has the focus by then.
    event.preventDefault();
    enlarge();
  };
  sheet.after(control);
}
