// Requests of the last seconds as bars on one time axis that moves with the clock.
import { attribute, byId, counted, el, number, svg, time, write } from "./elements.js";
import { known, routerNow } from "./link.js";
import { openReceipt } from "./receipt.js";

/** Bars move so often. */
const FRAME_MS = 100;
const rows = new Map();
let list = null;
let frozenAt = null;

const span = () => Number(byId("span").value);

/** Phases of an attempt as [name, from, to] in microseconds since the request's receipt. */
export function phases(request, attempt, nowUs) {
  const end = attempt.ended_us ?? request.finished_us ?? nowUs;
  const isSplit = attempt.prefill_worker !== "";
  const found = [];
  const add = (name, from, to) => from != null && to > from && found.push([name, from, to]);
  const began = attempt.number === 1 ? 0 : attempt.begun_us;
  add("queued", began, attempt.scheduled_us ?? end);
  if (attempt.scheduled_us == null) return found;
  const computed = attempt.first_token_us ?? attempt.landed_us ?? end;
  add("prefill", attempt.scheduled_us, computed);
  if (isSplit) {
    const sent = attempt.transfer_us ?? (attempt.landed_us == null ? null : attempt.granted_us);
    add("transfer", sent ?? (attempt.granted_us == null ? null : computed), attempt.landed_us ?? end);
    add("decode", attempt.landed_us, end);
  } else {
    add("decode", attempt.first_token_us, end);
  }
  return found;
}

export const ageUs = (request) => request.finished_us ?? routerNow() - request.received_us;

/** What a request is called. */
export const nameOf = (request) => request.label || request.id.slice(0, 12);

function prepare() {
  if (list) return;
  const ticks = el("div", { class: "axis", "aria-hidden": "true" }, ...[0, 1, 2, 3, 4, 5].map(() => el("span")));
  list = el("ul", { class: "rows", "aria-label": "Requests, newest first" });
  byId("timeline").append(ticks, list, el("p", { class: "rows-more" }));
  showTicks();
  setInterval(move, FRAME_MS);
}

function showTicks() {
  const ticks = document.querySelectorAll(".axis span");
  ticks.forEach((tick, at) => {
    const ago = Math.round(span() * (1 - at / (ticks.length - 1)));
    tick.style.left = `${(100 * at) / (ticks.length - 1)}%`;
    write(tick, ago ? `−${ago} s` : "now");
  });
}

export function showTimeline() {
  prepare();
  if (frozenAt != null) return;
  const { requests } = known.state;
  const earliest = routerNow() - span() * 1e6;
  const shown = requests.filter((request) => request.received_us + ageUs(request) > earliest);
  const ids = new Set(shown.map((request) => request.id));
  for (const [id, row] of rows) {
    if (!ids.has(id)) {
      row.item.remove();
      rows.delete(id);
    }
  }
  shown.forEach((request, at) => {
    if (!rows.has(request.id)) rows.set(request.id, newRow(request));
    const row = rows.get(request.id);
    if (list.children[at] !== row.item) list.insertBefore(row.item, list.children[at] ?? null);
    fill(row, request);
  });
  showEmpty(shown.length, requests.length);
  move();
}

function showEmpty(shown, all) {
  const empty = list.querySelector(".empty");
  if (shown) empty?.remove();
  else {
    const words = all ? `No request in the last ${span()} s.` : "No request yet. They appear here while they run.";
    if (empty) write(empty, words);
    else list.append(el("li", { class: "empty" }, words));
  }
  const more = byId("timeline").lastChild;
  write(more, all >= 100 ? "The newest 100 requests are shown." : " ");
}

function newRow(request) {
  const row = { who: el("span", { class: "who" }), what: el("span", { class: "what" }), group: svg("g") };
  row.chart = svg("svg", { "aria-hidden": "true", preserveAspectRatio: "none" }, row.group);
  const text = el("span", { class: "row-text" }, row.who, row.what);
  row.button = el("button", { type: "button", class: "row", onclick: () => openReceipt(request.id) }, text, row.chart);
  row.item = el("li", {}, row.button);
  return row;
}

function fill(row, request) {
  row.request = request;
  write(row.who, nameOf(request));
  const wrong = request.outcome && request.outcome !== "ok";
  const state = wrong ? request.outcome : request.outcome ? `TTFT ${time(request.first_token_us)}` : request.phase;
  write(row.what, `${state} · ${number(request.prompt_tokens)}+${number(request.completion_tokens)}`);
  row.what.classList.toggle("wrong", Boolean(wrong));
  const took = request.finished_us == null ? "running" : `${request.outcome} after ${time(request.finished_us)}`;
  attribute(row.button, "aria-label", `Request ${nameOf(request)}: ${took}, ${request.phase === "ended" ? "" : `${request.phase}, `}time to first token ${time(request.first_token_us)}, ${counted(request.prompt_tokens, "prompt token")}, ${counted(request.completion_tokens, "completion token")}. Open its receipt.`);
}

/** Draws every row anew where it stands now. Bars are in seconds since the request's receipt. */
function move() {
  if (document.hidden || !known.state) return;
  const now = frozenAt ?? routerNow();
  const width = span();
  for (const row of rows.values()) {
    attribute(row.chart, "viewBox", `0 0 ${width} 16`);
    const from = (row.request.received_us - now) / 1e6 + width;
    attribute(row.group, "transform", `translate(${from.toFixed(3)} 0)`);
    if (row.drawn === row.request && row.request.finished_us != null) continue;
    row.drawn = row.request;
    draw(row.group, row.request, now - row.request.received_us);
  }
}

function draw(group, request, nowUs) {
  const attempts = request.attempts.length ? request.attempts : [{ number: 1, prefill_worker: "", begun_us: 0 }];
  const bars = attempts.flatMap((attempt) => phases(request, attempt, nowUs));
  if (request.outcome && request.outcome !== "ok") {
    const end = request.finished_us;
    bars.push(["wrong", end, end]);
  }
  while (group.children.length > bars.length) group.lastChild.remove();
  bars.forEach(([name, from, to], at) => {
    const bar = group.children[at] ?? group.appendChild(svg("rect"));
    attribute(bar, "class", `t-${name}`);
    attribute(bar, "x", (from / 1e6).toFixed(4));
    attribute(bar, "width", ((to - from) / 1e6).toFixed(4));
    // The transfer runs beside prefill: it is drawn below, half as high.
    attribute(bar, "y", name === "transfer" ? 10 : 3);
    attribute(bar, "height", name === "transfer" ? 4 : name === "prefill" ? 7 : 10);
  });
}

byId("span").addEventListener("change", () => {
  if (!list) return;
  showTicks();
  if (frozenAt == null) showTimeline();
  else move();
});
byId("pause").addEventListener("click", () => {
  frozenAt = frozenAt == null && known.state ? routerNow() : null;
  byId("pause").setAttribute("aria-pressed", String(frozenAt != null));
  write(byId("pause"), frozenAt == null ? "Pause" : "Go on");
  if (known.state) showTimeline();
});
