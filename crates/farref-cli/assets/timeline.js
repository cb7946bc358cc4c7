// Calls of all workers on one line of time.

import { el, empty, panel, svg, table, tag } from "./dom.js";
import { clock, many, took } from "./format.js";

export const title = "Timeline";

const MOST_SPANS = 600;
const MOST_TRACES = 40;
const WIDTH = 1100;
const LEFT = 120;
const ROW = 14;

let chosen = "";

export function draw(data, redraw) {
  const tools = el("div", { class: "tools" },
    el("a", { class: "button", id: "export", href: "trace.json", download: "farref-trace.json" }, "Download as a trace for Chrome and Perfetto"),
    el("span", { class: "note" }, `${many(data.seen, "call")} seen` + (data.missed > 0 ? `, ${many(data.missed, "more")} not fetched in time` : "")));
  if (!data.spans.length) {
    return [panel("Timeline", tools, empty("No call has ended since this page began to look. Calls are recorded while it does: up to 250 a second that are made outside of remote functions, and all that they cause."))];
  }
  const traces = byTrace(data.spans);
  if (!traces.has(chosen)) chosen = "";
  const select = el("select", { id: "trace", "aria-label": "Which calls", change: (event) => { chosen = event.target.value; event.target.blur(); redraw(); } },
    el("option", { value: "", selected: chosen === "" }, "the latest calls"),
    [...traces].slice(0, MOST_TRACES).map(([id, spans]) =>
      el("option", { value: id, selected: id === chosen }, `${spans[0].function}, ${many(spans.length, "call")}, ${took(length(spans))}`)));
  tools.prepend(select);
  const spans = chosen ? traces.get(chosen) : data.spans.slice(-MOST_SPANS);
  return [
    panel("Timeline", tools, lanes(spans.slice(-MOST_SPANS))),
    panel("Longest traces", table([
      { title: "begins with", code: true, of: ([, spans]) => spans[0].function },
      { title: "called by", of: ([, spans]) => spans[0].caller },
      { title: "at", number: true, of: ([, spans]) => clock(spans[0].at) },
      { title: "calls", number: true, of: ([, spans]) => String(spans.length) },
      { title: "workers", number: true, of: ([, spans]) => String(new Set(spans.map((span) => span.worker)).size) },
      { title: "took", number: true, of: ([, spans]) => took(length(spans)) },
      { title: "", of: ([, spans]) => spans.some((span) => span.failed) ? tag("failed", "bad") : tag("good", "good") },
    ], [...traces].slice(0, MOST_TRACES))),
  ];
}

function length(spans) {
  return Math.max(...spans.map((span) => span.at + span.took)) - spans[0].at;
}

// Traces, those that took longest first.
function byTrace(spans) {
  const traces = new Map();
  for (const span of spans) {
    if (!traces.has(span.trace)) traces.set(span.trace, []);
    traces.get(span.trace).push(span);
  }
  return new Map([...traces].sort(([, one], [, other]) => length(other) - length(one)));
}

// A lane for each worker, with as many rows as it has calls at once.
function lanes(spans) {
  const first = Math.min(...spans.map((span) => span.at));
  const last = Math.max(...spans.map((span) => span.at + span.took));
  const x = (at) => LEFT + (WIDTH - LEFT - 10) * (at - first) / Math.max(last - first, 0.001);
  const workers = new Map();
  for (const span of spans) {
    if (!workers.has(span.worker)) workers.set(span.worker, { rank: span.rank, ends: [], placed: [] });
    const lane = workers.get(span.worker);
    let row = lane.ends.findIndex((end) => end <= span.at);
    if (row < 0) row = lane.ends.length;
    lane.ends[row] = span.at + span.took;
    lane.placed.push({ span, row });
  }
  const functions = [...new Set(spans.map((span) => span.function))];
  const places = new Map();
  const drawn = [];
  let top = 22;
  for (const [name, lane] of [...workers].sort(([, one], [, other]) => one.rank - other.rank)) {
    const height = lane.ends.length * ROW + 4;
    drawn.push(svg("rect", { class: "lane", x: LEFT, y: top, width: WIDTH - LEFT, height }),
      svg("text", { class: "name", x: LEFT - 8, y: top + 13, "text-anchor": "end" }, name.length > 17 ? `${name.slice(0, 16)}…` : name));
    for (const { span, row } of lane.placed) {
      const y = top + 2 + row * ROW;
      const width = Math.max(1.5, x(span.at + span.took) - x(span.at));
      places.set(span.span, { left: x(span.at), y: y + ROW / 2 });
      drawn.push(svg("rect", { class: `span c${functions.indexOf(span.function) % 8}${span.failed ? " failed" : ""}`, x: x(span.at).toFixed(1), y, width: width.toFixed(1), height: ROW - 2, "data-function": span.function },
        svg("title", {}, `${span.function} on ${span.worker}, called by ${span.caller}: ${took(span.took)}${span.failed ? ", failed" : ""}`)));
    }
    top += height + 6;
  }
  const arrows = spans.map((span) => [places.get(span.parent), places.get(span.span)])
    .filter(([from, to]) => from && to && spans.length < 200)
    .map(([from, to]) => svg("path", { class: "arrow", d: `M${to.left} ${from.y}L${to.left} ${to.y}` }));
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) =>
    svg("text", { x: x(first + (last - first) * share), y: 14, "text-anchor": share === 1 ? "end" : share === 0 ? "start" : "middle" },
      share === 0 ? clock(first) : `+${took((last - first) * share)}`));
  return el("div", {},
    svg("svg", { id: "lanes", viewBox: `0 0 ${WIDTH} ${top}`, role: "img", "aria-label": `${many(spans.length, "call")} of ${many(workers.size, "worker")}` }, ticks, drawn, arrows),
    el("div", { class: "legend" }, functions.slice(0, 16).map((name, index) =>
      el("span", { class: `c${index % 8}` }, el("span", { class: "swatch" }), name))));
}
