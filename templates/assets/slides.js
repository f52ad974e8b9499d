// Keys of a deck: they leap from slide to slide. Who has no script scrolls.
"use strict";

{
  const slides = all(".deck :is(.head, .text)");
  const goTo = (slide) => slide?.scrollIntoView({ behavior: "instant" });
  const here = () => slides.findLastIndex((slide) => slide.getBoundingClientRect().top < innerHeight / 2);
  // A slide that is higher than the screen is scrolled to its end first.
  const more = () => slides[here()].getBoundingClientRect().bottom > innerHeight + 2;
  const less = () => slides[here()].getBoundingClientRect().top < -2;
  const next = () => goTo(slides[here() + 1]);
  const back = () => goTo(slides[Math.max(0, here() - 1)]);
  const acts = {
    ArrowRight: next,
    ArrowLeft: back,
    PageDown: () => more() || next(),
    PageUp: () => less() || back(),
    " ": () => more() || next(),
    f: () => document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen(),
  };
  addEventListener("keydown", (event) => {
    const busy = event.target.closest("a, button, input, summary, [role=slider]");
    if (!acts[event.key] || !keyed(event) || busy || event.defaultPrevented) return;
    if (acts[event.key]() !== true) event.preventDefault();
  });
}
