// Contexts that are open, and the backward passes in them.

import { el, empty, panel, shown, table } from "./dom.js";
import { age, many } from "./format.js";

export const title = "Contexts";

export function draw(data) {
  if (!data.contexts.length) {
    return [panel("Contexts", empty("No context is open. Distributed autograd opens one for each step of training; short ones may fall between two looks."))];
  }
  return [panel(`${many(data.all, "context")} open`, table([
    { title: "context", code: true, of: (one) => one.id },
    { title: "opened by", of: (one) => one.opened_by },
    { title: "seen for", number: true, of: (one) => age(one.age) },
    { title: "workers", of: (one) => one.workers.join(", ") },
    { title: "passes and records", of: (one) => one.notes.map((note) => el("div", {}, `${note.worker}: ${note.note}`)) },
  ], data.contexts, shown(data.contexts, data.all, "contexts")))];
}
