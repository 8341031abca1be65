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
    say(""); // it answers; what else is wrong comes next
  });
  document.addEventListener("problem", (event) => say(data(event)));
  const broken = (status) => {
    if (status === 403) location.reload(); // to the hub's login, or to a no
    else say("The page's server does not answer; it is asked again. Cells run on.");
  };
  document.addEventListener("htmx:sse:error", (event) => broken(event.detail.status));
  // A stream that broke off is opened again by itself; one that never came about is not.
  document.addEventListener("htmx:finally:request", (event) => {
    const { sourceElement, response } = event.detail.ctx;
    if (sourceElement.id !== "live" || response?.status === 200) return;
    broken(response?.status);
    setTimeout(() => htmx.trigger(sourceElement, "again"), 2000);
  });

  // -- choosing people --------------------------------------------------------------------------
  document.addEventListener("change", (event) => {
    if (event.target.id !== "all") return;
    for (const each of document.querySelectorAll('input[name="scope"][form="bulk"]')) {
      each.checked = event.target.checked;
    }
  });

  // -- plots: hours of device time by day, one colour above the other ----------------------------
  const colour = (index) =>
    getComputedStyle(document.documentElement).getPropertyValue(`--s${index}`).trim();
  const draw = (place) => {
    const { days, names, hours } = JSON.parse(place.dataset.plot);
    place.replaceChildren();
    if (!names.length || typeof uPlot === "undefined") return;
    const tops = []; // of each name's part of the column
    hours.forEach((values, index) =>
      tops.push(values.map((value, day) => value + (index ? tops[index - 1][day] : 0))),
    );
    const style = getComputedStyle(document.documentElement);
    const axis = {
      stroke: style.getPropertyValue("--soft"),
      grid: { stroke: style.getPropertyValue("--line"), width: 1 },
      ticks: { show: false },
    };
    const bars = uPlot.paths.bars({ size: [0.72, 60] });
    const options = {
      width: place.clientWidth, height: 240, legend: { show: false }, cursor: { show: false },
      scales: { x: { time: true, range: [days[0] - 43200, days[days.length - 1] + 43200] },
        y: { range: (plot, low, high) => [0, Math.max(high * 1.05, 0.01)] } },
      axes: [axis, { ...axis, size: 56, values: (plot, ticks) => ticks.map((tick) => `${tick} h`) }],
      series: [{}].concat(tops.map((_, index) => ({ fill: colour(tops.length - 1 - index), width: 0,
        paths: bars, points: { show: false } }))),
    };
    const plot = new uPlot(options, [days, ...tops.slice().reverse()], place);
    new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: 240 })).observe(place);
  };
  const drawAll = () => document.querySelectorAll("[data-plot]").forEach(draw);
  document.addEventListener("DOMContentLoaded", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
})();
