// Puts the page together: what is shown when something is heard, notices, and colours.
import { byId, time, write } from "./elements.js";
import { showFigures } from "./figures.js";
import { showLatencies } from "./latency.js";
import { begin, known, routerNow } from "./link.js";
import "./prompt.js";
import { showTimeline } from "./timeline.js";
import { showWorkers } from "./workers.js";

const THEMES = ["auto", "light", "dark"];
let awaySince = null;

function heard(kind, words) {
  const isAway = kind === "away";
  if (!isAway) awaySince = null;
  else awaySince ??= performance.now();
  document.body.classList.toggle("stale", kind !== "state" && known.state != null);
  if (kind === "state") {
    link(known.state.ready ? "good" : "warn", known.state.ready ? "ready" : "no workers");
    notice("");
    show();
  } else if (isAway) {
    link("bad", "away");
    notice(`The router has not answered for ${time((performance.now() - awaySince) * 1000 + 1e6)}. Trying again.`);
  } else {
    link("warn", "locked");
    notice(`${words[0].toUpperCase()}${words.slice(1)}. The model can still be tried with a client's key.`);
  }
}

function show() {
  const { model, router } = known.state;
  write(byId("model"), model.name);
  byId("model").title = `${model.name}, ${model.context_length} tokens of context`;
  showFigures();
  showWorkers();
  showTimeline();
  showLatencies();
  write(byId("foot"), `Router of pid ${router.pid} · incarnation ${router.incarnation.slice(0, 8)} · v${router.version} · up ${upTime()}`);
}

function upTime() {
  const minutes = Math.floor(routerNow() / 60e6);
  if (minutes < 1) return "less than a minute";
  return minutes < 60 ? `${minutes} min` : minutes < 2880 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${Math.floor(minutes / 1440)} days`;
}

function link(kind, words) {
  byId("link").className = `chip ${kind}`;
  write(byId("link-text"), words);
  document.title = kind === "good" ? "Baton" : `Baton: ${words}`;
}

function notice(words) {
  byId("notice").hidden = !words;
  write(byId("notice"), words);
}

function colour(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const name = theme[0].toUpperCase() + theme.slice(1);
  write(byId("theme-button"), `◐ ${name}`);
  byId("theme-button").ariaLabel = `Colours: ${theme === "auto" ? "as the system" : theme}`;
  if (known.state) showLatencies();
}

const stored = () => {
  const theme = localStorage.getItem("baton-theme");
  return THEMES.includes(theme) ? theme : "auto";
};
byId("theme-button").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(stored()) + 1) % THEMES.length];
  localStorage.setItem("baton-theme", next);
  colour(next);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => known.state && showLatencies());
colour(stored());
begin(heard);
