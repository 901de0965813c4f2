// One run: what was said, what was called, what waits; as it happens.
import { $, age, ask, badge, capital, contents, count, el, failure, follow, guestBlock, guestWord, json, lost, poll, replace, span, tokens, waiting, words } from "./kit.js";
import { inbox, keys } from "./approvals.js";
import { Story, Timeline } from "./timeline.js";

const id = location.pathname.split("/").at(-1);
const screen = $("screen");
const heading = document.querySelector("h1");
const head = el("div", { class: "run-head" });
const record = el("div", { class: "record" });
const now = el("div", { class: "now" });
const talk = el("div", { class: "talk" }, record, now);
const notes = el("div", {});
const raw = el("pre", { class: "host raw", tabindex: 0, role: "group", "aria-label": "Events" });
const lines = [];
const story = new Story();
let run = null;

const cancel = el("button", { type: "button", class: "danger", hidden: true, click: stop }, "Cancel the run");
const problem = el("div", { role: "status" });
const timelineRegion = el("div", {});
const timeline = new Timeline(timelineRegion, story);
const rawDetails = el("details", { toggle: () => drawRaw() }, el("summary", {}, "Events as they came"), raw);
const openAll = el("button", { type: "button", class: "quiet", "aria-pressed": "false", click: () => {
  const open = openAll.getAttribute("aria-pressed") !== "true";
  openAll.setAttribute("aria-pressed", String(open));
  timeline.openAll(open);
} }, "Open all calls");
const say = el("textarea", { id: "say", rows: 2, required: true });
const goOn = el("form", { class: "fields", hidden: true, submit: more }, el("label", { for: "say" }, "Say more"), say, el("div", {}, el("button", { class: "primary" }, "Send")));

async function stop() {
  cancel.disabled = true;
  try {
    await ask(`/v1/runs/${id}/cancel`, { method: "POST" });
    problem.replaceChildren();
  } catch (error) {
    replace(problem, failure(error));
  }
  cancel.disabled = false;
}

async function more(event) {
  event.preventDefault();
  const button = goOn.querySelector("button");
  button.disabled = true;
  try {
    await ask(`/v1/runs/${id}/messages`, { body: { text: say.value } });
    say.value = "";
    problem.replaceChildren();
    listen();
  } catch (error) {
    replace(problem, failure(error));
  }
  button.disabled = false;
}

const isLive = () => run && (run.state === "running" || run.state === "waiting");

function drawHead() {
  heading.replaceChildren(...(run.title ? [guestWord(run.title, 200)] : [`Run ${id.slice(0, 8)}`]));
  const usage = run.usage;
  const cached = [
    usage.cache_read ? `${count(usage.cache_read)} were read from the provider’s cache` : null,
    usage.cache_write ? `${count(usage.cache_write)} were written to it` : null,
  ].filter(Boolean).join(", ");
  replace(head,
    el("dl", { class: "figures" },
      el("div", {}, el("dt", {}, "State"), el("dd", { id: "state" }, badge(run.state))),
      el("div", {}, el("dt", {}, "Model"), el("dd", {}, guestWord(run.model, 80))),
      el("div", {}, el("dt", {}, "Turns"), el("dd", {}, count(run.turns))),
      el("div", {}, el("dt", {}, "Calls"), el("dd", {}, count(run.calls))),
      el("div", {}, el("dt", {}, "Tokens in / out"), el("dd", {}, tokens(usage))),
      el("div", {}, el("dt", {}, "Took"), el("dd", {}, span((run.ended_ms ?? Date.now()) - run.created_ms))),
      el("div", {}, el("dt", {}, "Begun"), el("dd", {}, age(run.created_ms)))),
    cached ? el("p", { class: "faint" }, `Of the tokens in, ${cached}.`) : null,
    ending());
  cancel.hidden = !isLive();
  goOn.hidden = isLive();
}

/** How it ended, where that is news. Why one failed can hold words of the provider or of a tool. */
function ending() {
  if (!run.ending || run.state === "completed" || isLive()) return null;
  if (run.state === "failed") return el("div", { class: "banner bad" }, el("p", {}, "The run failed."), guestBlock("Why", run.ending));
  return el("p", { class: `banner ${run.state === "cancelled" ? "calm" : "bad"}` }, words(`${capital(run.ending)}.`));
}

/** The conversation as the run's record has it. It only grows, so that what somebody has opened stays as it is. */
let told = 0;
function drawTalk() {
  for (const message of run.messages.slice(told)) {
    const by = message.role === "user" ? "user" : "model";
    for (const block of message.content) record.append(...piece(block, by));
  }
  told = run.messages.length;
  drawNow();
}

function piece(block, by) {
  switch (block.type) {
    case "text": return [guestBlock(by === "user" ? "The user" : "The model", block.text, { kind: by })];
    case "reasoning": return [aside("The model thought", guestBlock("Thinking", block.text ?? ""))];
    case "tool_use": return [called(block.name, block.input)];
    case "tool_result": return [aside(block.is_error ? "The call failed" : "The call’s result", contents(block.is_error ? "What the model was told" : "Result, from the tool", block.content))];
    case "image": return contents("the conversation", [block]);
    default: return [guestBlock("A block of the provider’s own", json(block))];
  }
}

const aside = (summary, ...body) => el("details", { class: "aside" }, el("summary", {}, summary), ...body);

/** What is being said just now, and is not in the record yet. */
function drawNow() {
  const turn = story.turns.at(-1);
  const isOpen = isLive() && turn && turn.answered === undefined;
  replace(now,
    isOpen && turn.reasoning && !turn.text ? guestBlock("The model thinks", turn.reasoning.slice(-2000)) : null,
    isOpen && turn.text ? guestBlock("The model", turn.text, { kind: "model" }) : null,
    isLive() ? el("p", { class: "faint loading" }, run.state === "waiting" ? "It waits for a person." : "It goes on…") : null);
}

function called(tool, input) {
  return el("details", { class: "aside" }, el("summary", {}, "The model called ", guestWord(tool, 80)), guestBlock("Arguments, from the model", json(input ?? {})));
}

function drawRaw() {
  if (!rawDetails.open) return;
  const lastLines = lines.slice(-500);
  raw.replaceChildren();
  const cut = lines.length - lastLines.length;
  raw.append(...guestBlock("", `${cut ? `… ${cut} before\n` : ""}${lastLines.join("\n")}`, { whole: true }).querySelector("pre").childNodes);
}

let scheduled = false;
function draw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    timeline.draw();
    drawNow();
    drawRaw();
    replace(notes, story.notes.map((note) => el("p", { class: "banner calm" }, words(`${capital(note.text)}.`))));
  });
}

async function read() {
  run = await ask(`/v1/runs/${id}`);
  drawHead();
  drawTalk();
}

/** What one event changes of the head, without asking. */
const TELLING = new Set(["turn_ended", "call_requested", "approval_requested", "approval_answered", "run_started", "run_continued", "call_ended", "run_ended"]);
let rereading;
function reread() {
  rereading ??= setTimeout(async () => {
    rereading = undefined;
    await read().catch(() => {});
    refreshApprovals?.();
  }, 150);
}

let listening = null;
async function listen() {
  listening?.abort();
  listening = new AbortController();
  try {
    await follow(`/v1/runs/${id}/events${lines.length ? `?after=${lines.length - 1}` : ""}`, {
      signal: listening.signal,
      state: (state) => lost(state === "lost" ? "The connection to the server is lost. What you see may be old; trying again." : ""),
      event: (event) => {
        lines.push(JSON.stringify(event));
        story.add(event);
        // What was read already knows of what came before it.
        if (TELLING.has(event.type) && event.seq > (run.last_seq ?? -1)) reread();
        draw();
      },
    });
  } catch (error) {
    replace(problem, failure(error));
  }
}

let refreshApprovals;
function begin() {
  const cards = el("div", {});
  const questions = el("div", {}, cards);
  const empty = el("p", { hidden: true });
  const box = inbox(cards, (question) => question.run === id, empty);
  const askedHead = el("h2", { id: "asked-h" }, "Waits for your word");
  const askedSection = el("section", { class: "asked", "aria-labelledby": "asked-h", hidden: true }, askedHead, questions);
  replace(screen, head, problem, el("div", { class: "choices" }, cancel,
      el("a", { href: `/v1/runs/${id}/trace.md`, id: "markdown" }, "Markdown"), el("a", { href: `/v1/runs/${id}/trace.jsonl` }, "Events (JSONL)")),
    askedSection, notes,
    el("div", { class: "columns" },
      el("section", { "aria-labelledby": "time-h" }, el("div", { class: "line" }, el("h2", { id: "time-h" }, "Timeline"), openAll),
        el("p", { class: "legend faint" }, key("person", "waits for a person"), key("queue", "in the queue"), key("ran good", "ran"), key("ran bad", "failed or refused")), timelineRegion),
      el("section", { "aria-labelledby": "talk-h" }, el("h2", { id: "talk-h" }, "Conversation"), talk, goOn)),
    rawDetails);
  refreshApprovals = poll(async () => {
    const open = (await ask("/v1/approvals")).approvals;
    waiting(open.length);
    box.show(open);
    askedSection.hidden = cards.children.length === 0;
  }, 2000);
  keys(box);
  draw();
  listen();
  setInterval(() => { if (isLive()) { timeline.draw(); drawHead(); } }, 1000);
}

function key(kind, text) {
  return el("span", {}, el("span", { class: `bar key ${kind}` }), ` ${text}`);
}

read().then(begin, (error) => replace(screen, failure(error), el("p", {}, el("a", { href: "/" }, "All runs"))));
