// Pools and their workers: role, state, load, pages, and the button that drains one.
import { post } from "./access.js";
import { attribute, byId, counted, el, number, time, write } from "./elements.js";
import { known } from "./link.js";

const PAGES = ["live", "granted", "cached", "quarantined", "free"];
const ROLES = { prefill: "Prefill pool", decode: "Decode pool", unknown: "Other workers" };
/** Older reports are told so. */
const OLD_REPORT_MS = 3000;

const pools = new Map();
const cards = new Map();
let meant = null;
let othersSeen = 0;

export function showWorkers() {
  const { workers } = known.state;
  const place = byId("workers");
  if (!workers.length) {
    cards.clear();
    pools.clear();
    if (!place.querySelector(".empty")) place.replaceChildren(nobody());
  } else {
    place.querySelector(".empty")?.remove();
    for (const role of Object.keys(ROLES)) showPool(role, workers.filter((worker) => worker.role === role));
  }
  showOthers(workers);
}

function nobody() {
  return el("p", { class: "empty" }, "No worker yet. Start one with ", el("code", {}, "baton decode --model MODEL --router ADDRESS"),
    " and one with ", el("code", {}, "baton prefill"), "; ", el("code", {}, "baton up"), " starts both.");
}

function showPool(role, workers) {
  let pool = pools.get(role);
  if (!workers.length) {
    pool?.root.remove();
    pools.delete(role);
    return;
  }
  if (!pool) {
    pool = { title: el("h3"), list: el("ul", { class: "cards" }) };
    pool.root = el("div", { class: "pool" }, pool.title, pool.list);
    pools.set(role, pool);
    // Prefill stands before decode, whoever came first.
    byId("workers").append(...Object.keys(ROLES).flatMap((name) => pools.get(name)?.root ?? []));
  }
  const sum = (of) => workers.reduce((all, worker) => all + of(worker), 0);
  const used = sum((worker) => worker.pages.live + worker.pages.granted);
  const total = sum((worker) => worker.pages.total);
  const share = total ? Math.round((100 * used) / total) : 0;
  write(pool.title, `${ROLES[role]} · ${counted(workers.length, "worker")} · ${number(sum((worker) => worker.running))} running, ${number(sum((worker) => worker.queued))} queued · ${share} % of pages in use`);
  const keys = new Set(workers.map(keyOf));
  for (const [key, card] of cards) {
    if (card.role === role && !keys.has(key)) {
      card.root.remove();
      cards.delete(key);
    }
  }
  for (const worker of workers) {
    if (!cards.has(keyOf(worker))) cards.set(keyOf(worker), newCard(worker, pool.list));
    fill(cards.get(keyOf(worker)), worker);
  }
}

const keyOf = (worker) => `${worker.id}/${worker.incarnation}`;

function newCard(worker, list) {
  const card = { role: worker.role };
  card.state = el("span", { class: "chip state" }, el("span", { class: "dot", "aria-hidden": "true" }), el("span"));
  card.drain = el("button", { type: "button", "aria-label": `Drain ${worker.id}`, onclick: () => ask(card.worker) }, "Drain");
  card.load = el("div", { class: "load", title: "Running and queued there for all routers, and placed there by this one" });
  card.ledger = el("div", { class: "ledger", role: "img" }, ...PAGES.map((name) => el("span", { class: `p-${name}` })));
  card.pages = el("div", { class: "pages" });
  card.about = el("div", { class: "about" });
  const head = el("div", { class: "worker-head" }, el("strong", { title: worker.id }, worker.id), card.state, card.drain);
  card.root = el("li", { class: "worker" }, head, card.load, card.ledger, card.pages, card.about);
  list.append(card.root);
  return card;
}

function fill(card, worker) {
  card.worker = worker;
  const [state, why] = worker.state.split(/: (.*)/s);
  const kind = state === "ready" ? "good" : state === "draining" ? "warn" : "bad";
  attribute(card.state, "class", `chip state ${kind}`);
  attribute(card.state, "title", worker.state);
  write(card.state.lastChild, state);
  card.drain.disabled = state === "draining";
  figures(card.load, [
    [worker.running, "running"], [worker.queued, "queued"], [worker.in_flight, "from here"],
    [worker.step_us ? time(worker.step_us) : "–", "per step"],
  ]);
  const { pages } = worker;
  PAGES.forEach((name, at) => (card.ledger.children[at].style.width = `${pages.total ? (100 * pages[name]) / pages.total : 0}%`));
  attribute(card.ledger, "aria-label", `Of ${pages.total} pages: ${PAGES.map((name) => `${pages[name]} ${name}`).join(", ")}`);
  figures(card.pages, PAGES.filter((name) => pages[name] || name !== "quarantined").map((name) => [pages[name], name]));
  const age = worker.load_age_ms > OLD_REPORT_MS ? ` · not heard for ${time(Math.min(worker.load_age_ms, 3.6e6) * 1000)}` : "";
  write(card.about, `${worker.address} · incarnation ${worker.incarnation.slice(0, 8)} · v${worker.version}${age}${why ? ` · ${why}` : ""}`);
  attribute(card.about, "title", `incarnation ${worker.incarnation}, pid ${worker.pid}, ${pages.total} pages of ${worker.page_size} tokens, batches of at most ${worker.max_batch}`);
}

/** Pairs of a value and its word; the elements stay while the words do. */
function figures(place, pairs) {
  while (place.children.length > pairs.length) place.lastChild.remove();
  pairs.forEach(([value, word], at) => {
    const item = place.children[at] ?? place.appendChild(el("span", {}, el("b"), ""));
    write(item.firstChild, typeof value === "number" ? number(value) : value);
    if (item.lastChild.data !== ` ${word}`) item.lastChild.data = ` ${word}`;
  });
}

/** Several routers may use the same workers; each page shows one router's requests. */
function showOthers(workers) {
  const own = workers.reduce((sum, worker) => sum + worker.in_flight, 0);
  const all = workers.reduce((sum, worker) => sum + worker.running + worker.queued, 0);
  // Reports lag a little behind: only what lasts says something.
  othersSeen = all > own + 1 ? Math.min(othersSeen + 1, 10) : Math.max(othersSeen - 1, 0);
  const hint = byId("routers-hint");
  if (known.several) {
    write(hint, "This address leads to several routers in turn. Each tells of its own requests only: open their own addresses to see all.");
  } else if (othersSeen > 5) {
    write(hint, "The workers also serve requests of other routers, which this page does not list.");
  }
  hint.hidden = !known.several && othersSeen <= 5;
}

const dialog = byId("confirm");

function ask(worker) {
  meant = worker;
  write(byId("confirm-title"), `Drain ${worker.id}?`);
  write(byId("confirm-text"), `It takes no new requests, finishes the ${counted(worker.running, "one that runs", "that run")} and ends. Below baton up it is started again.`);
  write(byId("confirm-error"), "");
  byId("confirm-yes").disabled = false;
  dialog.showModal();
}

byId("confirm-yes").addEventListener("click", async () => {
  byId("confirm-yes").disabled = true;
  try {
    await post("api/drain", { worker: meant.id });
    dialog.close();
  } catch (error) {
    write(byId("confirm-error"), `Not drained: ${error.message}`);
    byId("confirm-yes").disabled = false;
  }
});
