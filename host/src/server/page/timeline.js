// A run's events as turns and calls, and these as a timeline: a row for each call, all rows of a turn on one axis.
import { badge, contents, count, el, guestBlock, guestWord, json, kindOf, replace, span, words } from "./kit.js";

/** The state of a run as far as its events tell. */
export class Story {
  turns = [];
  notes = [];
  ended = null;
  model = "";
  #byId = new Map();
  #calls = 0;

  get turn() {
    if (this.turns.length === 0) this.#begin({ turn: 0, ts: Date.now() });
    return this.turns.at(-1);
  }

  #begin(event) {
    this.turns.push({ key: this.turns.length, number: event.turn, begun: event.ts, text: "", reasoning: "", naming: [], retries: [], calls: [], changed: true });
  }

  #call(event) {
    let call = this.#byId.get(event.id);
    if (!call) {
      call = { key: this.#calls++, id: event.id, tool: event.tool ?? "", turn: this.turn, asked: event.ts, logs: [], waits: [], changed: true };
      this.#byId.set(event.id, call);
      this.turn.calls.push(call);
    }
    call.turn.changed = true;
    call.changed = true;
    return call;
  }

  /** Takes in one event. */
  add(event) {
    switch (event.type) {
      case "run_started":
        this.model = event.model;
        this.ended = null;
        this.#byId.clear();
        break;
      case "turn_started": this.#begin(event); break;
      case "text_streamed": this.turn.text += event.text; break;
      case "reasoning_streamed": this.turn.reasoning += event.text; break;
      case "tool_use_streamed": this.turn.naming.push(event.name); break;
      case "model_retried": this.turn.retries.push(event); break;
      case "turn_ended":
        this.turn.answered = event.ts;
        this.turn.stopReason = event.stop_reason;
        this.turn.usage = event.usage;
        break;
      case "call_requested": {
        const call = this.#call(event);
        call.tool = event.tool;
        call.input = event.input;
        break;
      }
      case "approval_requested": {
        const call = this.#call(event);
        call.why = event.why;
        call.waits.push({ kind: "person", from: event.ts });
        break;
      }
      case "approval_answered": {
        const call = this.#call(event);
        this.#endWait(call, event.ts);
        call.verdict = { allowed: event.allowed, reason: event.reason };
        break;
      }
      case "call_queued": {
        const call = this.#call(event);
        call.waits.push({ kind: "queue", from: event.ts });
        break;
      }
      case "call_started": {
        const call = this.#call(event);
        this.#endWait(call, event.ts);
        call.started = event.ts;
        break;
      }
      case "call_progressed": this.#call(event).progress = event; break;
      case "call_logged": this.#call(event).logs.push(event); break;
      case "call_ended": {
        const call = this.#call(event);
        this.#endWait(call, event.ts);
        Object.assign(call, { tool: event.tool || call.tool, ended: event.ts, outcome: event.outcome, ran: event.ran_ms, result: event.result });
        break;
      }
      case "output_cut": this.#call(event).whole = event.whole; break;
      case "noted": this.notes.push(event); break;
      case "run_ended": this.ended = event; break;
      case "run_continued": this.ended = null; break;
    }
    if (this.turns.length) this.turn.changed = true;
  }

  #endWait(call, ts) {
    const wait = call.waits.at(-1);
    if (wait && wait.to === undefined) wait.to = ts;
  }
}

/** One word for where a call is. */
function stateOf(call) {
  if (call.outcome) return call.outcome;
  const wait = call.waits.at(-1);
  if (wait && wait.to === undefined) return wait.kind === "person" ? "waiting" : "queued";
  return call.started === undefined ? "requested" : "running";
}

/** The same in a sentence: what it waited for, how long it ran. */
function sentence(call, now) {
  const parts = [];
  for (const wait of call.waits) {
    const time = span((wait.to ?? now) - wait.from);
    const what = wait.kind === "person" ? "for a person" : "in the queue";
    parts.push(wait.to === undefined ? `has waited ${what} for ${time}` : `waited ${time} ${what}`);
  }
  if (call.verdict && !call.verdict.allowed) parts.push("a person denied it");
  if (call.ran !== undefined && call.ran !== null) parts.push(`ran ${span(call.ran)}`);
  else if (call.started !== undefined && call.ended === undefined) parts.push(`has run ${span(now - call.started)}`);
  else if (call.ended !== undefined) parts.push("never ran");
  if (call.progress && call.ended === undefined) {
    const { done, total } = call.progress;
    parts.push(total ? `${Math.round((done / total) * 100)} % done` : `${done} done`);
  }
  return parts.join(", ");
}

/** Draws a story, and only what changed of it. */
export class Timeline {
  #turns = new Map();
  constructor(region, story) {
    this.region = region;
    this.story = story;
    this.list = el("ol", { class: "turns" });
    region.replaceChildren(this.list);
  }

  draw(now = Date.now()) {
    for (const turn of this.story.turns) {
      const isLive = !this.story.ended && (turn === this.story.turn || turn.calls.some((call) => !call.outcome));
      if (!turn.changed && !isLive) continue;
      turn.changed = false;
      let drawn = this.#turns.get(turn.key);
      if (!drawn) {
        drawn = new Turn(turn, this.story);
        this.#turns.set(turn.key, drawn);
        this.list.append(drawn.element);
        // So many that not all should be laid out.
        if (this.#turns.size === 50) this.list.classList.add("many");
      }
      drawn.draw(now);
    }
  }

  openAll(open) {
    for (const details of this.region.querySelectorAll("details.lane")) details.open = open;
  }
}

class Turn {
  #lanes = new Map();
  constructor(turn, story) {
    this.turn = turn;
    this.story = story;
    this.head = el("p", { class: "turn-facts" });
    this.model = el("div", { class: "lane model" });
    this.bar = el("span", { class: "bar model" });
    this.modelWord = el("span", { class: "lane-word" });
    this.model.append(el("span", { class: "lane-name" }, "model"), el("span", { class: "track" }, this.bar), this.modelWord);
    this.lanes = el("div", { class: "lanes" });
    this.element = el("li", { class: "turn" }, el("h3", {}, `Turn ${turn.number + 1}`), this.head, this.model, this.lanes);
  }

  draw(now) {
    const { turn, story } = this;
    const isOver = Boolean(story.ended) || turn !== story.turn;
    const ends = [turn.answered, ...turn.calls.map((call) => call.ended)].filter((ts) => ts !== undefined);
    const isRunning = !story.ended && (turn.answered === undefined || turn.calls.some((call) => call.ended === undefined)) && !(isOver && turn.calls.every((call) => call.ended));
    const last = ends.length ? Math.max(...ends) : story.ended?.ts ?? turn.begun;
    const to = isRunning ? Math.max(now, last) : last;
    const scale = { from: turn.begun, length: Math.max(1, to - turn.begun) };
    const retry = turn.retries.at(-1);
    const retries = turn.retries.length;
    const facts = [
      `${span(to - turn.begun)} in all`,
      turn.usage ? `${count(turn.usage.input)} tokens in, ${count(turn.usage.output)} out` : null,
      turn.stopReason ? `ended with ${turn.stopReason}` : null,
      retries ? `asked again ${retries} time${retries === 1 ? "" : "s"}` : null,
    ];
    replace(this.head, facts.filter(Boolean).join(" · "), retry && turn.answered === undefined ? el("span", {}, ": ", guestWord(retry.error, 200)) : null);
    const answered = turn.answered ?? (isRunning ? to : last);
    place(this.bar, scale, turn.begun, answered);
    this.modelWord.textContent = turn.answered !== undefined ? span(turn.answered - turn.begun)
      : story.ended ? "broke off"
      : turn.naming.length ? "asking for calls…" : turn.text ? "writing…" : turn.reasoning ? "thinking…" : retry ? "waiting to ask again…" : "waiting for the first token…";
    for (const call of turn.calls) {
      let lane = this.#lanes.get(call.key);
      if (!lane) {
        lane = new Lane(call);
        this.#lanes.set(call.key, lane);
        this.lanes.append(lane.element);
      }
      lane.draw(scale, now, story.ended);
    }
  }
}

function place(bar, scale, from, to) {
  const start = Math.min(1, Math.max(0, (from - scale.from) / scale.length));
  const end = Math.min(1, Math.max(start, (to - scale.from) / scale.length));
  bar.style.setProperty("--from", `${(start * 100).toFixed(2)}%`);
  bar.style.setProperty("--length", `${((end - start) * 100).toFixed(2)}%`);
}

class Lane {
  constructor(call) {
    this.call = call;
    this.name = el("span", { class: "lane-name" });
    this.track = el("span", { class: "track" });
    this.word = el("span", { class: "lane-word" });
    this.line = el("span", { class: "lane-line" });
    this.body = el("div", { class: "lane-body" });
    this.element = el("details", { class: "lane", toggle: () => this.fill() },
      el("summary", {}, this.name, this.track, this.word, this.line), this.body);
  }

  draw(scale, now, over) {
    const { call } = this;
    const end = call.ended ?? over?.ts ?? now;
    const bars = call.waits.map((wait) => [wait.kind, wait.from, wait.to ?? end]);
    if (call.started !== undefined) bars.push([`ran ${call.outcome ? kindOf(call.outcome) : "going"}`, call.started, end]);
    else if (call.ended !== undefined) bars.push([`never ${kindOf(call.outcome)}`, call.ended, call.ended]);
    while (this.track.children.length > bars.length) this.track.lastChild.remove();
    bars.forEach(([kind, from, to], i) => {
      const bar = this.track.children[i] ?? this.track.appendChild(el("span"));
      bar.className = `bar ${kind}`;
      place(bar, scale, from, to);
    });
    this.line.textContent = sentence(call, over ? end : now);
    if (call.changed) {
      call.changed = false;
      replace(this.name, guestWord(call.tool, 80));
      replace(this.word, badge(stateOf(call)));
      this.fill();
    }
  }

  /** What is within is made once somebody looks. */
  fill() {
    if (!this.element.open) return;
    const { call } = this;
    const { verdict } = call;
    replace(this.body,
      el("dl", { class: "facts" },
        el("dt", {}, "Call"), el("dd", {}, guestWord(call.id, 80)),
        call.why ? [el("dt", {}, "Asked because"), el("dd", {}, words(call.why))] : null,
        verdict ? [el("dt", {}, "A person"), el("dd", {}, verdict.allowed ? "allowed it" : "denied it", verdict.reason ? [": ", guestWord(verdict.reason, 4000)] : null)] : null),
      guestBlock("Arguments, from the model", json(call.input ?? {})),
      call.logs.length ? guestBlock("Log, from the tool", call.logs.map((line) => `${line.level}: ${line.text}`).join("\n")) : null,
      call.progress?.message ? guestBlock("Progress, from the tool", call.progress.message) : null,
      call.result ? contents(call.result.is_error ? "What the model was told" : "Result, from the tool", call.result.content) : el("p", { class: "faint" }, "No result yet."),
      call.whole ? guestBlock("The whole output; the model got less", call.whole) : null);
  }
}
