// Asks the model and writes its answer as it comes.
import { askForKey, presenting, refusal } from "./access.js";
import { byId, counted, time, write } from "./elements.js";
import { read } from "./link.js";
import { openReceipt } from "./receipt.js";

/** Text is shown so often, however fast it comes: each time, all of it is laid out. */
const SHOWN_MS = 60;
const answer = byId("answer");
let unshown = "";
let showing = 0;
let running = null;
let receipt = null;

byId("prompt-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) ask(byId("prompt").value);
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("prompt-form").requestSubmit();
});
byId("stop").addEventListener("click", () => running?.abort());
byId("answer-receipt").addEventListener("click", () => receipt && openReceipt(receipt.request_id, receipt));

async function ask(prompt) {
  if (!prompt.trim()) {
    say("Write a prompt first.", true);
    byId("prompt").focus();
    return;
  }
  running = new AbortController();
  receipt = null;
  const told = { started: performance.now(), first: null, tokens: 0 };
  busy(true);
  answer.replaceChildren(new Text());
  unshown = "";
  say("waiting for the first token");
  try {
    await stream(prompt, told, running.signal);
    show(told);
    say(summary(told));
  } catch (error) {
    show(told);
    const stopped = running.signal.aborted;
    say(stopped ? `stopped; ${summary(told)}` : error.message, !stopped);
  }
  running = null;
  busy(false);
}

function busy(is) {
  byId("send").disabled = is;
  byId("stop").disabled = !is;
  byId("answer-receipt").disabled = is || !receipt;
  // The button that was pressed is gone: the next one to press is near.
  if (is && document.activeElement === document.body) byId("stop").focus();
}

function say(words, wrong = false) {
  write(byId("answer-state"), words);
  byId("answer-state").classList.toggle("wrong", wrong);
}

function summary(told) {
  if (!told.tokens) return "no token";
  const seconds = (performance.now() - told.first) / 1000;
  const pace = told.tokens > 1 && seconds > 0 ? `, ${((told.tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
  return `${counted(told.tokens, "token")}${pace}, first after ${time((told.first - told.started) * 1000)}`;
}

async function stream(prompt, told, signal) {
  const response = await fetch("../v1/chat/completions", {
    method: "POST",
    headers: presenting({ "Content-Type": "application/json" }),
    body: JSON.stringify({
      messages: [{ role: "user", content: prompt }],
      max_tokens: byId("max-tokens").valueAsNumber || 200,
      temperature: byId("temperature").valueAsNumber || 0,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      receipt: true,
      request_id: "page",
    }),
    signal,
  });
  if (!response.ok) {
    const words = await refusal(response);
    if (response.status === 401) askForKey(words, true);
    throw new Error(words);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  let done = false;
  for (;;) {
    const { value, done: ended } = await reader.read();
    if (ended) break;
    buffer += value;
    const events = buffer.split("\n\n");
    buffer = events.pop();
    for (const event of events) done = take(event.replace(/^data: /, ""), told) || done;
  }
  if (!done) throw new Error(`The answer broke off; ${summary(told)}`);
}

/** Shows what has come, and follows its end unless the reader has scrolled back. */
function show(told) {
  clearTimeout(showing);
  showing = 0;
  const isAtEnd = answer.scrollHeight - answer.scrollTop - answer.clientHeight < 24;
  answer.firstChild.appendData(unshown);
  unshown = "";
  if (isAtEnd) answer.scrollTop = answer.scrollHeight;
  write(byId("answer-state"), summary(told));
}

/** One event; true for the last. */
function take(data, told) {
  if (data === "[DONE]") return true;
  const piece = read(data);
  if (piece.error) throw new Error(piece.error.message);
  const text = piece.choices[0]?.delta.content ?? "";
  if (piece.usage) told.tokens = piece.usage.completion_tokens;
  if (piece.receipts) [receipt] = piece.receipts;
  if (piece.choices.length) {
    told.first ??= performance.now();
    unshown += text;
    showing ||= setTimeout(() => show(told), SHOWN_MS);
  }
  return false;
}
