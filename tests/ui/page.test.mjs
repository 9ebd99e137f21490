// The live page in a real browser, against the shipped binary.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { close, open, visit } from "./browser.mjs";
import { router, up } from "./service.mjs";

const LONG = "Tell the story of the lighthouse keeper and the sea, in many words. ".repeat(12);
let service;

before(async () => {
  await open();
  service = await up();
});
after(async () => {
  await close();
  await service?.stop();
});

const until = (page, what, call, argument) => page.waitForFunction(call, argument, { polling: 100 }).catch((error) => {
  throw new Error(`${what}: ${error.message}`);
});
const isReady = (page) => until(page, "the page is connected", () => document.getElementById("link-text").textContent === "ready");

async function ask(page, prompt, tokens) {
  await page.fill("#prompt", prompt);
  await page.fill("#max-tokens", String(tokens));
  await page.click("#send");
}

/** Waits for rows; requests of slower moments may have left the half minute that is shown at first. */
async function rows(page) {
  await generate(4);
  await page.selectOption("#span", "120");
  await page.locator(".row").first().waitFor();
}

/** A request that lasts as long as it is told. */
async function generate(tokens) {
  const body = { prompt: LONG, max_tokens: tokens, ignore_eos: true, request_id: "load" };
  const headers = { "Content-Type": "application/json" };
  const response = await fetch(`${service.http}/v1/completions`, { method: "POST", headers, body: JSON.stringify(body) });
  assert.equal(response.status, 200, await response.text());
}

const isAnswered = (page) => until(page, "the answer has ended", () => !document.getElementById("send").disabled && /\d+ tokens?,/.test(document.getElementById("answer-state").textContent));

test("a router without workers and requests says so", async () => {
  const alone = await router();
  const page = await visit(alone);
  await page.getByText("No worker yet").waitFor();
  await page.getByText("No request yet").waitFor();
  await page.getByText("No first token in the last two minutes.").waitFor();
  assert.equal(await page.textContent("#link-text"), "no workers");
  await page.shot("empty-1280-light");
  await page.setViewportSize({ width: 375, height: 812 });
  await page.emulateMedia({ colorScheme: "dark" });
  await page.shot("empty-375-dark");
  await page.done();
  await alone.stop();
});

test("the page comes under a strict policy, and again only after a change", async () => {
  const response = await fetch(`${service.http}/ui/`);
  const policy = response.headers.get("content-security-policy");
  for (const words of ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'none'"]) {
    assert.ok(policy.includes(words), policy);
  }
  assert.ok(!policy.includes("unsafe"), policy);
  const page = await response.text();
  assert.ok(!/<script(?![^>]*src)|<style|\son\w+=|\sstyle=|https?:/.test(page), "nothing inline, nothing from elsewhere");
  const etag = response.headers.get("etag");
  const again = await fetch(`${service.http}/ui/`, { headers: { "If-None-Match": etag } });
  assert.equal(again.status, 304);
});

test("a prompt is answered and has a receipt", async () => {
  const page = await visit(service);
  await isReady(page);
  await page.fill("#prompt", "What is the capital of France? Answer in one sentence.");
  await page.press("#prompt", "Control+Enter");
  await isAnswered(page);
  assert.match(await page.textContent("#answer"), /Paris/);
  assert.match(await page.textContent("#answer-state"), /\d+ tokens, [\d.]+ tokens\/s, first after /);
  await page.click("#answer-receipt");
  const dialog = page.locator("#receipt");
  await dialog.getByText("Time to first token").waitFor();
  await dialog.getByText("Attempt 1: prefill on prefill-0, decode on decode-0").waitFor();
  for (const phase of ["queued", "prefill", "transfer", "decode"]) await dialog.locator(".phase", { hasText: phase }).waitFor();
  await page.shot("receipt-1280-light");
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "hidden" });
  await page.done();
});

test("an answer is shown as it is generated, until it is stopped", async () => {
  const page = await visit(service);
  await isReady(page);
  // The model must not end it first.
  await page.route("**/v1/chat/completions", (route) => {
    const postData = JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true });
    return route.continue({ postData });
  });
  await ask(page, LONG, 2000);
  await until(page, "it begins", () => document.getElementById("answer").textContent.length > 0);
  assert.ok(await page.isEnabled("#stop"), "it has not ended");
  await page.click("#stop");
  await until(page, "it stops", () => document.getElementById("answer-state").textContent.startsWith("stopped; "));
  const row = page.locator(".row", { hasText: "cancelled" }).first();
  await row.waitFor();
  await page.click("#send");
  await page.click("#stop");
  await page.done();
});

test("workers, their pages and requests are shown as they change", async () => {
  const page = await visit(service);
  await isReady(page);
  for (const name of ["prefill-0", "decode-0"]) await page.locator(".worker", { hasText: name }).getByText("ready").waitFor();
  const load = generate(600);
  await until(page, "a page is live", () => [...document.querySelectorAll(".ledger")].some((ledger) => /[1-9]\d* live/.test(ledger.ariaLabel ?? ledger.getAttribute("aria-label"))));
  const pages = (await page.locator(".ledger").first().getAttribute("aria-label")).match(/\d+/g).map(Number);
  assert.equal(pages[0], pages.slice(1).reduce((sum, count) => sum + count), "the ledger balances");
  const row = page.locator(".row", { hasText: "load" }).first();
  await row.waitFor();
  await page.shot("load-1280-light");
  await row.click();
  await page.locator("#receipt").getByText("Attempt 1").waitFor();
  await page.locator("#receipt").getByRole("button", { name: "Close" }).click();
  await load;
  await page.selectOption("#span", "120");
  await until(page, "TTFT is told", () => /p50 \d/.test(document.getElementById("ttft-now").textContent));
  await until(page, "ITL is told", () => /p50 \d/.test(document.getElementById("itl-now").textContent));
  await until(page, "the request has ended", () => /TTFT/.test(document.querySelector(".row .what").textContent));
  await page.locator(".axis span").first().getByText("−120 s").waitFor();
  await page.click("#pause");
  assert.equal(await page.getAttribute("#pause", "aria-pressed"), "true");
  await page.click("#pause");
  await page.done();
});

test("colours follow the system until they are chosen", async () => {
  const page = await visit(service, { scheme: "dark" });
  await isReady(page);
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await background();
  await page.emulateMedia({ colorScheme: "light" });
  const light = await background();
  assert.notEqual(dark, light);
  await page.click("#theme-button");
  assert.equal(await background(), light);
  await page.click("#theme-button");
  assert.equal(await background(), dark, "dark was chosen");
  await page.reload();
  await isReady(page);
  assert.equal(await background(), dark, "and is remembered");
  await page.shot("after-1280-dark");
  await page.click("#theme-button");
  assert.equal(await background(), light, "back to the system's");
  await page.done();
});

test("everything is reached by keyboard, and the focus is seen", async () => {
  const page = await visit(service);
  await isReady(page);
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
  const reached = new Set();
  for (let presses = 0; presses < 60 && !reached.has("send"); presses += 1) {
    await page.keyboard.press("Tab");
    const seen = await page.evaluate(() => {
      const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
      const element = document.activeElement;
      return { name: element.id || element.getAttribute("aria-label") || element.className, outlined: outlineStyle !== "none" && parseFloat(outlineWidth) >= 2 };
    });
    assert.ok(seen.outlined, `the focus is not seen at ${seen.name}`);
    reached.add(seen.name);
    if (seen.name === "prompt") await page.keyboard.type("Count to three.");
  }
  for (const name of ["theme-button", "Drain prefill-0", "Drain decode-0", "span", "pause", "prompt", "send"]) assert.ok(reached.has(name), `${name} of ${[...reached]}`);
  await page.keyboard.press("Enter");
  await isAnswered(page);
  await rows(page);
  await page.locator(".row").first().focus();
  await page.keyboard.press("Enter");
  await page.locator("#receipt[open]").waitFor();
  await page.keyboard.press("Escape");
  await page.locator("#receipt").waitFor({ state: "hidden" });
  assert.equal(await page.evaluate(() => document.activeElement.classList.contains("row")), true, "the focus comes back");
  await page.done();
});

test("a phone shows all of it without scrolling sideways", async () => {
  for (const scheme of ["light", "dark"]) {
    const page = await visit(service, { width: 375, height: 812, scheme });
    await isReady(page);
    await rows(page);
    await page.check();
    await page.shot(`load-375-${scheme}`);
    await page.locator(".row").first().click();
    await page.locator("#receipt").getByText("Attempt 1").waitFor();
    const box = await page.locator("#receipt").boundingBox();
    assert.ok(box.x >= 0 && box.x + box.width <= 375, JSON.stringify(box));
    await page.shot(`receipt-375-${scheme}`);
    await page.done();
  }
});

test("nothing moves when figures come", async () => {
  const page = await visit(service);
  await isReady(page);
  await rows(page);
  const shift = await page.evaluate(async () => {
    let sum = 0;
    new PerformanceObserver((list) => list.getEntries().forEach((entry) => (sum += entry.value))).observe({ type: "layout-shift" });
    await new Promise((resolve) => setTimeout(resolve, 2500));
    return sum;
  });
  assert.ok(shift < 0.02, `layout shift ${shift}`);
  await page.done();
});

test("a page that nobody looks at asks nothing", async () => {
  const page = await visit(service);
  await isReady(page);
  await page.evaluate(() => {
    Object.defineProperty(document, "hidden", { get: () => window.isHidden ?? true, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  });
  let asked = 0;
  page.on("request", () => (asked += 1));
  await page.waitForTimeout(3000);
  assert.equal(asked, 0);
  await Promise.all([
    page.waitForRequest(/api\/state/),
    page.evaluate(() => {
      window.isHidden = false;
      document.dispatchEvent(new Event("visibilitychange"));
    }),
  ]);
  await page.done();
});

test("a router that is away is told, and found again", async () => {
  const first = await router();
  const page = await visit(first, { forgives: [/ERR_CONNECTION_REFUSED/, /ERR_EMPTY_RESPONSE/, /ERR_CONNECTION_RESET/] });
  await page.getByText("No worker yet").waitFor();
  await first.stop();
  await page.getByText("The router has not answered for").waitFor();
  await page.shot("away-1280-light");
  const again = await router(new URL(first.http).host);
  await page.getByText("The router has not answered for").waitFor({ state: "hidden" });
  assert.equal(await page.textContent("#link-text"), "no workers");
  await page.done();
  await again.stop();
});

test("a worker is drained with an admin key and not without", async () => {
  const folder = mkdtempSync(join(tmpdir(), "baton-ui-"));
  try {
    const keys = { client: newKey("client"), admin: newKey("boss", "--admin") };
    writeFileSync(join(folder, "keys.toml"), Object.values(keys).map((key) => key.entry).join("\n"));
    const locked = await up("--api-keys", join(folder, "keys.toml"));
    await drainWith(locked, keys);
    await locked.stop();
  } finally {
    rmSync(folder, { recursive: true });
  }
});

function newKey(name, ...flags) {
  const { stdout, stderr, status } = spawnSync(process.env.BATON, ["keys", "new", name, ...flags], { encoding: "utf8", timeout: 30_000 });
  assert.equal(status, 0, stderr);
  return { key: stdout.trim(), entry: stderr.slice(stderr.indexOf("[[key]]")) };
}

async function drainWith(locked, { client, admin }) {
  const page = await visit(locked, { forgives: [/status of 40[13]/] });
  const dialog = page.locator("#key-dialog");
  await dialog.waitFor();
  await page.shot("key-1280-light");
  const refused = (key) => page.evaluate(async (held) => {
    const headers = { "Content-Type": "application/json", ...(held && { Authorization: `Bearer ${held}` }) };
    const response = await fetch("api/drain", { method: "POST", headers, body: '{"worker":"decode-0"}' });
    return response.status;
  }, key);
  assert.equal(await refused(null), 401);
  assert.equal(await refused("wrong"), 401);
  assert.equal(await refused(client.key), 403);
  await page.fill("#key", client.key);
  await page.keyboard.press("Enter");
  await page.getByText("operating the service needs an admin key", { exact: false }).first().waitFor();
  assert.equal(await page.locator(".worker").count(), 0, "a client sees no workers");
  await ask(page, "Say hello.", 8);
  await isAnswered(page);
  await page.click("#key-button");
  await page.fill("#key", admin.key);
  await page.click("#key-form button[type=submit]");
  await isReady(page);
  assert.ok(!page.url().includes(admin.key));
  const card = page.locator(".worker", { hasText: "decode-0" });
  const incarnation = (await card.locator(".about").getAttribute("title"));
  await card.getByRole("button", { name: "Drain decode-0" }).click();
  await page.shot("drain-1280-light");
  await page.click("#confirm-yes");
  await page.locator("#confirm").waitFor({ state: "hidden" });
  await until(page, "another incarnation takes its place", (before) => {
    const cards = [...document.querySelectorAll(".worker")].filter((card) => card.textContent.includes("decode-0"));
    return cards.some((card) => card.querySelector(".about").title.slice(0, 29) !== before.slice(0, 29) && card.textContent.includes("ready"));
  }, incarnation);
  await page.reload();
  await isReady(page);
  await page.done();
}
