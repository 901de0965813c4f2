// Health and figures, beside the settings that came with the page.
import { $, ask, badge, capital, count, el, failure, guestWord, poll, Problem, replace, samples, waiting } from "./kit.js";

const screen = $("screen");
const ready = $("ready");
const NAMES = {
  agentloop_runs_live: "Live runs",
  agentloop_runs_total: "Runs that ended",
  agentloop_turns_total: "Replies of models",
  agentloop_calls_total: "Calls that ended",
  agentloop_calls_running: "Calls running",
  agentloop_kills_total: "Calls that were killed",
  agentloop_approvals_pending: "Approvals waiting",
  agentloop_http_refused_total: "Requests refused",
};

let loaded = false;
poll(async () => {
  try {
    await ask("/readyz");
    replace(ready, badge("ok"));
  } catch (error) {
    if (!(error instanceof Problem)) {
      replace(ready, badge("unknown"));
      throw error;
    }
    replace(ready, el("strong", { class: "word bad" }, "no"), ` ${capital(error.message)}.`);
  }
  let text;
  try {
    text = await ask("/metrics");
  } catch (error) {
    if (!loaded) replace(screen, failure(error));
    throw error;
  }
  loaded = true;
  const rows = samples(text, Object.keys(NAMES));
  waiting(rows.find(({ name }) => name === "agentloop_approvals_pending")?.value ?? 0);
  const plain = rows.filter(({ labels }) => Object.keys(labels).length === 0);
  const split = rows.filter(({ labels }) => Object.keys(labels).length > 0);
  replace(screen,
    el("dl", { class: "figures" }, plain.map(({ name, value }) => el("div", {}, el("dt", {}, NAMES[name]), el("dd", {}, count(value))))),
    split.length === 0 ? null : el("table", {},
      el("caption", { class: "unseen" }, "Figures by tool and outcome"),
      el("thead", {}, el("tr", {}, ["Figure", "Of", "Count"].map((head) => el("th", { scope: "col" }, head)))),
      el("tbody", {}, split.map(({ name, labels, value }) => el("tr", {}, el("td", {}, NAMES[name]), el("td", {}, guestWord(Object.values(labels).join(", "), 120)), el("td", { class: "number" }, count(value)))))),
    el("p", { class: "faint" }, "All figures, for Prometheus: ", el("a", { href: "/metrics" }, "/metrics"), ". The routes: ", el("a", { href: "/openapi.json" }, "/openapi.json"), "."));
}, 3000);
