// Tools: what each may touch, what bounds it, and a form to try it.
import { $, ask, badge, bytes, capital, contents, count, el, failure, guestBlock, guestWord, json, poll, replace, samples, shown, span, waiting, words } from "./kit.js";

const screen = $("screen");
const SMALL = 2000;

/** A control for one property of a schema: how to show it, and what value it holds. `undefined` is not given. */
function control(name, schema, required) {
  const id = `p-${Math.random().toString(36).slice(2)}`;
  const type = Array.isArray(schema.type) ? schema.type.find((one) => one !== "null") : schema.type;
  const label = el("label", { for: id }, guestWord(name, 80), el("span", { class: "faint" }, ` ${type ?? "any"}${required ? ", required" : ""}`));
  const hint = typeof schema.description === "string" ? el("p", { class: "faint", id: `${id}-hint` }, guestWord(schema.description, 400)) : null;
  const described = hint ? { "aria-describedby": `${id}-hint` } : {};
  const preset = schema.default;
  if (Array.isArray(schema.enum) && schema.enum.every((one) => typeof one === "string" || typeof one === "number")) {
    const input = el("select", { id, ...described }, required ? null : el("option", { value: "" }, "(not given)"),
      schema.enum.map((one, i) => el("option", { value: i, selected: one === preset }, String(one).slice(0, 200))));
    return { nodes: [label, hint, input], value: () => (input.value === "" ? undefined : schema.enum[Number(input.value)]) };
  }
  if (type === "boolean") {
    const input = el("select", { id, ...described }, required ? null : el("option", { value: "" }, "(not given)"), el("option", { value: "true", selected: preset === true }, "true"), el("option", { value: "false", selected: preset === false }, "false"));
    return { nodes: [label, hint, input], value: () => (input.value === "" ? undefined : input.value === "true") };
  }
  if (type === "integer" || type === "number") {
    const input = el("input", { id, type: "number", step: type === "integer" ? 1 : "any", required, value: typeof preset === "number" ? preset : undefined, ...described });
    return { nodes: [label, hint, input], value: () => (input.value === "" ? undefined : Number(input.value)) };
  }
  if (type === "string") {
    const input = el("textarea", { id, rows: 1, ...described }, typeof preset === "string" ? preset : "");
    return { nodes: [label, hint, input], value: () => (input.value === "" && !required ? undefined : input.value) };
  }
  const input = el("textarea", { id, rows: 3, class: "code", placeholder: "JSON", required, ...described }, preset === undefined ? "" : json(preset));
  return {
    nodes: [label, hint, input],
    value: () => {
      if (input.value.trim() === "") return undefined;
      try {
        return JSON.parse(input.value);
      } catch {
        input.focus();
        throw new Error("not JSON");
      }
    },
  };
}

function tryIt(tool) {
  const schema = tool.input_schema ?? {};
  const properties = Object.entries(schema.properties ?? {}).slice(0, 100);
  const required = new Set(Array.isArray(schema.required) ? schema.required : []);
  const simple = schema.type === "object" && !schema.oneOf && !schema.anyOf && !schema.allOf && !schema.$ref;
  const controls = simple ? properties.map(([name, property]) => [name, control(name, property && typeof property === "object" ? property : {}, required.has(name))]) : [["", control("arguments", { description: "All arguments as one JSON object" }, true)]];
  const out = el("div", { class: "answer", role: "status" });
  const send = el("button", { class: "primary" }, "Call it");
  let going = null;
  const end = el("button", { type: "button", class: "quiet", hidden: true, click: () => going?.abort() }, "Stop waiting, and end the call");
  const form = el("form", {
    class: "fields",
    submit: async (event) => {
      event.preventDefault();
      let args;
      try {
        const pairs = controls.map(([name, made]) => [name, made.value()]).filter(([, value]) => value !== undefined);
        args = simple ? Object.fromEntries(pairs) : pairs[0]?.[1] ?? {};
      } catch {
        return replace(out, el("p", { class: "banner bad", role: "alert" }, "A field holds no JSON."));
      }
      going = new AbortController();
      send.disabled = true;
      end.hidden = false;
      replace(out, el("p", { class: "faint" }, "It runs, or waits for a person: ", el("a", { href: "/approvals" }, "approvals"), "."));
      try {
        const answer = await ask(`/v1/tools/${encodeURIComponent(tool.name)}/call`, { body: { arguments: args }, signal: going.signal });
        const ran = answer.ran_ms === null ? "it never ran" : `ran ${span(answer.ran_ms)}`;
        replace(out, el("p", {}, badge(answer.outcome), ` ${ran}`), contents(answer.is_error ? "What a model would be told" : "Result, from the tool", answer.content));
      } catch (error) {
        replace(out, error.name === "AbortError" ? el("p", { class: "banner calm" }, "The call was ended.") : failure(error));
      }
      send.disabled = false;
      end.hidden = true;
    },
  }, controls.map(([, made]) => el("div", { class: "field" }, made.nodes.filter(Boolean))), el("div", { class: "choices" }, send, end));
  if (simple && properties.length === 0) form.prepend(el("p", { class: "faint" }, "It takes no arguments."));
  return el("section", {}, el("h2", {}, "Try it"), form, out);
}

function touches(tool) {
  if (!tool.sandboxed) {
    return el("p", { class: "banner wait" }, tool.may_touch.length ? "It runs outside the sandbox: " : "It is part of the host and runs outside the sandbox.", tool.may_touch.flatMap(shown));
  }
  const requests = tool.requests.map((request) => el("li", {}, guestWord(request.capability, 200), request.reason ? [el("span", { class: "faint" }, ", it says: "), guestWord(request.reason, 400)] : null));
  const grants = tool.may_touch.map((line) => el("li", {}, shown(line)));
  const verdict = requests.length === 0 ? "It asks for nothing and may touch nothing." : grants.length === 0 ? "Nothing of what it asks for is granted." : null;
  return el("div", {},
    el("div", { class: "pair" },
      el("div", {}, el("h2", {}, "It asks for"), requests.length ? el("ul", {}, requests) : el("p", { class: "faint" }, "nothing")),
      el("div", {}, el("h2", {}, "It may touch (asked for and granted)"), grants.length ? el("ul", {}, grants) : el("p", { class: "faint" }, "nothing"))),
    verdict ? el("p", { class: "faint" }, verdict) : null);
}

function claims(annotations) {
  const said = [
    annotations.read_only ? "only reads" : null,
    annotations.destructive ? "may destroy" : null,
    annotations.idempotent ? "may be repeated" : null,
    annotations.open_world ? "reaches the outside" : null,
  ].filter(Boolean);
  return said.length ? said.join(", ") : "nothing";
}

function grantWord(tool) {
  if (!tool.sandboxed) return el("strong", { class: "word wait" }, "not sandboxed");
  if (tool.requests.length === 0) return el("strong", { class: "word calm" }, "touches nothing");
  if (tool.may_touch.length === 0) return el("strong", { class: "word bad" }, "nothing granted");
  return el("strong", { class: "word good" }, `${tool.may_touch.length} granted`);
}

/** How calls of each tool ended, by the tool's name. */
let ends = new Map();

function past(tool) {
  const region = el("p", { "data-calls": tool.name });
  drawPast(region);
  return region;
}

function drawPast(region) {
  const ended = ends.get(region.dataset.calls);
  replace(region, ended ? [...ended].map(([outcome, n], i) => [i ? " " : null, badge(outcome), ` ${count(n)}`]).flat() : el("span", { class: "faint" }, "none"));
}

function entry(tool) {
  const body = el("div", { class: "lane-body" });
  const details = el("details", {
    class: "card tool",
    toggle: () => {
      if (!details.open || body.childNodes.length) return;
      replace(body,
        guestBlock("It says of itself", tool.description),
        touches(tool),
        el("h2", {}, "Bounds and origin"),
        el("dl", { class: "facts" },
          el("dt", {}, "Kind"), el("dd", {}, tool.plugin ? ["from the plugin ", guestWord(tool.plugin, 80)] : "the host’s own or a server’s"),
          el("dt", {}, "Time for a call"), el("dd", {}, tool.timeout_ms === null ? "without end" : span(tool.timeout_ms)),
          el("dt", {}, "Memory"), el("dd", {}, tool.sandboxed ? bytes(tool.memory_bytes) : "not bounded by the sandbox"),
          el("dt", {}, "Calls at once"), el("dd", {}, tool.parallel_safe ? "side by side" : "one after another"),
          el("dt", {}, "It claims"), el("dd", {}, claims(tool.annotations)),
          tool.digest ? [el("dt", {}, "Component"), el("dd", {}, el("code", { class: "digest" }, tool.digest))] : null),
        el("h2", {}, "Calls since the server started"), past(tool),
        el("details", { class: "aside" }, el("summary", {}, "Input schema"), guestBlock("As the tool declares it", json(tool.input_schema))),
        tool.output_schema ? el("details", { class: "aside" }, el("summary", {}, "Output schema"), guestBlock("As the tool declares it", json(tool.output_schema))) : null,
        tryIt(tool));
    },
  }, el("summary", {}, el("span", { class: "tool-name" }, guestWord(tool.rule_name, 120)), grantWord(tool), el("span", { class: "tool-line faint" }, guestWord(tool.title ?? tool.description.split("\n")[0], 140))), body);
  return details;
}

const wanted = el("input", { id: "find", type: "search", placeholder: "name or text", input: filter });
const list = el("div", { class: "tools" });
const aside = el("div", {});
const status = el("p", { class: "faint", role: "status" });
let entries = [];

function filter() {
  const text = wanted.value.trim().toLowerCase();
  let n = 0;
  for (const { tool, element } of entries) {
    element.hidden = Boolean(text) && !`${tool.rule_name} ${tool.description.slice(0, SMALL)}`.toLowerCase().includes(text);
    if (!element.hidden) n += 1;
  }
  status.textContent = entries.length ? `${n} of ${entries.length} tools` : "";
}

let before;
let loaded = false;
poll(async () => {
  let tools;
  let open;
  let figures;
  try {
    [tools, open, figures] = await Promise.all([ask("/v1/tools"), ask("/v1/approvals"), ask("/metrics")]);
  } catch (error) {
    if (!loaded) replace(screen, failure(error));
    throw error;
  }
  waiting(open.approvals.length);
  if (!loaded) replace(screen, el("form", { class: "filters", submit: (event) => event.preventDefault() }, el("label", { for: "find" }, "Find"), wanted), status, aside, list);
  loaded = true;
  ends = new Map();
  for (const { labels, value } of samples(figures, ["agentloop_calls_total"])) {
    if (!ends.has(labels.tool)) ends.set(labels.tool, new Map());
    ends.get(labels.tool).set(labels.outcome, value);
  }
  for (const region of list.querySelectorAll("[data-calls]")) drawPast(region);
  const now = JSON.stringify(tools);
  if (now === before) return;
  before = now;
  // An entry that did not change keeps what somebody typed into it.
  const known = new Map(entries.map((one) => [one.text, one]));
  entries = tools.tools.map((tool) => {
    const text = JSON.stringify(tool);
    return known.get(text) ?? { tool, text, element: entry(tool) };
  });
  replace(list, entries.length ? entries.map((one) => one.element) : el("div", { class: "empty" }, el("p", {}, "No tools."), el("p", { class: "faint" }, "Put components into a plugins folder; they appear here by themselves.")));
  replace(aside, tools.set_aside.length ? el("section", { class: "banner bad" }, el("h2", {}, "Set aside"), el("ul", {}, tools.set_aside.map((one) => el("li", {}, guestWord(one.what, 200), ": ", words(`${capital(one.why)}.`))))) : null);
  filter();
}, 4000);
