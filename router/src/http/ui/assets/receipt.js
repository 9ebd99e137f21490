// One request with all that is known of it, in a dialog. While it runs, it is asked for again.
import { presenting, refusal } from "./access.js";
import { byId, bytes, counted, el, number, svg, time } from "./elements.js";
import { read, routerNow } from "./link.js";
import { nameOf, phases } from "./timeline.js";

const dialog = byId("receipt");
const AGAIN_MS = 1000;
let shown = null;
let timer = 0;

/** Opens a request's receipt. `fallback` is what the client itself was told, where the key may not see more. */
export async function openReceipt(id, fallback) {
  shown = id;
  if (!dialog.open) dialog.showModal();
  dialog.replaceChildren(title("Request"), el("p", { class: "try-words" }, "…"));
  await show(id, fallback);
}

async function show(id, fallback) {
  clearTimeout(timer);
  let body;
  let request = null;
  try {
    const response = await fetch(`api/requests/${encodeURIComponent(id)}`, { headers: presenting(), cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!response.ok) throw new Error(await refusal(response));
    ({ request } = read(await response.text()));
    body = whole(request);
  } catch (error) {
    body = fallback ? [title(fallback.request_label || "Receipt"), el("dl", { class: "facts" }, ...facts(fallback))] : [title("Request"), el("p", { class: "wrong", role: "alert" }, error.message)];
  }
  if (shown !== id || !dialog.open) return;
  const focused = dialog.contains(document.activeElement) && document.activeElement !== dialog;
  const top = dialog.scrollTop;
  dialog.replaceChildren(...body);
  dialog.scrollTop = top;
  if (focused) dialog.querySelector("button").focus();
  if (request && request.finished_us == null) timer = setTimeout(() => show(id, fallback), AGAIN_MS);
}

dialog.addEventListener("close", () => {
  shown = null;
  clearTimeout(timer);
});
// A click beside the dialog is one on its backdrop.
dialog.addEventListener("click", (event) => event.target === dialog && isOutside(event) && dialog.close());

function isOutside(event) {
  const box = dialog.getBoundingClientRect();
  return event.clientX < box.left || event.clientX > box.right || event.clientY < box.top || event.clientY > box.bottom;
}

function title(words) {
  return el("div", { class: "title-row" }, el("h2", { id: "receipt-title" }, words), el("button", { type: "button", onclick: () => dialog.close() }, "Close"));
}

function whole(request) {
  const state = request.finished_us == null ? `runs, ${request.phase}` : request.outcome === "ok" ? "ended well" : request.outcome;
  const kind = request.finished_us == null ? "" : request.outcome === "ok" ? "good" : "bad";
  const received = new Date(request.received_unix_ms);
  const words = `${request.api === "http" ? "HTTP" : "gRPC"} · ${received.toLocaleTimeString()} · ${counted(request.prompt_tokens, "prompt token")}, ${counted(request.completion_tokens, "completion token")}${request.choices > 1 ? ` in ${request.choices} choices` : ""} · `;
  const body = [title(`Request ${nameOf(request)}`), el("p", {}, words, el("b", { class: kind }, state))];
  if (request.error) body.push(el("p", { class: "wrong" }, request.error));
  if (!request.attempts.length) body.push(el("p", { class: "try-words" }, "It has not been placed."));
  const nowUs = routerNow() - request.received_us;
  for (const attempt of request.attempts) body.push(...attemptParts(request, attempt, nowUs));
  if (request.attempts_left_out) body.push(el("p", { class: "try-words" }, `${counted(request.attempts_left_out, "attempt")} between these are not kept.`));
  body.push(el("h3", {}, "Receipt"));
  const receipt = request.receipt ?? { request_id: request.id, ttft_us: request.first_token_us, end_to_end_us: request.finished_us };
  body.push(el("dl", { class: "facts" }, ...facts(receipt)));
  return body;
}

function attemptParts(request, attempt, nowUs) {
  const all = request.finished_us ?? Math.max(nowUs, 1);
  const where = [attempt.prefill_worker && `prefill on ${attempt.prefill_worker}`, attempt.decode_worker && `decode on ${attempt.decode_worker}`];
  const heading = el("h3", {}, `Attempt ${attempt.number}: ${where.filter(Boolean).join(", ") || "no worker yet"}`);
  const reason = el("p", { class: "try-words" }, attempt.reason);
  const bars = phases(request, attempt, nowUs).flatMap(([name, from, to]) => {
    // A short phase stays visible.
    const least = all / 250;
    const bar = svg("rect", { class: `t-${name}`, x: from / all, y: 2, height: 10, width: Math.max(to - from, least) / all });
    const chart = svg("svg", { viewBox: "0 0 1 14", preserveAspectRatio: "none", "aria-hidden": "true" }, bar);
    return [el("span", { class: "phase" }, name), chart, el("span", { class: "time" }, time(to - from))];
  });
  const parts = [heading, reason, el("div", { class: "fall" }, ...bars)];
  if (attempt.failure) parts.push(el("p", { class: "wrong" }, attempt.failure));
  return parts;
}

/** Pairs of a receipt, without those that do not apply. */
function facts(receipt) {
  const pairs = [
    ["Time to first token", time(receipt.ttft_us)],
    ["ITL, mean", receipt.itl_mean_us && time(receipt.itl_mean_us)],
    ["ITL, longest", receipt.itl_max_us && time(receipt.itl_max_us)],
    ["End to end", receipt.end_to_end_us != null && time(receipt.end_to_end_us)],
    ["Admission", receipt.admission_us != null && time(receipt.admission_us)],
    ["Queue", receipt.queue_us != null && time(receipt.queue_us)],
    ["Prefill", receipt.prefill_us && time(receipt.prefill_us)],
    ["Waited for a grant", receipt.grant_wait_us && time(receipt.grant_wait_us)],
    ["Transfer", receipt.transfer_bytes && `${time(receipt.transfer_us)}, ${bytes(receipt.transfer_bytes)}, ${receipt.transport}`],
    ["Sent while computing", receipt.transfer_bytes && `${Math.round(100 * receipt.transfer_overlap)} %`],
    ["Landing to first step", receipt.landing_us && time(receipt.landing_us)],
    ["Cached at prefill", receipt.cached_tokens && counted(receipt.cached_tokens, "token")],
    ["Cached at decode", receipt.decode_cached_tokens && counted(receipt.decode_cached_tokens, "token")],
    ["Preempted", receipt.preemptions && number(receipt.preemptions)],
  ];
  const found = pairs.filter(([, value]) => value).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value))));
  const wide = (name, value) => el("div", { class: "wide" }, el("dt", {}, name), el("dd", { class: "mono" }, String(value)));
  return [...found, ...(receipt.seed == null ? [] : [wide("Seed", receipt.seed)]), wide("Id", receipt.request_id)];
}
