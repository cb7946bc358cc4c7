// Who came and who went.

import { el, empty, panel, table, tag } from "./dom.js";
import { clock } from "./format.js";

export const title = "Membership";

const KINDS = { present: "soft", joined: "good", left: "soft", died: "bad", evicted: "bad", silent: "warn", answers: "good" };
const WORDS = {
  present: "was there when this page began to look",
  joined: "has joined the group",
  left: "has left the group",
  died: "has died",
  evicted: "runs, and the others have declared it dead",
  silent: "does not answer this page",
  answers: "answers again",
};

export function draw({ events }) {
  if (!events.length) return [panel("Membership", empty("Nothing has happened yet."))];
  return [panel("Membership, the latest first", table([
    { title: "at", number: true, of: (event) => el("time", { datetime: new Date(event.at).toISOString() }, clock(event.at)) },
    { title: "", of: (event) => tag(event.change, KINDS[event.change]) },
    { title: "worker", of: (event) => event.worker },
    { title: "rank", number: true, of: (event) => String(event.rank) },
    { title: "life", number: true, of: (event) => String(event.life) },
    { title: "", of: (event) => WORDS[event.change] },
  ], events, "Seen from outside, from one look to the next: what came and went in between is not here."))];
}
