// The workers of the group, and the names that they publish references under.

import { el, empty, panel, shown, table, tag } from "./dom.js";
import { age, bytes, count } from "./format.js";

const KINDS = { alive: "good", joining: "warn", dead: "bad", left: "soft" };

export const title = "Workers";

export function draw({ workers, names, all_names }) {
  if (!workers.length) return [panel("Workers", empty("No worker has been seen yet. This page looks again by itself."))];
  const state = (row) => row.error
    ? el("span", { title: row.error }, tag("no answer", "bad"), " ", row.error)
    : tag(row.state, KINDS[row.state] ?? "warn");
  const published = names?.length && panel("Names", table([
    { title: "name", of: (row) => row.name },
    { title: "publisher", of: (row) => row.publisher },
    { title: "version", number: true, of: (row) => String(row.version) },
    { title: "type", code: true, of: (row) => row.type },
    { title: "value on", of: (row) => row.owner },
    { title: "value", code: true, of: (row) => row.value },
  ], names, shown(names, all_names, "names")));
  return [panel("Workers", table([
    { title: "worker", of: (row) => row.name },
    { title: "rank", number: true, of: (row) => String(row.rank) },
    { title: "state", of: state },
    { title: "up", number: true, of: (row) => age(row.uptime) },
    { title: "open calls", number: true, of: (row) => count(row.open_calls) },
    { title: "running", number: true, of: (row) => count(row.running) },
    { title: "waiting", number: true, of: (row) => count(row.waiting) },
    { title: "references", number: true, of: (row) => count(row.references) },
    { title: "contexts", number: true, of: (row) => count(row.contexts) },
    { title: "made", number: true, of: (row) => count(row.calls) },
    { title: "served", number: true, of: (row) => count(row.served) },
    { title: "failed", number: true, of: (row) => row.failed > 0 ? el("span", { class: "bad" }, count(row.failed)) : count(row.failed) },
    { title: "sent", number: true, of: (row) => bytes(row.sent) },
    { title: "received", number: true, of: (row) => bytes(row.received) },
    { title: "queued", number: true, of: (row) => bytes(row.queued) },
    { title: "life", number: true, of: (row) => row.life && String(row.life) },
  ], workers)), published].filter(Boolean);
}
