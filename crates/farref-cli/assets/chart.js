// Curves over time.

import { el, svg } from "./dom.js";
import { clock } from "./format.js";

const WIDTH = 560;
const HEIGHT = 150;
const LEFT = 58;
const BOTTOM = 18;

// Series: { name, points: [[at, value or null], ..] }. All share one axis, which begins at zero.
export function chart(series, label) {
  const points = series.flatMap((one) => one.points).filter(([, value]) => value !== null && value !== undefined);
  if (points.length < 2) return el("p", { class: "empty" }, "Two looks are needed for a rate: wait a moment.");
  const times = points.map(([at]) => at);
  const [first, last] = [Math.min(...times), Math.max(...times)];
  const most = Math.max(...points.map(([, value]) => value)) || 1;
  const x = (at) => LEFT + (WIDTH - LEFT - 4) * (last === first ? 1 : (at - first) / (last - first));
  const y = (value) => 6 + (HEIGHT - BOTTOM - 6) * (1 - value / most);
  const lines = [0, 0.5, 1].map((share) => [
    svg("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: y(most * share), y2: y(most * share) }),
    svg("text", { x: LEFT - 6, y: y(most * share) + 4, "text-anchor": "end" }, label(most * share)),
  ]);
  const curves = series.map((one, index) => {
    const path = one.points.filter(([, value]) => value !== null && value !== undefined)
      .map(([at, value], number) => `${number ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    return svg("g", { class: `c${index % 8}` },
      svg("title", {}, one.name),
      series.length === 1 && path && svg("path", { class: "fill", d: `${path}L${x(last)} ${y(0)}L${x(first)} ${y(0)}Z` }),
      svg("path", { class: "curve", d: path || "M0 0" }));
  });
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": series.map((one) => one.name).join(", ") },
    lines, curves,
    svg("text", { x: LEFT, y: HEIGHT - 4 }, clock(first)),
    svg("text", { x: WIDTH, y: HEIGHT - 4, "text-anchor": "end" }, clock(last)));
  const legend = series.length > 1 && el("div", { class: "legend" }, series.map((one, index) =>
    el("span", { class: `c${index % 8}` }, el("span", { class: "swatch" }), one.name)));
  return el("div", {}, drawing, legend);
}

// A curve without axes.
export function spark(values) {
  if (values.length < 2) return "";
  const most = Math.max(...values) || 1;
  const path = values.map((value, index) =>
    `${index ? "L" : "M"}${(index * 100 / (values.length - 1)).toFixed(1)} ${(19 - 18 * value / most).toFixed(1)}`).join("");
  return svg("svg", { class: "spark c0", viewBox: "0 0 100 20", preserveAspectRatio: "none", role: "img", "aria-label": `from ${values[0]} to ${values.at(-1)}` },
    svg("path", { class: "curve", d: path }));
}
