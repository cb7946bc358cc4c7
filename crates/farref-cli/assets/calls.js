// Calls in flight: those that run and those that wait, and circles among them.

import { el, empty, panel, shown, table, tag } from "./dom.js";
import { age, count, many } from "./format.js";

export const title = "Calls";

const MARKS = { cycle: "bad", blocked: "warn", waits: "soft" };

export function draw(data) {
  const circles = data.cycles.length > 0 && panel("Calls that wait for each other",
    el("p", { class: "bad" }, `${many(data.cycles.length, "circle")} of values whose users wait for each other: none of these calls will end.`),
    el("ul", {}, data.cycles.map((circle, index) => el("li", { class: "code" }, `circle ${index + 1}: ${circle.join(", ")}`))));
  const waiting = data.waiting.length
    ? table([
      { title: "", of: (call) => tag(call.cycle ? `circle ${call.cycle}` : call.mark, MARKS[call.mark]) },
      { title: "for", number: true, of: (call) => age(call.age) },
      { title: "function", code: true, of: (call) => call.function },
      { title: "on", of: (call) => call.worker },
      { title: "called by", of: (call) => call.caller },
      { title: "waits for", of: (call) => call.waits_for },
      { title: "used by", code: true, of: (call) => call.used_by.join(", ") },
      { title: "value", code: true, of: (call) => call.value },
    ], data.waiting, shown(data.waiting, data.all_waiting, "calls"))
    : empty("No call waits for a value.");
  const running = data.running.length
    ? table([
      { title: "since", number: true, of: (call) => age(call.age) },
      { title: "function", code: true, of: (call) => call.function },
      { title: "on", of: (call) => call.worker },
      { title: "called by", of: (call) => call.caller },
      { title: "value", code: true, of: (call) => call.value },
    ], data.running, shown(data.running, data.all_running, "calls"))
    : empty("Nothing runs at the moment of the look. Short calls are seen under Rates and Timeline.");
  const pairs = data.pairs.length
    ? table([
      { title: "from", of: (pair) => pair.from },
      { title: "to", of: (pair) => pair.to },
      { title: "unanswered", number: true, of: (pair) => count(pair.unanswered) },
      { title: "held back", number: true, of: (pair) => count(pair.held_back) },
    ], data.pairs, shown(data.pairs, data.all_pairs, "pairs"))
    : empty("All calls are answered.");
  return [
    circles,
    panel(`${many(data.all_waiting, "call")} waiting`, waiting),
    panel(`${many(data.all_running, "call")} running`, running),
    panel("Unanswered, by caller and callee", pairs),
  ].filter(Boolean);
}
