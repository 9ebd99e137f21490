// The API key that this tab holds, and calls that present it. Kept in the tab's session, never in an address.
import { byId, write } from "./elements.js";

const NAME = "baton-key";
const dialog = byId("key-dialog");
const changed = new Set();
let asked = false;

const held = () => sessionStorage.getItem(NAME) ?? "";

export const isPresenting = () => held() !== "";

/** Headers that present the key, if there is one. */
export function presenting(headers = {}) {
  return held() ? { ...headers, Authorization: `Bearer ${held()}` } : headers;
}

/** Calls back after another key has been entered or this one forgotten. */
export function onKey(call) {
  changed.add(call);
}

/** Asks for a key: once by itself, and whenever the button is pressed. */
export function askForKey(words, again = false) {
  byId("key-button").hidden = false;
  if ((asked && !again) || dialog.open) return;
  asked = true;
  write(byId("key-error"), words);
  byId("key").value = "";
  dialog.showModal();
}

/** The words of a refusal. */
export async function refusal(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the router answers ${response.status}`;
  }
}

/** JSON by POST; throws the words of a refusal. */
export async function post(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: presenting({ "Content-Type": "application/json" }),
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(10_000),
  });
  if (!response.ok) throw new Error(await refusal(response));
  return response.json();
}

function use(key) {
  if (key) sessionStorage.setItem(NAME, key);
  else sessionStorage.removeItem(NAME);
  dialog.close();
  changed.forEach((call) => call());
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key").value.trim();
  if (!key) write(byId("key-error"), "Enter a key.");
  // Header values have no other characters.
  else if (!/^[\x21-\x7e]+$/.test(key)) write(byId("key-error"), "A key has no such characters.");
  else use(key);
});
byId("key-later").addEventListener("click", () => dialog.close());
byId("key-forget").addEventListener("click", () => use(""));
byId("key-button").addEventListener("click", () => askForKey("", true));
