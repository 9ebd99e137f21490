// Processes of the service under test: started, waited for within bounds, always ended.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

const PATIENCE_MS = 120_000;
const BATON = process.env.BATON;
export const MODEL = process.env.BATON_MODEL;
const running = new Set();

// A test that breaks must not leave anything behind.
process.on("exit", () => running.forEach((service) => service.process.kill("SIGKILL")));

/** Starts `baton` and waits for its ready line. */
export async function start(command, flags) {
  const service = { process: spawn(BATON, [command, "--model", MODEL, ...flags], { stdio: ["ignore", "pipe", "pipe"] }), log: "" };
  running.add(service);
  service.ended = new Promise((resolve) => service.process.once("exit", resolve));
  service.ended.then(() => running.delete(service));
  service.process.stderr.on("data", (data) => (service.log = (service.log + data).slice(-20_000)));
  const lines = createInterface({ input: service.process.stdout });
  const ready = new Promise((resolve) => lines.on("line", (line) => / http=/.test(line) && resolve(line)));
  const line = await within(Promise.race([ready, service.ended.then(() => null)]), `${command} is ready`);
  if (!line) throw new Error(`baton ${command} has ended:\n${service.log}`);
  service.http = `http://${line.match(/ http=(\S+)/)[1]}`;
  service.stop = () => stop(service);
  return service;
}

async function stop(service) {
  service.process.kill("SIGTERM");
  const soon = within(service.ended, "the service has ended").catch(() => service.process.kill("SIGKILL"));
  await soon;
}

/** A bound on a wait. */
export function within(promise, what, ms = PATIENCE_MS) {
  let timer;
  const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(`not within ${ms} ms: ${what}`)), ms)));
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

const FREE = "127.0.0.1:0";
const HAND_OFF = ["--local-prefill-tokens", "0"];
const SMALL = ["--prefill-threads", "1", "--decode-threads", "1", "--pages", "512"];

/** The whole service on free ports; every prompt is handed off. */
export const up = (...flags) => start("up", ["--listen", FREE, "--http-listen", FREE, ...HAND_OFF, ...SMALL, ...flags]);

/** A router without workers, at this address for HTTP. */
export const router = (http = FREE) => start("router", ["--listen", FREE, "--http-listen", http]);
