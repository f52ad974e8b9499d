// Sends a reader of an old address on: to the section that the address names, or to the page that took this one's place.
"use strict";

{
  const go = () => {
    const page = one("a.forward");
    // What was never published, such as the number of a line, keeps its name: it may well be there.
    const moved = named(location.hash)?.closest(".moved li");
    const address = moved ? one("a", moved).href : page && page.href + location.hash;
    // The old address leaves no trace in the history, where it would catch whoever goes back.
    if (address) location.replace(address);
  };

  go();
  addEventListener("hashchange", go);
}
