// A headless browser whose pages are watched: whatever they complain of, and whomever else they ask, fails
// the test.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { chromium } = createRequire(`${process.env.BATON_UI_MODULES}/`)("playwright-core");
/** Far more than any of it takes: machines may be busy. */
const PATIENCE_MS = 120_000;
const SHOTS = process.env.BATON_UI_SHOTS;

let browser;

export async function open() {
  browser = await chromium.launch({
    executablePath: process.env.BATON_CHROMIUM,
    // As root, as in containers, Chromium has no sandbox; it visits nothing but the page under test.
    args: ["--no-sandbox", "--disable-dev-shm-usage"],
  });
}

export const close = () => browser?.close();

/** A page of the service in a tab of its own. `forgives` are complaints that a test causes on purpose. */
export async function visit(service, { width = 1280, height = 900, scheme = "light", forgives = [] } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, reducedMotion: "no-preference" });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const complaints = [];
  const strangers = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && complaints.push(`${message.text()} ${message.location().url}`));
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("request", (request) => new URL(request.url()).origin === service.http || request.url().startsWith("data:") || strangers.push(request.url()));
  const response = await page.goto(`${service.http}/ui`);
  page.unforgiven = () => complaints.filter((words) => !forgives.some((pattern) => pattern.test(words)));
  page.check = async () => {
    assert.deepEqual(page.unforgiven(), []);
    assert.deepEqual(strangers, []);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(wide <= 0, `the page is ${wide} px too wide`);
  };
  page.done = async () => {
    await page.check();
    await context.close();
  };
  page.shot = async (name) => SHOTS && page.screenshot({ path: `${SHOTS}/${name}.png`, fullPage: true });
  page.response = response;
  return page;
}
