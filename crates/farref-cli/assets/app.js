// Which view is shown, and fetching what it shows again and again.

import * as calls from "./calls.js";
import * as contexts from "./contexts.js";
import { el } from "./dom.js";
import * as events from "./events.js";
import { clock, many } from "./format.js";
import * as leaks from "./leaks.js";
import * as rates from "./rates.js";
import * as references from "./references.js";
import * as timeline from "./timeline.js";
import * as workers from "./workers.js";

const views = { workers, references, calls, rates, contexts, events, leaks, timeline };
const tabs = document.getElementById("tabs");
const main = document.getElementById("view");
const banner = document.getElementById("banner");
const summary = document.getElementById("summary");

const isView = (name) => Object.hasOwn(views, name);
let current = isView(location.hash.slice(1)) ? location.hash.slice(1) : "workers";
let search = "";
let last;
let timer;
let fetching = 0;
// Whether a button is held down in the view: a click is to end where it began.
let pressed = false;

for (const [name, view] of Object.entries(views)) {
  tabs.append(el("button", { id: `tab-${name}`, role: "tab", type: "button", "aria-controls": "view", click: () => choose(name), keydown: move }, view.title));
}

function choose(name) {
  current = name;
  search = "";
  last = undefined;
  history.replaceState(null, "", `#${name}`);
  main.replaceChildren();
  look();
}

// The arrow keys go from tab to tab.
function move(event) {
  const names = Object.keys(views);
  const steps = { ArrowRight: 1, ArrowLeft: -1 };
  if (!(event.key in steps)) return;
  event.preventDefault();
  const next = names[(names.indexOf(current) + steps[event.key] + names.length) % names.length];
  choose(next);
  document.getElementById(`tab-${next}`).focus();
}

async function look() {
  clearTimeout(timer);
  const turn = ++fetching;
  let wait = 1000;
  try {
    const response = await fetch(`data?view=${current}&q=${encodeURIComponent(search)}`);
    if (!response.ok) throw new Error(`it answers ${response.status}`);
    const answer = await response.json();
    // Another view may have been chosen meanwhile.
    if (turn !== fetching) return;
    last = answer;
    wait = Math.min(Math.max(answer.status.interval * 1000, 250), 10000);
    draw();
  } catch (error) {
    if (turn !== fetching) return;
    warn(`farref dashboard does not answer (${error.message}): what is shown is old. Start it again, and open the address that it prints.`);
  }
  timer = setTimeout(look, wait);
}

function warn(text) {
  banner.hidden = !text;
  if (banner.textContent !== text) banner.textContent = text ?? "";
}

function draw() {
  const { status, data } = last;
  const held = isSelected() ? "; the view waits while text is selected" : "";
  const seen = status.at ? `${many(status.answers, "worker")} of the group at ${status.address}, as of ${clock(status.at)}${held}` : `looking at ${status.address}`;
  if (summary.textContent !== seen) summary.textContent = seen;
  const silent = status.workers - status.answers;
  if (status.lost) warn(`The group cannot be seen: ${status.lost}. What is shown is its last state; this page goes on looking.`);
  else if (silent > 0) warn(`${many(silent, "worker")} of ${status.workers} did not answer: see Workers.`);
  else warn("");
  for (const name of Object.keys(views)) {
    const tab = document.getElementById(`tab-${name}`);
    const chosen = name === current;
    const mark = name === "calls" && status.waiting > 0 ? String(status.waiting) : name === "workers" && status.dead > 0 ? String(status.dead) : "";
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    tab.replaceChildren(views[name].title, mark && el("span", { class: `count${name === "workers" || status.cycles > 0 ? " bad" : ""}` }, mark));
  }
  // Whoever reads, searches or chooses is not interrupted.
  const focus = main.contains(document.activeElement) ? document.activeElement : null;
  if (pressed || isSelected() || focus?.tagName === "SELECT") return;
  const reachable = () => [...main.querySelectorAll("a, button, input, [tabindex]")];
  const focused = focus ? reachable().indexOf(focus) : -1;
  const scrolled = [...main.querySelectorAll(".scroll")].map((box) => [box.scrollTop, box.scrollLeft]);
  const box = document.getElementById("search");
  const parts = views[current].draw(data, draw);
  if (views[current].searches) {
    const kept = box ?? el("input", {
      id: "search", type: "search", "aria-label": "Search", placeholder: `Search: ${views[current].searches}`,
      input: (event) => { search = event.target.value; look(); },
    });
    if (box) [...main.children].slice(1).forEach((child) => child.remove());
    else main.replaceChildren(el("div", { class: "tools" }, kept));
    main.append(...parts);
  } else {
    main.replaceChildren(...parts);
  }
  main.dataset.view = current;
  main.querySelectorAll(".scroll").forEach((box, index) => {
    if (scrolled[index]) [box.scrollTop, box.scrollLeft] = scrolled[index];
  });
  // Keys go on to where they went.
  if (focused >= 0 && !main.contains(document.activeElement)) reachable()[focused]?.focus({ preventScroll: true });
}

// Whether somebody has chosen text of the view, to read or to copy it.
function isSelected() {
  const selection = document.getSelection();
  return Boolean(selection) && !selection.isCollapsed && main.contains(selection.anchorNode);
}

main.addEventListener("pointerdown", () => { pressed = true; });
for (const over of ["pointerup", "pointercancel", "blur"]) window.addEventListener(over, () => { pressed = false; });

window.addEventListener("hashchange", () => {
  const name = location.hash.slice(1);
  if (isView(name) && name !== current) choose(name);
});

look();
