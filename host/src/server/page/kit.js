// What all screens share: elements, text of others, requests, and what becomes of a lost connection.
// Nothing here turns a string into markup: text stays text.

/** An element. `attributes` that are functions listen, those that are true or false are switches. */
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value === true) element.setAttribute(key, "");
    else element.setAttribute(key, String(value));
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

export const $ = (id) => document.getElementById(id);

// Controls, direction marks, separators, invisible and tag characters: what shows nothing, or something else.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

/** Text of a model, a tool or another person as nodes: what would be invisible or turn the line around is named. */
export function shown(text) {
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > from) nodes.push(text.slice(from, match.index));
    const name = `U+${match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    nodes.push(el("span", { class: "hidden-char" }, name));
    from = match.index + match[0].length;
  }
  if (from < text.length) nodes.push(text.slice(from));
  return nodes;
}

const LONG = 4000;

/** Cuts a long text where no surrogate pair is. */
function beginning(text, length) {
  const last = text.charCodeAt(length - 1);
  return text.slice(0, last >= 0xd800 && last < 0xdc00 ? length - 1 : length);
}

/** A block of somebody else's text, named by whom, apart from the host's own words. */
export function guestBlock(by, text, { whole = false, kind = "" } = {}) {
  const pre = el("pre", { tabindex: 0, "aria-label": by, role: "group" });
  const block = el("figure", { class: `guest ${kind}` }, el("figcaption", {}, by), pre);
  if (whole || text.length <= LONG) {
    pre.append(...shown(text));
  } else {
    pre.append(...shown(beginning(text, LONG)), "…");
    const more = el("button", {
      type: "button",
      class: "quiet",
      click: () => {
        pre.replaceChildren(...shown(text));
        more.remove();
        pre.focus();
      },
    }, `Show all ${text.length.toLocaleString("en")} characters`);
    block.append(more);
  }
  if (text === "") pre.append(el("span", { class: "faint" }, "(empty)"));
  return block;
}

/** A short piece of somebody else's text within a line of the host's. */
export function guestWord(text, max = 120) {
  const cut = text.length > max ? `${beginning(text, max)}…` : text;
  return el("bdi", { class: "guest-word" }, shown(cut));
}

/** The host's own sentence, with its `literals` set apart. What it quotes of others stays text. */
export function words(text) {
  return text.split("`").flatMap((part, i, all) => (i % 2 === 1 && i < all.length - 1 ? el("code", {}, shown(part)) : i % 2 === 1 ? shown(`\`${part}`) : shown(part)));
}

export const json = (value) => JSON.stringify(value, null, 2);

/** A problem, as the server tells it (RFC 9457). */
export class Problem extends Error {
  constructor(status, problem, retryAfter) {
    super(problem.detail ?? `the server answered ${status}`);
    this.status = status;
    this.code = problem.code ?? "";
    this.faults = problem.faults ?? [];
    this.retryAfter = retryAfter;
  }
}

function signIn() {
  location.assign(`/sign-in?to=${encodeURIComponent(location.pathname)}`);
}

async function refused(response) {
  if (response.status === 401) signIn();
  const problem = await response.json().catch(() => ({}));
  return new Problem(response.status, problem, response.headers.get("retry-after"));
}

/** A request to this server; a body makes it a POST. */
export async function ask(path, { body, method, signal, headers } = {}) {
  const response = await fetch(path, {
    method: method ?? (body === undefined ? "GET" : "POST"),
    headers: { ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await refused(response);
  const type = response.headers.get("content-type") ?? "";
  return type.startsWith("application/json") ? response.json() : response.text();
}

/** A failure in the host's words, with single faults where there are some. */
export function failure(error) {
  const text = error instanceof Problem ? error.message : "the server can’t be reached";
  const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  return el("div", { class: "banner bad", role: "alert" },
    el("p", {}, words(`${capital(text)}.${wait}`)),
    error.faults?.length ? el("ul", {}, error.faults.map((fault) => el("li", {}, guestWord(fault, 400)))) : null);
}

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1).replace(/\.$/, "");

/** Says that the connection is lost, or that it is back. */
export function lost(why) {
  const banner = $("lost");
  banner.hidden = !why;
  if (why && banner.textContent !== why) banner.textContent = why;
}

/** Asks again and again while somebody looks, less often while nobody answers. */
export function poll(work, every) {
  let timer;
  let failures = 0;
  const turn = async () => {
    clearTimeout(timer);
    if (document.visibilityState !== "hidden") {
      try {
        await work();
        if (failures) lost("");
        failures = 0;
      } catch (error) {
        failures += 1;
        if (!(error instanceof Problem)) lost("The connection to the server is lost. What you see may be old; trying again.");
        else lost(`${capital(error.message)}.`);
      }
    }
    timer = setTimeout(turn, Math.min(every * 2 ** failures, 30_000));
  };
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && turn());
  turn();
  return turn;
}

/** Server-sent events over fetch: any kind of event, resumed after the last one that arrived, with its place kept. */
export async function follow(path, { event, state, signal }) {
  let last;
  let failures = 0;
  while (!signal.aborted) {
    try {
      const headers = last === undefined ? {} : { "last-event-id": last };
      const response = await fetch(path, { headers, signal });
      if (response.status === 204) return;
      if (!response.ok) throw await refused(response);
      state("live");
      failures = 0;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const frames = (rest + value).split("\n\n");
        rest = frames.pop();
        for (const frame of frames) {
          const lines = frame.split("\n");
          const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
          const id = lines.find((line) => line.startsWith("id:"));
          if (data.length === 0) continue;
          event(JSON.parse(data.join("\n")));
          if (id) last = id.slice(3).trim();
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Problem && error.status < 500 && error.status !== 429) throw error;
      failures += 1;
      state("lost");
    }
    await new Promise((again) => setTimeout(again, Math.min(250 * 2 ** failures, 15_000) * (0.5 + Math.random() / 2)));
  }
}

export function span(ms) {
  if (ms < 1) return "under 1 ms";
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.floor((ms % 60_000) / 1000)} s`;
  if (ms < 86_400_000) return `${Math.floor(ms / 3_600_000)} h ${Math.floor((ms % 3_600_000) / 60_000)} min`;
  return `${Math.floor(ms / 86_400_000)} d ${Math.floor((ms % 86_400_000) / 3_600_000)} h`;
}

/** How long ago, and the moment itself for whoever hovers or asks. */
export function age(ms) {
  const ago = Math.max(0, Date.now() - ms);
  const at = new Date(ms);
  return el("time", { datetime: at.toISOString(), title: at.toLocaleString() }, ago < 5000 ? "just now" : `${span(ago)} ago`);
}

/** How long until then. */
export function until(ms) {
  const at = new Date(ms);
  return el("time", { datetime: at.toISOString(), title: at.toLocaleString() }, ms <= Date.now() ? "now" : `in ${span(ms - Date.now())}`);
}

export const count = (n) => (n === null || n === undefined ? "unknown" : n.toLocaleString("en"));

export function bytes(n) {
  if (n < 1024) return `${n} bytes`;
  return n < 1 << 20 ? `${(n / 1024).toFixed(0)} KiB` : `${(n / (1 << 20)).toFixed(0)} MiB`;
}

/** What kind of word an outcome or a state is: good, bad, waiting, going or neither. */
const KINDS = {
  ok: "good", completed: "good",
  running: "going", queued: "going", requested: "going",
  waiting: "wait",
  cancelled: "calm",
};
export const kindOf = (word) => KINDS[word] ?? "bad";

export function badge(word) {
  return el("strong", { class: `word ${kindOf(word)}` }, word.replaceAll("_", " "));
}

/** What a tool gave, piece by piece. Pictures are shown once they are asked for. */
export function contents(by, parts) {
  return parts.map((part) => {
    switch (part.type) {
      case "text": return guestBlock(by, part.text);
      case "json": return guestBlock(`${by}, structured`, json(part.value));
      case "image": return picture(by, part.media_type, part.data ?? part.base64 ?? "");
      case "audio": return guestBlock(`${by}, audio`, `${part.media_type}, ${bytes(Math.floor(part.data.length * 0.75))}`);
      case "resource": return guestBlock(`${by}, resource`, `${part.uri}\n${part.text ?? `(${part.media_type ?? "bytes"})`}`);
      default: return guestBlock(by, json(part));
    }
  });
}

function picture(by, type, data) {
  const figure = guestBlock(`${by}, picture`, `${type}, ${bytes(Math.floor(data.length * 0.75))}`);
  if (/^image\/(png|jpeg|gif|webp)$/.test(type) && /^[A-Za-z0-9+/=]*$/.test(data)) {
    const button = el("button", {
      type: "button",
      class: "quiet",
      click: () => button.replaceWith(el("img", { src: `data:${type};base64,${data}`, alt: `Picture from ${by}` })),
    }, "Show the picture");
    figure.append(button);
  }
  return figure;
}

/** The server's figures whose names are among these: name, labels by name, value. */
export function samples(text, names) {
  const found = [];
  for (const line of text.split("\n")) {
    const match = /^([a-z_]+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match || !names.includes(match[1])) continue;
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name, value]));
    found.push({ name: match[1], labels, value: Number(match[3]) });
  }
  return found;
}

/** Tokens in and out. What came from a cache is among those that went in. */
export function tokens(usage) {
  if (usage.input === null && usage.output === null) return "unknown";
  const input = usage.input === null ? null : usage.input + (usage.cache_read ?? 0) + (usage.cache_write ?? 0);
  return `${count(input)} / ${count(usage.output)}`;
}

/** How many approvals wait, in the navigation and in the title, on every screen. */
const title = document.title;
export function waiting(n) {
  const mark = $("waiting");
  if (!mark) return;
  mark.hidden = n === 0;
  mark.textContent = n === 0 ? "" : String(n);
  mark.setAttribute("aria-label", `${n} waiting`);
  document.title = n === 0 ? title : `(${n}) ${title}`;
}

/** Replaces what a region shows, unless it would show the same. */
export function replace(region, ...children) {
  region.replaceChildren(...children.flat().filter(Boolean));
}
