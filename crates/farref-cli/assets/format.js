// Numbers with units, as a person reads them.

function scaled(value, step, units) {
  let unit = 0;
  while (Math.abs(value) >= step - 0.5 && unit + 1 < units.length) {
    value /= step;
    unit += 1;
  }
  return (Math.abs(value) < 9.95 && value % 1 !== 0 ? value.toFixed(1) : value.toFixed(0)) + units[unit];
}

const known = (value) => value !== undefined && value !== null && Number.isFinite(value);

export const bytes = (value) => known(value) ? scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]) : "–";

export const count = (value) =>
  !known(value) ? "–" : value < 10000 && value % 1 === 0 ? String(value) : scaled(value, 1000, ["", "k", "M", "G", "T"]);

export const rate = (value) => known(value) ? `${value > 0 && value < 10 ? value.toFixed(1) : count(Math.round(value))}/s` : "–";

export function age(seconds) {
  if (!known(seconds)) return "–";
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${two(seconds % 60)}s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h ${two(seconds / 60 % 60)}m`;
  return `${Math.floor(seconds / 86400)}d ${two(seconds / 3600 % 24)}h`;
}

// Of a time in milliseconds.
export function took(milliseconds) {
  if (!known(milliseconds)) return "–";
  if (milliseconds === 0) return "0 ms";
  if (milliseconds < 1) return `${Math.round(milliseconds * 1000)} µs`;
  if (milliseconds < 1000) return `${milliseconds < 10 ? milliseconds.toFixed(1) : Math.round(milliseconds)} ms`;
  return `${(milliseconds / 1000).toFixed(1)} s`;
}

export const clock = (at) => new Date(at).toLocaleTimeString("en-GB");

export const many = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;
