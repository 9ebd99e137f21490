// The way to the router: asks once a second what is new, never while nobody looks, and says so when nobody
// answers. It knows nothing of what is shown.
import { askForKey, isPresenting, onKey, presenting, refusal } from "./access.js";

const EVERY_MS = 1000;
const PATIENCE_MS = 5000;
/** Older seconds than these are not told again. */
const TOLD_SECONDS = 8;
const KEPT_SECONDS = 120;

/** What is known: the last answer, and the seconds of all of them. */
export const known = { state: null, seconds: new Map(), routers: new Set(), several: false };
let ahead = -Infinity;
let timer = 0;
let failures = 0;
let asking = false;
let listener = () => {};

/** The router's clock in microseconds. An answer may be old when it comes, never young. */
export const routerNow = () => performance.now() * 1000 + ahead;

/** Begins to ask; `heard(kind, words)` is called with "state", "away" or "refused". */
export function begin(heard) {
  listener = heard;
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : ask()));
  onKey(ask);
  ask();
}

/** Numbers that JavaScript cannot hold become texts. */
export const read = (text) => JSON.parse(text.replace(/"seed":(\d{16,})/g, '"seed":"$1"'));

async function ask() {
  clearTimeout(timer);
  if (asking || document.hidden) return;
  asking = true;
  let pause = EVERY_MS;
  try {
    const response = await fetch(`api/state?history=${isCurrent() ? "recent" : "whole"}`, {
      headers: presenting(),
      cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    if (response.status === 401 || response.status === 403) {
      pause = refused(response.status, await refusal(response));
    } else if (response.ok) {
      take(read(await response.text()));
    } else {
      throw new Error(await refusal(response));
    }
    failures = 0;
  } catch {
    failures += 1;
    pause = Math.min(EVERY_MS * 2 ** (failures - 1), PATIENCE_MS);
    listener("away");
  }
  asking = false;
  if (pause && !document.hidden) timer = setTimeout(ask, pause);
}

function refused(status, words) {
  // Asked again once there is another key: a client's may not watch, and still try the model.
  askForKey(status === 401 && !isPresenting() ? "" : words);
  listener("refused", words);
  return 0;
}

/** Whether the seconds that are known go on into those that a short answer tells. */
function isCurrent() {
  if (!known.state) return false;
  const second = Math.floor(routerNow() / 1e6);
  return second - Math.max(...known.seconds.keys()) < TOLD_SECONDS;
}

function take(state) {
  if (state.router.incarnation !== known.state?.router.incarnation) {
    // One that comes back is not a restart: an address stands for several.
    known.several ||= known.routers.has(state.router.incarnation);
    known.routers.add(state.router.incarnation);
    known.seconds.clear();
    ahead = -Infinity;
  }
  known.state = state;
  ahead = Math.max(ahead, state.now_us - performance.now() * 1000);
  for (const second of state.seconds) known.seconds.set(second.second, second);
  const last = state.seconds.at(-1)?.second ?? 0;
  for (const second of known.seconds.keys()) if (second <= last - KEPT_SECONDS) known.seconds.delete(second);
  listener("state");
}
