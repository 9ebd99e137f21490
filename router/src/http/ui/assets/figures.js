// The row of figures at the top, and what is read from histograms.
import { attribute, byId, counted, el, number, svg, time, write } from "./elements.js";
import { known } from "./link.js";

/** Whole seconds up to now, newest last; the one that goes on is left out. */
export function lastSeconds(count) {
  const end = (known.state.seconds.at(-1)?.second ?? 0) - 1;
  const seconds = [];
  for (let second = end - count + 1; second <= end; second += 1) {
    if (known.seconds.has(second)) seconds.push(known.seconds.get(second));
  }
  return seconds;
}

/** The sum of histograms. */
export function added(histograms) {
  const sum = new Array(known.state.bin_ends_us.length + 1).fill(0);
  for (const { first_bin: first, counts } of histograms) {
    counts.forEach((count, at) => (sum[first + at] += count));
  }
  return sum;
}

/** Latency in microseconds below which this share lies, between the ends of its bin. */
export function quantile(counts, share) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (!total) return null;
  let left = share * total;
  const ends = known.state.bin_ends_us;
  for (let bin = 0; bin < counts.length; bin += 1) {
    if (counts[bin] >= left && counts[bin] > 0) {
      const begin = bin ? ends[bin - 1] : 0;
      return begin + ((ends[bin] ?? begin) - begin) * (left / counts[bin]);
    }
    left -= counts[bin];
  }
  return ends.at(-1);
}

export function showFigures() {
  const { router } = known.state;
  const ten = lastSeconds(10);
  const rate = (of) => (ten.length ? ten.reduce((sum, second) => sum + of(second), 0) / ten.length : 0);
  write(byId("f-running"), number(router.running));
  write(byId("f-waiting"), router.waiting ? `${counted(router.waiting, "request")} waiting` : "none waiting");
  perSecond("f-requests", rate((second) => second.received), "/s");
  const badly = ten.reduce((sum, second) => sum + second.ended_badly, 0);
  write(byId("f-failed"), badly ? `${number(badly)} not ended well in 10 s` : "all ended well");
  byId("f-failed").classList.toggle("bad", badly > 0);
  perSecond("f-tokens", rate((second) => second.completion_tokens), " tokens/s");
  write(byId("f-prompt"), `${number(Math.round(rate((second) => second.prompt_tokens)))} prompt tokens/s`);
  latency("ttft", added(lastSeconds(60).map((second) => second.ttft)));
  latency("itl", added(lastSeconds(60).map((second) => second.itl)));
  spark("s-requests", (second) => second.received);
  spark("s-tokens", (second) => second.completion_tokens);
}

function perSecond(id, value, unit) {
  const text = number(value);
  if (byId(id).firstChild?.data !== text) byId(id).replaceChildren(text, el("small", {}, unit));
}

function latency(name, counts) {
  write(byId(`f-${name}`), time(quantile(counts, 0.5)));
  const high = quantile(counts, 0.99);
  write(byId(`f-${name}-99`), high == null ? "none in a minute" : `p99 ${time(high)}, one minute`);
}

function spark(id, of) {
  const values = lastSeconds(60).map(of);
  const most = Math.max(1, ...values);
  const points = values.map((value, at) => {
    const x = 60 - values.length + at;
    return `${x},${(17 - (15 * value) / most).toFixed(1)}`;
  });
  const line = byId(id).firstChild ?? byId(id).appendChild(svg("polyline"));
  attribute(line, "points", points.length > 1 ? points.join(" ") : "");
}
