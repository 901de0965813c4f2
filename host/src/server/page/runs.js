// Runs: what there is, how far it is, what it took.
import { $, age, ask, badge, count, el, failure, guestWord, poll, replace, span, tokens, waiting } from "./kit.js";

const STATES = ["running", "waiting", "completed", "failed", "cancelled", "refused", "truncated", "context_full", "iteration_limit", "tool_call_limit", "token_limit", "time_limit", "repeating", "no_call", "unknown_stop_reason"];
const PAGE = 50;
const screen = $("screen");
const filter = { state: new URLSearchParams(location.search).get("state") ?? "", text: "" };
/** Runs of later pages, which are loaded once. */
let older = [];
let next = null;
let first = [];
let loaded = false;

const state = el("select", { id: "state", change: () => { filter.state = state.value; older = []; next = null; loaded = false; refresh(); } },
  el("option", { value: "" }, "every state"),
  STATES.map((word) => el("option", { value: word, selected: word === filter.state }, word.replaceAll("_", " "))));
const text = el("input", { id: "text", type: "search", placeholder: "task, model or id", input: () => { filter.text = text.value; draw(); } });
const list = el("div", { id: "runs" });
const status = el("p", { class: "faint", role: "status" });
const more = el("button", { type: "button", class: "quiet", hidden: true, click: loadMore }, "Show older runs");

replace(screen,
  el("form", { class: "filters", submit: (event) => event.preventDefault() },
    el("label", { for: "state" }, "State"), state,
    el("label", { for: "text" }, "Find"), text,
    el("a", { class: "button primary", href: "/begin" }, "Start a run")),
  status, list, more);

function path(before) {
  const params = new URLSearchParams({ limit: PAGE });
  if (filter.state) params.set("state", filter.state);
  if (before !== undefined) params.set("before", before);
  return `/v1/runs?${params}`;
}

async function load() {
  const wanted = filter.state;
  let page;
  let open;
  try {
    [page, open] = await Promise.all([ask(path()), ask("/v1/approvals")]);
  } catch (error) {
    if (!loaded) replace(list, failure(error));
    throw error;
  }
  if (wanted !== filter.state) return;
  first = page.runs;
  if (older.length === 0) next = page.next;
  loaded = true;
  waiting(open.approvals.length);
  draw();
}

async function loadMore() {
  more.disabled = true;
  try {
    const page = await ask(path(next));
    older.push(...page.runs);
    next = page.next;
  } catch (error) {
    list.append(failure(error));
  }
  more.disabled = false;
  draw();
}

const HEADS = ["State", "Task", "Model", "Turns", "Calls", "Tokens in / out", "Took", "Begun"];

function row(run) {
  const cells = [
    badge(run.state),
    el("a", { href: `/runs/${run.id}` }, run.title ? guestWord(run.title, 200) : `run ${run.id.slice(0, 8)}`),
    guestWord(run.model, 60),
    count(run.turns), count(run.calls), tokens(run.usage),
    span((run.ended_ms ?? Date.now()) - run.created_ms),
    age(run.created_ms),
  ];
  return el("tr", { "data-id": run.id }, cells.map((cell, i) => el("td", { "data-head": HEADS[i], class: i > 2 && i < 7 ? "number" : "" }, cell)));
}

function draw() {
  if (!loaded) return;
  const known = new Set(first.map((run) => run.id));
  const all = [...first, ...older.filter((run) => !known.has(run.id))];
  const wanted = filter.text.trim().toLowerCase();
  const runs = all.filter((run) => !wanted || `${run.title} ${run.model} ${run.id}`.toLowerCase().includes(wanted));
  more.hidden = next === null || next === undefined;
  const live = runs.filter((run) => run.state === "running" || run.state === "waiting").length;
  const line = runs.length === 0 ? "" : `${runs.length}${more.hidden ? "" : " newest"} run${runs.length === 1 ? "" : "s"}, ${live} live`;
  if (status.textContent !== line) status.textContent = line;
  if (all.length === 0) {
    replace(list, filter.state
      ? el("p", { class: "empty" }, `No run is in the state “${filter.state.replaceAll("_", " ")}”.`)
      : el("div", { class: "empty" },
        el("p", {}, "No runs yet. ", el("a", { href: "/begin" }, "Start one here"), ", or from a program:"),
        el("pre", { class: "host", tabindex: 0, role: "group", "aria-label": "Example" }, `curl ${location.origin}/v1/runs -H 'content-type: application/json' -d '{"prompt": "Say hello."}'`)));
    return;
  }
  if (runs.length === 0) return replace(list, el("p", { class: "empty" }, "No loaded run matches the text."));
  // The focus stays on its run while rows come and go.
  const focused = document.activeElement?.closest?.("tr[data-id]")?.dataset.id;
  replace(list, el("table", { class: "cards" },
    el("caption", { class: "unseen" }, "Runs, the newest first"),
    el("thead", {}, el("tr", {}, HEADS.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, runs.map(row))));
  if (focused) list.querySelector(`tr[data-id="${CSS.escape(focused)}"] a`)?.focus();
}

const refresh = poll(load, 2000);
