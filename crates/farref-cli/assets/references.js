// Who holds what of whom: a graph of the workers with most references, and the references in groups.

import { el, empty, panel, shown, svg, table } from "./dom.js";
import { age, count, many } from "./format.js";

export const title = "References";
export const searches = "id, type, owner, holder or source line";

// More than this cannot be told apart.
const MOST_NODES = 36;
const SIZE = 640;

export function draw(data) {
  if (!data.all) {
    return [panel("References", empty("No worker holds a reference. They appear when a program calls remote() or rref()."))];
  }
  if (!data.found) return [panel("References", empty(`None of ${many(data.all, "reference")} matches.`))];
  const unseen = data.unseen > 0 && el("p", { class: "note" },
    `${many(data.unseen, "more reference")} are not fetched: see --limit.`);
  return [
    el("div", { class: "row" },
      panel("Who holds references of whom", graph(data)),
      panel("Most held", table([
        { title: "holder", of: (edge) => edge.holder },
        { title: "owner", of: (edge) => edge.owner },
        { title: "references", number: true, of: (edge) => count(edge.count) },
        { title: "oldest", number: true, of: (edge) => age(edge.oldest) },
      ], data.edges.slice(0, 100), shown(data.edges.slice(0, 100), data.all_edges, "pairs")))),
    panel(`${many(data.found, "reference")} in groups`, table([
      { title: "count", number: true, of: (group) => count(group.count) },
      { title: "oldest", number: true, of: (group) => age(group.oldest) },
      { title: "type", code: true, of: (group) => group.key[0] },
      { title: "owner", of: (group) => group.key[1] },
      { title: "held by", of: (group) => group.key[2] },
      { title: "made at", code: true, of: (group) => group.key[3] },
    ], data.groups, shown(data.groups, data.all_groups, "groups")), unseen),
  ];
}

function graph(data) {
  const weight = (node) => node.owns + node.holds;
  const nodes = [...data.nodes].sort((one, other) => weight(other) - weight(one)).slice(0, MOST_NODES);
  nodes.sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
  const centre = SIZE / 2;
  const radius = centre - 105;
  const places = new Map(nodes.map((node, index) => {
    const angle = 2 * Math.PI * index / nodes.length - Math.PI / 2;
    return [node.name, { node, angle, x: centre + radius * Math.cos(angle), y: centre + radius * Math.sin(angle) }];
  }));
  const most = Math.max(1, ...data.edges.map((edge) => edge.count));
  const edges = data.edges.filter((edge) => places.has(edge.holder) && places.has(edge.owner)).map((edge) => {
    const [from, to] = [places.get(edge.holder), places.get(edge.owner)];
    const own = from === to;
    const bend = own
      ? `M${from.x} ${from.y}c${40 * Math.cos(from.angle - 0.9)} ${40 * Math.sin(from.angle - 0.9)} ${40 * Math.cos(from.angle + 0.9)} ${40 * Math.sin(from.angle + 0.9)} 0 0`
      : `M${from.x} ${from.y}Q${centre + (from.x + to.x - SIZE) * 0.18} ${centre + (from.y + to.y - SIZE) * 0.18} ${to.x} ${to.y}`;
    return svg("path", { class: "edge", d: bend, "stroke-width": (1 + 6 * Math.sqrt(edge.count / most)).toFixed(1), "marker-end": own ? undefined : "url(#tip)" },
      svg("title", {}, `${edge.holder} holds ${many(edge.count, "reference")} of ${edge.owner}, the oldest for ${age(edge.oldest)}`));
  });
  const heaviest = Math.max(1, ...nodes.map(weight));
  const circles = [...places.values()].map(({ node, angle, x, y }) => {
    const size = 5 + 9 * Math.sqrt(weight(node) / heaviest);
    const left = Math.cos(angle) < -0.01;
    const turn = angle * 180 / Math.PI + (left ? 180 : 0);
    const away = (left ? -1 : 1) * (size + 6);
    return svg("g", { class: node.owns >= node.holds ? "c0" : "c1", transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` },
      svg("title", {}, `${node.name} owns ${node.owns}, holds ${node.holds}`),
      svg("circle", { class: "node", r: size.toFixed(1) }),
      svg("text", { class: "name", transform: `rotate(${turn.toFixed(1)})`, x: away.toFixed(1), y: 4, "text-anchor": left ? "end" : "start" }, cut(node.name)));
  });
  const tip = svg("marker", { id: "tip", viewBox: "0 0 6 6", refX: 12, refY: 3, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" },
    svg("path", { d: "M0 0L6 3L0 6z", fill: "currentColor" }));
  return el("div", {},
    svg("svg", { id: "graph", viewBox: `0 0 ${SIZE} ${SIZE}`, role: "img", "aria-label": "a graph of workers; the tables have the same in words" },
      svg("defs", {}, tip), edges, circles),
    el("p", { class: "legend" },
      el("span", { class: "c0" }, el("span", { class: "swatch" }), "owns more than it holds"),
      el("span", { class: "c1" }, el("span", { class: "swatch" }), "holds more than it owns"),
      nodes.length < data.nodes.length && el("span", {}, `The ${nodes.length} of ${data.nodes.length} workers with most references: search for others.`)));
}

function cut(name) {
  return name.length > 16 ? `${name.slice(0, 15)}…` : name;
}
