// What the page does beyond htmx: times that go on, a word where the stream breaks off, plots.
"use strict";
(() => {
  // -- times that go on ---------------------------------------------------------------------
  const words = (seconds) => {
    if (seconds < 60) return `${Math.floor(seconds)} s`;
    const minutes = Math.floor(seconds / 60);
    const two = (number) => String(number).padStart(2, "0");
    if (minutes < 60) return `${minutes}:${two(Math.floor(seconds % 60))}`;
    return `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(Math.floor(seconds % 60))}`;
  };
  // A browser's clock may be wrong; the page's own is told with each message.
  let ahead = 0;
  const tick = () => {
    const now = Date.now() / 1000 - ahead;
    for (const each of document.querySelectorAll("time[data-since]")) {
      const text = words(Math.max(0, now - Number(each.dataset.since)));
      if (each.textContent !== text) each.textContent = text;
    }
  };
  document.addEventListener("htmx:after:swap", tick);
  document.addEventListener("DOMContentLoaded", tick);
  setInterval(tick, 1000);

  // -- a word where something is wrong --------------------------------------------------------
  const say = (text) => {
    const problem = document.getElementById("problem");
    if (!problem || problem.textContent === text) return;
    problem.textContent = text;
    problem.hidden = !text;
  };
  const data = (event) => JSON.parse(event.detail.data);
  document.addEventListener("clock", (event) => {
    ahead = Date.now() / 1000 - data(event);
    tick();
  });
  document.addEventListener("problem", (event) => say(data(event)));
  document.addEventListener("htmx:sse:error", (event) => {
    if (event.detail.status === 403) location.reload(); // to the hub's login, or to a no
    else say("The page's server does not answer; it is asked again. Cells run on.");
  });
})();
