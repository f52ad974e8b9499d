// Turns the strip of a recorded run into one scene at a time, with the memory beside it. The strip stays in the page,
// for paper; all controls are made here, since without scripts they would be dead.
"use strict";

for (const root of document.querySelectorAll(".stepper")) {
  const words = root.dataset;
  const all = (selector, within = root) => [...within.querySelectorAll(selector)];
  const make = (tag, more) => Object.assign(document.createElement(tag), more);
  const size = (bytes) => `${Number((bytes / 1000).toPrecision(3))} kB`;
  const events = all(".event");
  const scenes = all(".scene");
  const views = new Map(all(".excerpt").map((view) => [view.dataset.excerpt, view]));
  let at = 0;

  // ---- What is added: the stage, the lines, the buttons.
  const stage = make("div", { className: "stage" });
  const memory = root.querySelector(".memory").cloneNode(true);
  const track = make("div", { className: "track" });
  const range = make("input", { type: "range", min: 1, max: events.length, value: 1, ariaLabel: words.moment });
  const cursor = make("div", { className: "cursor" });
  track.append(root.querySelector(".curves").cloneNode(true), range, cursor);
  stage.append(memory, track);
  const pane = make("div", { className: "pane" });
  const walk = make("div", { className: "walk" });
  const count = make("output");
  const button = (text, act) => make("button", { type: "button", textContent: text, onclick: act });
  const back = button(words.back, () => go(at - 1));
  const forward = button(words.forward, () => go(at + 1));
  walk.append(back, count, forward);
  const legend = root.querySelector(".legend");
  legend.before(pane, stage, walk);
  legend.after(make("p", { className: "keys", textContent: words.keys }));
  const amounts = all(".kinds li").map((kind) => kind.appendChild(make("b")));

  // ---- The same run with a line removed.
  const twins = all(".twin");
  const choices = ["", ...twins.map((twin) => twin.dataset.twin)];
  const versions = make("div", { className: "versions", role: "group", ariaLabel: words.versions });
  const turn = (name) => {
    root.dataset.version = name;
    for (const one of all("[data-twin]")) one.hidden = one.dataset.twin !== name;
    // What a twin says of an event stands in the place of what is said of it otherwise.
    for (const one of all(".note:not([data-twin])")) {
      one.hidden = Boolean(name) && one.parentElement.querySelector(`.note[data-twin="${name}"]`) !== null;
    }
    [...versions.children].forEach((one, number) => { one.ariaPressed = String(choices[number] === name); });
    show();
  };
  choices.forEach((name, number) => {
    versions.append(button(number ? twins[number - 1].querySelector("b").textContent.replace(/[.。]$/, "") : words.right, () => turn(name)));
  });
  if (twins.length) root.querySelector(".claim").after(versions);

  // ---- One moment.
  const draw = (event) => {
    const { states, stacks, unit, from } = event.dataset;
    const eyes = words.eyes;
    const kinds = stacks.split(" ").map((rank) => rank.split(",").map(Number));
    const totals = kinds.map((rank) => rank.reduce((sum, bytes) => sum + bytes, 0));
    all(".rank", memory).forEach((rank, number) => {
      rank.querySelector(".who b").textContent = size(totals[number]);
      all(".stack i", rank).forEach((bar, kind) => { bar.style.width = `${100 * kinds[number][kind] / words.most}%`; });
      all(".unit", rank).forEach((one, place) => {
        one.className = `unit s${states[place]}`;
        all("i", one).forEach((piece, owner) => {
          const moves = from !== undefined && Number(unit) === place;
          // In a gather the piece of the sender goes to all others; in an exchange each gets its own piece.
          const arrives = moves && (from === "all" ? owner === number : owner === Number(from) && owner !== number);
          const leaves = moves && (from === "all" ? owner !== number : owner === Number(from) && owner === number);
          piece.classList.remove("arrives");
          if (arrives) piece.getBoundingClientRect();
          piece.classList.toggle("arrives", arrives);
          piece.classList.toggle("leaves", leaves);
        });
      });
    });
    amounts.forEach((amount, kind) => {
      amount.textContent = size(Math.max(...kinds.map((rank) => rank[kind])));
    });
    return totals.map(size).filter((_, rank) => !eyes || String(rank) === eyes);
  };
  const show = () => {
    const event = events[at];
    const scene = event.closest(".scene");
    for (const one of [...scenes, ...events]) one.classList.toggle("on", one === scene || one === event);
    for (const one of events) one.toggleAttribute("aria-current", one === event);
    const gone = Boolean(words.version) && (event.dataset.removed ?? "").split(" ").includes(words.version);
    event.classList.toggle("gone", gone);
    const view = views.get(event.dataset.excerpt).cloneNode(true);
    for (const number of all(".num", view)) {
      if (number.textContent !== event.dataset.line) continue;
      number.parentElement.classList.add("now");
      number.parentElement.classList.toggle("gone", gone);
    }
    pane.replaceChildren(...view.children);
    const totals = draw(event);
    range.value = at + 1;
    count.textContent = `${at + 1} / ${events.length}`;
    range.setAttribute("aria-valuetext", `${words.event} ${at + 1} / ${events.length}: ${event.innerText.trim()}. ${totals.join(", ")}. ${scene.querySelector(".sentence").textContent}`);
    const box = track.querySelector("svg");
    cursor.style.left = `${box.getBoundingClientRect().left - track.getBoundingClientRect().left + box.clientWidth * (at + .5) / events.length}px`;
    back.disabled = at === 0;
    forward.disabled = at === events.length - 1;
  };
  const go = (number) => {
    at = Math.max(0, Math.min(events.length - 1, number));
    show();
    history.replaceState(null, "", `#${events[at].id}`);
  };
  const turnScene = (by) => {
    const scene = scenes.findIndex((one) => one.classList.contains("on"));
    const first = events.indexOf(scenes[scene].querySelector(".event"));
    const next = by < 0 && at > first ? scenes[scene] : scenes[scene + by];
    if (next) go(events.indexOf(next.querySelector(".event")));
  };

  // ---- Keys, only while the focus is in here.
  const look = (rank) => {
    if (words.eyes === rank) delete words.eyes;
    else words.eyes = rank;
    show();
  };
  root.addEventListener("keydown", (key) => {
    const onControl = key.target.closest("button, a");
    if (key.ctrlKey || key.altKey || key.metaKey) return;
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key.key];
    if (by) (key.shiftKey ? turnScene : (step) => go(at + step))(by);
    else if (key.key === "Home") go(0);
    else if (key.key === "End") go(events.length - 1);
    else if (key.key === " " && !onControl) go(at + (key.shiftKey ? -1 : 1));
    else if (/^\d$/.test(key.key) && memory.children[key.key]) look(key.key);
    else if (key.key === "Enter" && !onControl) location.href = events[at].querySelector("a").href;
    else return;
    key.preventDefault();
    key.stopPropagation();
  });
  range.addEventListener("input", () => go(range.value - 1));
  events.forEach((event, number) => event.addEventListener("click", (click) => {
    if (!click.target.closest("a")) go(number);
  }));

  // ---- Addresses: `#step-17` is a moment, also in the other languages.
  const arrive = () => {
    const found = events.findIndex((event) => `#${event.id}` === location.hash);
    if (found < 0) return false;
    at = found;
    show();
    return true;
  };
  const keep = (event) => {
    const link = event.target.closest?.(".langs a");
    if (link && events.some((one) => `#${one.id}` === location.hash)) link.hash = location.hash;
  };
  for (const kind of ["pointerdown", "click"]) addEventListener(kind, keep, { capture: true });
  addEventListener("hashchange", () => { if (arrive()) root.scrollIntoView(); });
  addEventListener("resize", show);
  root.classList.add("live");
  root.tabIndex = 0;
  root.role = "group";
  root.ariaLabel = root.querySelector(".claim").textContent;
  turn("");
  // The browser scrolls to the event by itself until all is loaded; the whole of the stepper is to be seen.
  if (arrive()) addEventListener("load", () => root.scrollIntoView());
}
