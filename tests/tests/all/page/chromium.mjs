// A person's way through the page in a real Chromium. Prints what it does; `release` lets the test's tools go on.
import { createRequire } from "node:module";
import { readFileSync, mkdirSync } from "node:fs";
import assert from "node:assert/strict";

const { NODE_MODULES, OPEN, LOCKED, TOKEN, PROFILE, PICTURES, CHROMIUM = "/usr/bin/chromium" } = process.env;
const require = createRequire(`${NODE_MODULES}/`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath: CHROMIUM, args, env: { ...process.env, HOME: PROFILE } });
if (PICTURES) mkdirSync(PICTURES, { recursive: true });

const LOOKS = [[390, 844, "light"], [390, 844, "dark"], [1280, 800, "light"], [1280, 800, "dark"]];
// Only axe needs the policy out of its way; everything else happens under it.
const looks = [];
for (const [width, height, colorScheme] of LOOKS) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme, bypassCSP: true, reducedMotion: "reduce" });
  looks.push([`${width}-${colorScheme}`, await context.newPage()]);
}

const faults = [];

/** Each look of a screen: what axe finds, what is wider than the screen, and a picture. */
async function look(name, url, ready, prepare = async () => {}) {
  for (const [how, page] of looks) {
    await page.goto(url);
    await page.locator(ready).first().waitFor();
    await prepare(page);
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => globalThis.axe.run());
    for (const { id, help, nodes } of violations) faults.push(`${name} ${how}: ${id}: ${help}: ${nodes.map((node) => node.html).join("  ").slice(0, 600)}`);
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    if (wider > 0) faults.push(`${name} ${how} is ${wider} px too wide`);
    if (PICTURES) await page.screenshot({ path: `${PICTURES}/${name}-${how}.png`, fullPage: name !== "run-long" });
  }
  console.log(`looked at ${name}`);
}

const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
const page = await context.newPage();
page.setDefaultTimeout(20_000);
const complaints = [];
page.on("console", (message) => { if (message.type() === "error" || message.type() === "warning") complaints.push(message.text()); });
page.on("pageerror", (error) => complaints.push(String(error)));
page.on("dialog", (dialog) => { complaints.push(`a dialog: ${dialog.message()}`); dialog.dismiss(); });
const quiet = (what) => { assert.deepEqual(complaints, [], what); };

// Nothing yet.
await look("runs-empty", `${OPEN}/`, "text=No runs yet");
await look("approvals-empty", `${OPEN}/approvals`, "text=Nothing waits for a person");
await look("begin", `${OPEN}/begin`, "#prompt");

// Start a run, from the keyboard alone.
await page.goto(`${OPEN}/`);
await page.locator("text=No runs yet").waitFor();
await page.keyboard.press("Tab");
assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
await page.goto(`${OPEN}/begin`);
await page.locator("#prompt").waitFor();
await page.keyboard.type("Meet, then echo twice.");
await page.keyboard.press("Control+Enter");
await page.waitForURL(/\/runs\/[0-9a-f]{32}$/);
const runUrl = page.url();
console.log("started a run");

// Two calls side by side.
await page.waitForFunction(() => [...document.querySelectorAll("details.lane .word")].filter((word) => word.textContent === "running").length === 2);
const bars = await page.locator(".lane .bar.ran").evaluateAll((all) => all.map((bar) => bar.getBoundingClientRect()).map(({ left, right, top }) => ({ left, right, top })));
assert.equal(bars.length, 2);
assert.ok(bars[0].left < bars[1].right && bars[1].left < bars[0].right, "they overlap in time");
assert.notEqual(bars[0].top, bars[1].top);
await look("run-live", runUrl, "details.lane");
await page.locator("h1 .guest-word").waitFor();
console.log("release");

// Both echoes wait, on the run's own page and among the approvals.
await page.locator(".question").nth(1).waitFor();
await page.waitForFunction(() => document.querySelector("#state").textContent === "waiting");
await look("run-waiting", runUrl, ".question");
await look("approvals", `${OPEN}/approvals`, ".question");
await page.goto(`${OPEN}/approvals`);
await page.locator(".question").nth(1).waitFor();
assert.match(await page.title(), /^\(2\) /);
// Both are asked at once, so that either can stand first.
const first = page.locator(".question", { hasText: "<img src" });
const second = page.locator(".question", { hasText: "the second" });
const isFocused = (card) => card.evaluate((element) => element === document.activeElement);
const exact = await first.locator(".exact pre").textContent();
assert.ok(exact.includes("<img src=x onerror="), exact);
for (const name of ["U+202E", "U+2066", "U+200B", "U+E0041"]) assert.ok(exact.includes(name), `${name} in ${exact}`);
await page.keyboard.press("j");
if (await isFocused(second)) await page.keyboard.press("j");
assert.ok(await isFocused(first));
await page.keyboard.press("a");
await first.locator("text=Allowed once").waitFor();
// One more key is no answer to the next question.
await page.keyboard.press("a");
assert.equal(await second.locator("button[data-verdict=once]").isEnabled(), true);
await page.keyboard.press("j");
assert.ok(await isFocused(second));
await page.keyboard.press("d");
await page.keyboard.type("not this one");
await page.keyboard.press("Enter");
await second.locator(".banner", { hasText: "Denied" }).waitFor();
console.log("answered both");

// The outcome, with nothing changed by what the guest gave back.
async function unharmed(where) {
  const harm = await page.evaluate(() => ({
    owned: window.owned, title: document.title, element: document.getElementById("owned"),
    images: document.querySelectorAll("main img").length, scripts: document.scripts.length,
    links: [...document.querySelectorAll("a")].filter((a) => a.protocol === "javascript:").length,
    raw: /[\u001b\u009b\u202e\u2066\u200b]/.test(document.body.textContent),
  }));
  assert.equal(harm.owned, undefined, where);
  assert.ok(!harm.title.includes("owned"), where);
  assert.equal(harm.element, null, where);
  assert.deepEqual([harm.images, harm.scripts, harm.links, harm.raw], [0, 1, 0, false], where);
}
await page.goto(runUrl);
await page.waitForFunction(() => document.querySelector("#state")?.textContent === "completed");
await page.locator("text=Open all calls").click();
const words = await page.locator("details.lane .word").allTextContents();
assert.deepEqual(words, ["ok", "ok", "ok", "denied"]);
await page.locator("details.lane").nth(3).locator("text=not this one").first().waitFor();
const given = await page.locator("details.lane").nth(2).textContent();
for (const part of ["<script>window.owned=1</script>", "U+001B", "U+009B", "U+202E", "waited", "ran"]) assert.ok(given.includes(part), part);
for (const summary of await page.locator(".talk summary").all()) await summary.click();
await unharmed("run");
await page.locator("text=Events as they came").click();
await unharmed("raw events");
await look("run-done", runUrl, ".talk .guest.model", async (page) => { await page.locator("text=Open all calls").click(); });
quiet("the run");

// Say more.
await page.locator("#say").fill("And now?");
await page.locator("text=Send").click();
await page.locator(".talk >> text=And more.").waitFor();
console.log("continued it");

// One that fails, a long one, one that is cancelled.
async function begin(prompt) {
  await page.goto(`${OPEN}/begin`);
  await page.locator("#prompt").fill(prompt);
  await page.locator("button.primary").click();
  await page.waitForURL(/\/runs\/[0-9a-f]{32}$/);
  return page.url();
}
const failed = await begin("This one fails.");
await page.waitForFunction(() => document.querySelector("#state")?.textContent === "failed");
await unharmed("failed");
await look("run-failed", failed, ".banner.bad:visible");
const long = await begin("This one says much.");
await page.locator("text=/Show all [0-9,]+ characters/").waitFor();
await look("run-long", long, "text=/Show all [0-9,]+ characters/");
await page.locator("text=/Show all [0-9,]+ characters/").click();
await begin("This one is stopped.");
await page.locator("text=Cancel the run").click();
await page.waitForFunction(() => document.querySelector("#state")?.textContent === "cancelled");
console.log("cancelled one");
quiet("three runs");

// The list, its filter, its states.
await look("runs", `${OPEN}/`, "table tbody tr");
await page.goto(`${OPEN}/`);
await page.locator("tbody tr").nth(3).waitFor();
await page.locator("#text").fill("fails");
assert.equal(await page.locator("tbody tr").count(), 1);
await page.locator("#text").fill("");
await page.locator("#state").selectOption("completed");
await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 2);
await page.locator("#state").selectOption("time_limit");
await page.locator("text=No run is in the state").waitFor();

// Tools, and one tried.
await look("tools", `${OPEN}/tools`, "details.tool", async (page) => {
  await page.locator("details.tool summary", { hasText: "echo.echo" }).click();
  await page.locator("text=It asks for").first().waitFor();
});
await page.goto(`${OPEN}/tools`);
const shout = page.locator("details.tool", { hasText: "host.shout" });
await shout.locator("summary").first().click();
await shout.getByLabel("text string, required").fill("<b>hé</b>");
await shout.locator("text=Call it").click();
await shout.locator(".answer .word.good").waitFor();
assert.ok((await shout.locator(".answer pre").textContent()).includes("<B>HÉ</B>"));
await unharmed("tools");

// Several at once: exactly those that were there, in two presses.
await begin("Ask for two.");
await page.locator("text=Allow all 2 once…").click();
await page.locator("text=Yes, allow these 2 once").click();
await page.waitForFunction(() => document.querySelector("#state")?.textContent === "completed");
assert.deepEqual(await page.locator("details.lane .word").allTextContents(), ["ok", "ok"]);
quiet("two at once");

// Settings and health.
await look("settings", `${OPEN}/settings`, ".figures dd");
await page.goto(`${OPEN}/settings`);
await page.locator("#ready >> text=ok").waitFor();
await page.locator("text=./agentloop.toml").waitFor();
quiet("settings");

// A run that there is not, and a connection that is lost and found.
await look("run-unknown", `${OPEN}/runs/0123`, "text=There is no such run");
await page.goto(`${OPEN}/`);
await page.locator("tbody tr").first().waitFor();
await context.setOffline(true);
await page.locator("#lost:visible").waitFor();
assert.equal(await page.locator("tbody tr").first().isVisible(), true);
await context.setOffline(false);
await page.locator("#lost").waitFor({ state: "hidden" });
complaints.length = 0;
console.log("lost and found the connection");

// Signing in.
await look("sign-in", `${LOCKED}/`, "#token");
await page.goto(`${LOCKED}/approvals`);
assert.equal(new URL(page.url()).pathname, "/sign-in");
await page.keyboard.type("wrong");
await page.keyboard.press("Enter");
await page.locator("text=not the server").waitFor();
complaints.length = 0;
await page.locator("#token").fill(TOKEN);
await page.keyboard.press("Enter");
await page.locator("text=Nothing waits for a person").waitFor();
assert.equal(new URL(page.url()).pathname, "/approvals");
assert.equal(await page.evaluate(() => document.cookie), "");
// What changes something takes the session too: there is no model here, and it says so.
await page.goto(`${LOCKED}/begin`);
await page.locator("#prompt").fill("hi");
await page.locator("button.primary").click();
await page.locator("text=No model is named").waitFor();
complaints.length = 0;
await page.locator("text=Sign out").click();
await page.locator("#token").waitFor();
await page.goto(`${LOCKED}/`);
assert.equal(new URL(page.url()).pathname, "/sign-in");
quiet("signing in");
assert.deepEqual(faults, []);
await browser.close();
console.log("all is well");
