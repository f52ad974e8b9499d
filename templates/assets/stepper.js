// Turns the strip of a recorded run into one scene at a time, with the memory beside it. The strip stays in the page,
// for paper; all controls are made here, since without scripts they would be dead.
"use strict";

for (const root of all(".stepper")) {
  const words = root.dataset;
  const inside = (selector) => all(selector, root);
  const size = (bytes) => `${+(bytes / 1000).toPrecision(3)} kB`;
  const mark = (element, name, on) => element.classList.toggle(name, Boolean(on));
  const events = inside(".event");
  const scenes = inside(".scene");
  const twins = inside(".twin");
  let at = 0;
  let version = "";

  // ---- What is added: the stage, the lines, the buttons, and a switch between versions of the program.
  const memory = one(".held", root).cloneNode(true);
  const range = make("input", "", [], { type: "range", min: 1, max: events.length, ariaLabel: words.moment });
  const cursor = make("div", "cursor");
  const track = make("div", "track", [one(".curves", root).cloneNode(true), range, cursor]);
  const pane = make("div", "pane");
  const count = make("output", "");
  const [back, forward] = [button("", [words.back], () => go(at - 1)), button("", [words.forward], () => go(at + 1))];
  const amounts = inside(".kinds li").map((kind) => kind.appendChild(make("b", "")));
  const choices = ["", ...twins.map((twin) => twin.dataset.twin)];
  const versions = make("div", "versions", choices.map((name, number) => {
    const label = number ? one("b", twins[number - 1]).textContent.slice(0, -1) : words.right;
    return button("", [label], () => turn(name));
  }), { role: "group", ariaLabel: words.versions });
  if (twins[0]) one(".claim", root).after(versions);
  one(".meanings", root).before(pane, make("div", "stage", [memory, track]), make("div", "walk", [back, count, forward]));
  one(".meanings", root).after(make("p", "keys", [words.keys]));
  const turn = (name) => {
    version = name;
    for (const part of inside("[data-twin]")) part.hidden = part.dataset.twin !== name;
    // What a twin says of an event stands beside what would be right.
    for (const note of inside(".known")) mark(note, "gone", name && one(`[data-twin="${name}"]`, note.parentElement));
    choices.forEach((choice, number) => { versions.children[number].ariaPressed = choice === name; });
    show();
  };

  // ---- One moment.
  const show = () => {
    const event = events[at];
    const { states, stacks, unit, from, line, excerpt, removed = "" } = event.dataset;
    const scene = event.closest(".scene");
    for (const part of [...scenes, ...events]) mark(part, "on", part === scene || part === event);
    const gone = version && removed.split(" ").includes(version);
    mark(event, "gone", gone);
    const list = event.parentElement;
    list.scrollTop = event.offsetTop - list.offsetTop - list.clientHeight / 2;
    const view = one(`[data-excerpt="${excerpt}"].excerpt`, root).cloneNode(true);
    for (const number of all(".num", view)) {
      if (number.textContent !== line) continue;
      mark(number.parentElement, "now", true);
      mark(number.parentElement, "gone", gone);
    }
    pane.replaceChildren(...view.children);

    const kinds = stacks.split(" ").map((rank) => rank.split(",").map(Number));
    const totals = kinds.map((rank) => size(rank.reduce((sum, bytes) => sum + bytes)));
    all(".rank", memory).forEach((rank, number) => {
      one(".who b", rank).textContent = totals[number];
      all(".bytes i", rank).forEach((bar, kind) => { bar.style.width = `${100 * kinds[number][kind] / words.most}%`; });
      all(".unit", rank).forEach((vector, place) => {
        vector.className = `unit s${states[place]}`;
        all("i", vector).forEach((piece, owner) => {
          // A gather: the piece of the sender goes to all others. An exchange: each rank gets its own piece.
          const moves = from && +unit === place;
          const mine = owner === number;
          mark(piece, "arrives", false);
          // So the movement begins anew.
          piece.getBoundingClientRect();
          mark(piece, "arrives", moves && (from === "all" ? mine : owner === +from && !mine));
          mark(piece, "leaves", moves && (from === "all" ? !mine : owner === +from && mine));
        });
      });
    });
    amounts.forEach((amount, kind) => { amount.textContent = size(Math.max(...kinds.map((rank) => rank[kind]))); });

    range.value = at + 1;
    count.textContent = `${at + 1} / ${events.length}`;
    const seen = totals.filter((_, rank) => !words.eyes || +words.eyes === rank);
    const said = [`${words.event} ${count.textContent}: ${event.innerText.trim()}`, seen.join(", "), one(".sentence", scene).textContent];
    range.ariaValueText = said.join(". ");
    const [box, left] = [one("svg", track).getBoundingClientRect(), track.getBoundingClientRect().left];
    cursor.style.left = `${box.left - left + box.width * (at + .5) / events.length}px`;
    back.disabled = !at;
    forward.disabled = at === events.length - 1;
  };
  const go = (number) => {
    at = Math.max(0, Math.min(events.length - 1, number));
    show();
    history.replaceState(null, "", `#${events[at].id}`);
  };
  const firsts = scenes.map((scene) => events.indexOf(one(".event", scene)));
  const goScene = (by) => go((by < 0 ? firsts.findLast((first) => first < at) : firsts.find((first) => first > at)) ?? at);

  // ---- Keys, only while the focus is in here.
  root.onkeydown = (pressed) => {
    const { key, shiftKey, target } = pressed;
    const onControl = target.closest("button, a");
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
    if (pressed.ctrlKey || pressed.altKey || pressed.metaKey) return;
    if (by) shiftKey ? goScene(by) : go(at + by);
    else if (key === "Home") go(0);
    else if (key === "End") go(events.length);
    else if (key === " " && !onControl) go(at + (shiftKey ? -1 : 1));
    else if (key === "Enter" && !onControl) location = one("a", events[at]).href;
    else if (/^\d$/.test(key) && memory.children[key]) {
      if (words.eyes === key) delete words.eyes;
      else words.eyes = key;
      show();
    } else return;
    pressed.preventDefault();
  };
  range.oninput = () => go(range.value - 1);
  // A finger on an event goes there first; on the present one it may follow the link.
  events.forEach((event, number) => {
    event.onclick = (click) => {
      if (number === at || click.ctrlKey || click.metaKey) return;
      click.preventDefault();
      go(number);
    };
  });

  // ---- Addresses: `#step-17` is a moment, also in the other languages.
  const arrive = () => {
    const found = events.findIndex((event) => `#${event.id}` === location.hash);
    if (found >= 0) at = found;
    turn(version);
    return found >= 0;
  };
  for (const kind of ["pointerdown", "click"]) {
    addEventListener(kind, ({ target }) => {
      const link = target.closest?.(".langs a");
      if (link && `#${events[at].id}` === location.hash) link.hash = location.hash;
    }, true);
  }
  addEventListener("hashchange", () => arrive() && root.scrollIntoView());
  addEventListener("resize", show);
  mark(root, "live", true);
  Object.assign(root, { tabIndex: 0, role: "group", ariaLabel: one(".claim", root).textContent });
  // The browser scrolls to the event by itself until all is loaded; the whole of the stepper is to be seen.
  if (arrive()) addEventListener("load", () => root.scrollIntoView());
}
