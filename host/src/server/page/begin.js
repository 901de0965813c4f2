// Start a run.
import { $, ask, el, failure, poll, replace, waiting } from "./kit.js";

const screen = $("screen");

/** The same press of the button begins one run, however often it arrives. Not `randomUUID`: that needs TLS. */
function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

let key = newKey();
const prompt = el("textarea", { id: "prompt", rows: 6, required: true, "aria-describedby": "prompt-hint" });
const model = el("input", { id: "model", autocomplete: "off" });
const system = el("textarea", { id: "system", rows: 3 });
const tools = el("input", { id: "tools", autocomplete: "off", placeholder: "files.read, search.*" });
const LIMITS = [
  ["max_iterations", "Model requests", 1],
  ["max_tool_calls", "Calls of tools", 0],
  ["max_tokens", "Output tokens of one reply", 1],
  ["max_total_tokens", "Tokens in all", 0],
  ["wall_time_ms", "Time, in seconds", 1],
];
const limits = LIMITS.map(([name, label, min]) => ({ name, label, input: el("input", { id: name, type: "number", min, step: 1 }) }));
const send = el("button", { class: "primary" }, "Start");
const said = el("div", { role: "status" });

const form = el("form", { class: "fields narrow", submit },
  el("div", { class: "field" }, el("label", { for: "prompt" }, "What is to be done"), prompt, el("p", { class: "faint", id: "prompt-hint" }, el("kbd", {}, "Ctrl"), " ", el("kbd", {}, "Enter"), " starts it.")),
  el("details", { class: "aside" }, el("summary", {}, "Model, tools and limits"),
    el("p", { class: "faint" }, "What is left empty is as the settings say. Tools and limits can only narrow them."),
    el("div", { class: "field" }, el("label", { for: "model" }, "Model"), model),
    el("div", { class: "field" }, el("label", { for: "system" }, "System prompt"), system),
    el("div", { class: "field" }, el("label", { for: "tools" }, "Only these tools"), tools),
    limits.map(({ name, label, input }) => el("div", { class: "field" }, el("label", { for: name }, label), input))),
  said,
  el("div", { class: "choices" }, send));

form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
form.addEventListener("input", () => { key = newKey(); });

async function submit(event) {
  event.preventDefault();
  if (send.disabled) return;
  send.disabled = true;
  replace(said, el("p", { class: "faint" }, "Starting…"));
  const body = { prompt: prompt.value };
  if (model.value.trim()) body.model = model.value.trim();
  if (system.value.trim()) body.system = system.value;
  const patterns = tools.value.split(/[\s,]+/).filter(Boolean);
  if (patterns.length) body.tools = patterns;
  const given = limits.filter(({ input }) => input.value !== "").map(({ name, input }) => [name, Number(input.value) * (name === "wall_time_ms" ? 1000 : 1)]);
  if (given.length) body.limits = Object.fromEntries(given);
  try {
    const run = await ask("/v1/runs", { body, headers: { "idempotency-key": key } });
    location.assign(`/runs/${run.id}`);
  } catch (error) {
    replace(said, failure(error));
    send.disabled = false;
  }
}

replace(screen, form);
prompt.focus();
poll(async () => waiting((await ask("/v1/approvals")).approvals.length), 5000);
