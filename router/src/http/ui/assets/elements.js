// Making elements, and writing figures for people. It knows nothing of the service.

/** An element with properties (`class`, `on…`, attributes) and children. */
export function el(tag, properties = {}, ...children) {
  return dress(document.createElement(tag), properties, children);
}

/** The same for drawings. */
export function svg(tag, properties = {}, ...children) {
  return dress(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function dress(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Writes a text only if it is another one, so that nothing is laid out or read aloud for nothing. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute only if it has another value. */
export function attribute(element, name, value) {
  const text = String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/** Microseconds in the unit that reads best. */
export function time(us) {
  if (us == null) return "–";
  if (us < 1000) return `${Math.round(us)} µs`;
  const ms = us / 1000;
  if (ms < 10) return `${ms.toFixed(2)} ms`;
  if (ms < 100) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  return s < 10 ? `${s.toFixed(2)} s` : s < 120 ? `${s.toFixed(1)} s` : `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
}

/** A count, or a number per second, in few digits. */
export function number(value) {
  if (value >= 1e6) return `${(value / 1e6).toFixed(value < 1e7 ? 2 : 1)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(value < 1e5 ? 1 : 0)} k`;
  if (value >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return value.toFixed(1);
}

export function bytes(count) {
  if (count >= 1 << 20) return `${(count / (1 << 20)).toFixed(1)} MiB`;
  return count >= 1024 ? `${(count / 1024).toFixed(1)} KiB` : `${count} B`;
}

/** One of something, or several. */
export const counted = (count, one, several = `${one}s`) => `${number(count)} ${count === 1 ? one : several}`;
