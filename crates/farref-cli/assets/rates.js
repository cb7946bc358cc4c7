// How fast everything goes: of the group, and of each function.

import { chart } from "./chart.js";
import { el, empty, panel, table } from "./dom.js";
import { bytes, count, rate, took } from "./format.js";

export const title = "Rates";

export function draw({ moments, functions }) {
  const of = (name, field) => ({ name, points: moments.map((moment) => [moment.at, moment[field]]) });
  const curved = functions.filter((one) => one.moments).slice(0, 8);
  const curve = (field) => curved.map((one) => ({ name: one.function, points: one.moments.map((moment) => [moment.at, moment[field]]) }));
  return [
    el("div", { class: "row" },
      panel("Calls per second", chart([of("calls", "calls"), of("failed", "failed")], rate)),
      panel("Bytes per second", chart([of("sent", "sent"), of("received", "received")], (value) => `${bytes(value)}/s`)),
      panel("References", chart([of("references", "references")], count)),
      panel("Open calls", chart([of("open calls", "open_calls")], count))),
    curved.length > 0 && el("div", { class: "row" },
      panel("Calls served per second, by function", chart(curve("rate"), rate)),
      panel("99th percentile, by function", chart(curve("p99"), took))),
    panel("Functions", functions.length
      ? table([
        { title: "function", code: true, of: (one) => one.function },
        { title: "now", number: true, of: (one) => rate(one.rate) },
        { title: "served", number: true, of: (one) => count(one.calls) },
        { title: "failed", number: true, of: (one) => one.failed > 0 ? el("span", { class: "bad" }, count(one.failed)) : "0" },
        { title: "mean", number: true, of: (one) => took(one.mean) },
        { title: "median ≤", number: true, of: (one) => took(one.median) },
        { title: "99 % ≤", number: true, of: (one) => took(one.p99) },
      ], functions, "Times are from the arrival of a call to its end, since the workers began; bounds are powers of two.")
      : empty("No function has been called yet.")),
  ].filter(Boolean);
}
