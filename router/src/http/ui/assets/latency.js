// TTFT and ITL of the last two minutes: how many fell where as shades, and p50 and p99 as lines.
import { added, quantile } from "./figures.js";
import { byId, el, time, write } from "./elements.js";
import { known } from "./link.js";

const SECONDS = 120;
/** Each point of the lines is of so many seconds. */
const SMOOTH = 5;
const MARGIN = { left: 52, right: 8, top: 8, bottom: 20 };
const NAMES = { ttft: "TTFT", itl: "ITL" };
const plots = {};

export function showLatencies() {
  for (const name of Object.keys(NAMES)) show(name);
}

function plotOf(name) {
  if (plots[name]) return plots[name];
  const place = byId(name);
  const plot = { canvas: el("canvas", { role: "img" }), empty: el("p", { class: "empty" }), pointed: null };
  place.append(plot.canvas, plot.empty);
  new ResizeObserver(() => known.state && show(name)).observe(place);
  plot.canvas.addEventListener("pointermove", (event) => {
    plot.pointed = event.offsetX;
    show(name);
  });
  plot.canvas.addEventListener("pointerleave", () => {
    plot.pointed = null;
    show(name);
  });
  plots[name] = plot;
  return plot;
}

/** Two minutes of seconds; those that are not known are empty. */
function seconds(name) {
  const last = (known.state.seconds.at(-1)?.second ?? 0) - 1;
  const none = { first_bin: 0, counts: [] };
  return Array.from({ length: SECONDS }, (_, at) => known.seconds.get(last - SECONDS + 1 + at)?.[name] ?? none);
}

function show(name) {
  if (!known.state) return;
  const plot = plotOf(name);
  const all = seconds(name);
  const ends = known.state.bin_ends_us;
  const used = all.filter((second) => second.counts.length);
  plot.empty.hidden = used.length > 0;
  write(plot.empty, name === "ttft" ? "No first token in the last two minutes." : "No second token in the last two minutes.");
  const low = Math.min(...used.map((second) => second.first_bin));
  const high = Math.max(...used.map((second) => second.first_bin + second.counts.length - 1));
  const points = all.map((_, at) => {
    const counts = added(all.slice(Math.max(0, at - SMOOTH + 1), at + 1));
    return all[at].counts.length ? [quantile(counts, 0.5), quantile(counts, 0.99)] : null;
  });
  const whole = added(all);
  describe(name, plot, all, points, whole);
  const bounds = used.length ? [Math.max(low - 2, 0), Math.min(high + 2, ends.length)] : null;
  draw(plot, all, points, bounds, ends);
}

function describe(name, plot, all, points, whole) {
  const [p50, p99] = [quantile(whole, 0.5), quantile(whole, 0.99)];
  const label = p50 == null ? `${NAMES[name]}: nothing in two minutes` : `${NAMES[name]} over two minutes: p50 ${time(p50)}, p99 ${time(p99)}`;
  if (plot.canvas.ariaLabel !== label) plot.canvas.ariaLabel = label;
  let words = p50 == null ? "" : `p50 ${time(p50)} · p99 ${time(p99)}`;
  const at = secondAt(plot);
  if (at != null && points[at]) {
    words = `${SECONDS - at} s ago: p50 ${time(points[at][0])} · p99 ${time(points[at][1])}`;
  }
  write(byId(`${name}-now`), words);
}

function secondAt(plot) {
  if (plot.pointed == null) return null;
  const width = plot.canvas.clientWidth - MARGIN.left - MARGIN.right;
  const at = Math.floor(((plot.pointed - MARGIN.left) / width) * SECONDS);
  return at >= 0 && at < SECONDS ? at : null;
}

function draw(plot, all, points, bounds, ends) {
  const { canvas } = plot;
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!width) return;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  if (!bounds) return;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const frame = { x: MARGIN.left, y: MARGIN.top, w: width - MARGIN.left - MARGIN.right, h: height - MARGIN.top - MARGIN.bottom };
  const logs = bounds.map((bin) => Math.log(bin ? ends[bin - 1] : ends[0] / 2));
  const yOf = (us) => frame.y + frame.h * (1 - (Math.log(us) - logs[0]) / (logs[1] - logs[0]));
  const xOf = (second) => frame.x + (frame.w * second) / SECONDS;
  grid(pen, frame, logs, yOf, xOf, colour);
  shades(pen, all, ends, { frame, xOf, yOf, bounds }, colour("--heat"));
  line(pen, points.map((point) => point?.[1]), xOf, yOf, colour("--p99"), [4, 3]);
  line(pen, points.map((point) => point?.[0]), xOf, yOf, colour("--p50"), []);
  names(pen, points, xOf, yOf, colour);
  const at = secondAt(plot);
  if (at != null) {
    pen.strokeStyle = colour("--dim");
    pen.strokeRect(xOf(at) + 0.5, frame.y, 0, frame.h);
  }
}

function grid(pen, frame, logs, yOf, xOf, colour) {
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = colour("--dim");
  pen.strokeStyle = colour("--line");
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  const wide = logs[1] - logs[0] > Math.log(60);
  for (let ten = 1; ten < 1e9; ten *= 10) {
    for (const step of wide ? [1] : [1, 2, 5]) {
      const us = ten * step;
      if (Math.log(us) < logs[0] || Math.log(us) > logs[1]) continue;
      const y = Math.round(yOf(us)) + 0.5;
      pen.beginPath();
      pen.moveTo(frame.x, y);
      pen.lineTo(frame.x + frame.w, y);
      pen.stroke();
      pen.fillText(short(us), frame.x - 6, y);
    }
  }
  pen.textBaseline = "top";
  for (const ago of [120, 90, 60, 30, 0]) {
    pen.textAlign = ago === 120 ? "left" : ago ? "center" : "right";
    pen.fillText(ago ? `−${ago} s` : "now", xOf(SECONDS - ago), frame.y + frame.h + 5);
  }
}

const short = (us) => (us < 1000 ? `${us} µs` : us < 1e6 ? `${us / 1000} ms` : `${us / 1e6} s`);

function shades(pen, all, ends, { frame, xOf, yOf, bounds }, heat) {
  const most = Math.max(1, ...all.flatMap((second) => second.counts));
  const width = frame.w / SECONDS;
  all.forEach((second, at) => {
    second.counts.forEach((count, offset) => {
      if (!count) return;
      const bin = second.first_bin + offset;
      const top = yOf(ends[Math.min(bin, ends.length - 1)]);
      const bottom = bin > bounds[0] ? yOf(ends[bin - 1]) : frame.y + frame.h;
      // One of many is still seen.
      pen.fillStyle = `rgba(${heat}, ${(0.18 + 0.72 * Math.sqrt(count / most)).toFixed(2)})`;
      pen.fillRect(xOf(at), top, Math.max(width, 1), Math.max(bottom - top, 1));
    });
  });
}

function line(pen, values, xOf, yOf, colour, dashes) {
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.setLineDash(dashes);
  pen.beginPath();
  let last = -9;
  values.forEach((value, at) => {
    if (value == null) return;
    // Seconds without any are bridged, longer silence is a gap.
    const [x, y] = [xOf(at + 0.5), yOf(value)];
    if (at - last > SMOOTH) pen.moveTo(x - 1, y);
    pen.lineTo(x, y);
    last = at;
  });
  pen.stroke();
  pen.setLineDash([]);
}

/** The lines' names at their newest ends. */
function names(pen, points, xOf, yOf, colour) {
  const at = points.findLastIndex(Boolean);
  if (at < 0) return;
  const [low, high] = points[at].map(yOf);
  const apart = Math.max(14 - (low - high), 0) / 2;
  pen.textAlign = "right";
  pen.textBaseline = "bottom";
  pen.font = "600 11px system-ui, sans-serif";
  const x = Math.max(xOf(at + 0.5), MARGIN.left + 30);
  pen.fillStyle = colour("--p99");
  pen.fillText("p99", x, high - 2 - apart);
  pen.fillStyle = colour("--p50");
  pen.textBaseline = "top";
  pen.fillText("p50", x, low + 3 + apart);
}
