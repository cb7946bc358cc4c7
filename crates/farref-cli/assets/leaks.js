// References that are held, by the source line that made them.

import { spark } from "./chart.js";
import { empty, panel, table, tag } from "./dom.js";
import { age, count } from "./format.js";

export const title = "Leaks";

export function draw({ lines }) {
  if (!lines.length) return [panel("References by source line", empty("No reference is held, so none leaks."))];
  return [panel("References by source line, those that become more first, then the oldest", table([
    { title: "", of: (line) => line.grows ? tag("grows", "bad") : tag("steady", "soft") },
    { title: "made at", code: true, of: (line) => line.line },
    { title: "references", number: true, of: (line) => count(line.count) },
    { title: "lately", of: (line) => spark(line.history) },
    { title: "oldest", number: true, of: (line) => age(line.oldest) },
    { title: "types", code: true, of: (line) => line.types.join(", ") },
    { title: "owners", of: (line) => line.owners.join(", ") },
    { title: "held by", of: (line) => line.holders.join(", ") },
  ], lines, "What a program means to keep is here too: a leak grows, or is older than what it belongs to."))];
}
