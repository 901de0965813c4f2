// Approvals: exactly what is asked for, by whom and why; and a person's word.
import { $, age, ask, capital, el, failure, guestBlock, json, poll, Problem, replace, shown, until, waiting, words } from "./kit.js";

/** A question as a card. `over` is told once it is no longer open here. */
export function card(question, over) {
  const name = `q-${question.id}`;
  const reason = el("input", { id: `${name}-reason`, type: "text", maxlength: 1000, autocomplete: "off" });
  const said = el("div", { class: "said", role: "status" });
  const inRun = question.run !== null && question.run !== undefined;
  let sending = false;
  const buttons = [];

  async function answer(verdict) {
    if (sending) return;
    sending = true;
    for (const button of buttons) button.disabled = true;
    replace(said, el("p", { class: "faint" }, "Sending…"));
    try {
      const text = reason.value.trim();
      const body = verdict === "deny" && text ? { verdict, reason: text } : { verdict };
      const decided = await ask(`/v1/approvals/${question.id}`, { body });
      const words = { once: "allowed once", run: "allowed for this run", always: "always allowed", deny: "denied", stop: "denied, and the run stopped" };
      const remembered = decided.remembered ? ` ${capital(decided.remembered)}.` : "";
      close("good", `${capital(words[verdict])}.${remembered}`);
    } catch (error) {
      if (error instanceof Problem && (error.status === 409 || error.status === 404)) return close("calm", `${capital(error.message)}.`);
      sending = false;
      for (const button of buttons) button.disabled = false;
      replace(said, failure(error), el("p", {}, "Nothing was answered; choose again."));
    }
  }

  function close(kind, text) {
    replace(said, el("p", { class: `banner ${kind}` }, words(text)));
    controls.remove();
    element.classList.add("over");
    // One more key must not answer the next question.
    if (element.contains(document.activeElement) || document.activeElement === document.body) element.focus();
    over(question.id);
  }

  const button = (verdict, label, key, kind) => {
    const made = el("button", { type: "button", class: kind, "data-verdict": verdict, click: () => answer(verdict) },
      label, key ? el("kbd", { "aria-hidden": "true" }, key) : null);
    buttons.push(made);
    return made;
  };

  const controls = el("div", { class: "controls" },
    el("div", { class: "choices", role: "group", "aria-label": "Allow" },
      button("once", "Allow once", "a", "primary"),
      inRun ? button("run", "Allow in this run", "r", "") : null,
      button("always", "Always allow", "w", "")),
    el("p", { class: "faint" }, "“Always” writes the rule ", el("code", {}, `allow ${question.rule_name}`),
      inRun ? "; “in this run” allows every later call of this tool in this run." : "."),
    el("form", { class: "deny", submit: (event) => { event.preventDefault(); answer("deny"); } },
      el("label", { for: reason.id }, "Reason (the model reads it)"), reason,
      el("div", { class: "choices", role: "group", "aria-label": "Deny" }, submitButton(), inRun ? button("stop", "Deny and stop the run", null, "danger") : null)));

  function submitButton() {
    const made = el("button", { type: "submit", class: "danger", "data-verdict": "deny" }, "Deny", el("kbd", { "aria-hidden": "true" }, "d"));
    buttons.push(made);
    return made;
  }

  const element = el("article", {
    class: "card question", id: name, tabindex: -1, "aria-labelledby": `${name}-h`,
    keydown: (event) => {
      if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.target === reason || sending) return;
      const verdict = { a: "once", r: inRun ? "run" : undefined, w: "always" }[event.key];
      if (verdict) { event.preventDefault(); answer(verdict); }
      if (event.key === "d") { event.preventDefault(); reason.focus(); }
    },
  },
    el("h2", { id: `${name}-h` }, "May ", el("code", {}, question.rule_name), " be called?"),
    el("dl", { class: "facts" },
      el("dt", {}, "Why it is asked"), el("dd", {}, words(capital(question.why))),
      el("dt", {}, "Asked by"), el("dd", {}, inRun ? el("a", { href: `/runs/${question.run}` }, `run ${question.run.slice(0, 8)}`) : "a client’s own call"),
      el("dt", {}, "Waiting since"), el("dd", {}, age(question.asked_ms)),
      el("dt", {}, "Counts as denied"), el("dd", {}, until(question.expires_ms)),
      el("dt", {}, "May touch"), el("dd", {}, question.may_touch.length ? el("ul", { class: "plain" }, question.may_touch.map((line) => el("li", {}, shown(line)))) : "nothing outside its sandbox"),
      question.digest ? [el("dt", {}, "Component"), el("dd", {}, el("code", { class: "digest" }, question.digest))] : null),
    guestBlock("Arguments, exactly as the tool would get them", json(question.arguments), { whole: true, kind: "exact" }),
    controls, said);
  return { element, answer };
}

/** Keeps cards for all open questions that `wanted` takes; those that were answered here stay until the page goes. */
export function inbox(region, wanted, empty) {
  const cards = new Map();
  const done = new Set();
  const answers = new Map();
  /** Allows exactly those that were there at the first press; the second press says so. */
  const all = el("div", { class: "choices", hidden: true });
  let meant = [];
  const offer = el("button", { type: "button", click: () => {
    meant = [...cards.keys()].filter((id) => !done.has(id));
    replace(all, el("button", { type: "button", class: "primary", click: allow }, `Yes, allow these ${meant.length} once`), el("button", { type: "button", class: "quiet", click: reset }, "No"));
    all.firstChild.focus();
  } });
  async function allow() {
    const ids = meant.filter((id) => !done.has(id));
    reset();
    for (const id of ids) await answers.get(id)("once");
  }
  function reset() {
    replace(all, offer);
  }
  reset();
  region.before(all);
  return {
    show(questions) {
      const open = questions.filter(wanted);
      const ids = new Set(open.map((question) => question.id));
      for (const [id, element] of cards) {
        if (ids.has(id) || done.has(id)) continue;
        element.querySelector(".controls")?.remove();
        element.querySelector(".said").replaceChildren(el("p", { class: "banner calm" }, "No longer waiting: somebody else answered, or the run ended."));
        element.classList.add("over");
        done.add(id);
      }
      for (const question of open) {
        if (cards.has(question.id)) continue;
        const { element, answer } = card(question, (id) => done.add(id));
        cards.set(question.id, element);
        answers.set(question.id, answer);
        region.append(element);
      }
      const n = open.filter((question) => !done.has(question.id)).length;
      if (empty) empty.hidden = n > 0;
      all.hidden = n < 2;
      offer.textContent = `Allow all ${n} once…`;
      return n;
    },
    /** Moves between open questions. */
    move(step) {
      const open = [...cards.values()].filter((element) => !element.classList.contains("over"));
      if (open.length === 0) return;
      const at = open.findIndex((element) => element.contains(document.activeElement));
      const to = at < 0 ? (step > 0 ? 0 : open.length - 1) : Math.max(0, Math.min(open.length - 1, at + step));
      open[to].focus();
      open[to].scrollIntoView({ block: "nearest" });
    },
  };
}

/** j and k go from question to question. */
export function keys(box) {
  document.addEventListener("keydown", (event) => {
    if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.("input, textarea, select")) return;
    if (event.key === "j") box.move(1);
    if (event.key === "k") box.move(-1);
  });
}

if (location.pathname === "/approvals") {
  const screen = $("screen");
  const empty = el("div", { class: "empty", hidden: true }, el("p", {}, "Nothing waits for a person."),
    el("p", { class: "faint" }, "A call comes here when a rule says “ask” for its tool, or when no rule says anything."));
  const cards = el("div", {});
  const region = el("div", {}, cards);
  const box = inbox(cards, () => true, empty);
  const status = el("p", { role: "status", class: "faint" });
  let loaded = false;
  poll(async () => {
    let open;
    try {
      open = (await ask("/v1/approvals")).approvals;
    } catch (error) {
      if (!loaded) replace(screen, failure(error));
      throw error;
    }
    if (!loaded) {
      loaded = true;
      replace(screen, el("p", { class: "faint keys" }, el("kbd", {}, "j"), " ", el("kbd", {}, "k"), " next and previous; then ",
        el("kbd", {}, "a"), " once, ", el("kbd", {}, "r"), " this run, ", el("kbd", {}, "w"), " always, ", el("kbd", {}, "d"), " deny"), status, empty, region);
    }
    const n = box.show(open);
    waiting(n);
    const line = n === 0 ? "" : `${n} waiting`;
    if (status.textContent !== line) status.textContent = line;
  }, 1500);
  keys(box);
}
