// Making elements. Text is always text: nothing that a peer sends becomes markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export function el(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

export function panel(title, ...children) {
  return el("section", { class: "panel" }, title && el("h2", {}, title), ...children);
}

export function empty(text) {
  return el("p", { class: "empty" }, text);
}

export function tag(text, kind) {
  return el("span", { class: `tag ${kind ?? "soft"}` }, text);
}

// A table. Columns: { title, of: row => text or node, number, code }.
export function table(columns, rows, note) {
  const kind = (column) => [column.number && "n", column.code && "code"].filter(Boolean).join(" ");
  const head = el("tr", {}, columns.map((column) => el("th", { class: kind(column), scope: "col" }, column.title)));
  const body = rows.map((row) => el("tr", {}, columns.map((column) => {
    const cell = column.of(row);
    return el("td", { class: kind(column) }, cell === undefined || cell === null || cell === "" ? "–" : cell);
  })));
  return el("div", {},
    el("div", { class: "scroll", tabindex: "0" }, el("table", {}, el("thead", {}, head), el("tbody", {}, body))),
    note && el("p", { class: "note" }, note));
}

// "the first 500 of 2,000", if not all are shown.
export function shown(rows, all, what) {
  return rows.length < all ? `The first ${rows.length} of ${all.toLocaleString("en")} ${what}.` : undefined;
}
