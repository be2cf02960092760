// Parts of a page that read themselves again when something has changed:
//   <section id="jobs" data-live="jobs topics" hx-get="/ui/jobs" hx-trigger="hg:refresh" hx-swap="morph:outerHTML">
// The server sends hints (hints.js). A part is read by htmx as always; here is decided when, and whether it is shown:
// never in a hidden tab, behind a dialog or a menu, or while a button is pressed, and not while rows are selected or would
// move under the pointer.
import { dialogIsOpen } from "./dialogs.js";
import { followHints } from "./hints.js";

// Which parts a hint concerns. Names that are not here (job:ID) are refreshed by actions only.
const PARTS = {
  jobs: ["jobs", "topics", "dead", "schedules", "batches", "webhooks", "overview", "start"],
  settings: ["settings", "topics", "schedules", "webhooks", "audit", "access", "overview"],
  workers: ["workers", "topics", "overview", "start", "system"],
  operations: ["operations"],
  mode: ["*"], // all of them: their buttons come and go
};
const GAP_MS = 1000; // between two rounds of reading; at most two requests a second, and more for slow parts
// A part that took t is read again after this times t at the earliest. With t up to 300 ms, hints twice a second and
// GAP_MS, a change is shown within 2 s, also right after another one.
const SLOWER = 3;
const GAP_MAX_MS = 10000;
const LOOK_MS = 400; // how often it is checked whether a dialog is closed

const stale = new Set(); // names of parts that have changed since they were read
const hinted = new Set(); // ids of parts that are being read because of a hint, not of an action
const shownTags = new Map(); // by the id of a part: the ETag of what it shows
let nextRound = 0;
let timer = 0;
let forced = false; // by an action of this page: shown whatever is selected
let held = 0; // new rows that are not shown

const isOff = () => document.documentElement.dataset.live === "off";
const parts = () => [...document.querySelectorAll("[data-live][hx-get]")];
const names = (part) => part.dataset.live.split(" ");
const menuIsOpen = () => document.querySelector("details.account[open], details.menu-toggle[open], details.menu[open]");
const selected = () => document.querySelector('input[name="id"][type="checkbox"]:checked');
const rowsOf = (root) => [...root.querySelectorAll("[data-rows] tbody .row-link")].map((link) => link.getAttribute("href"));

// What the rows say, without their times, which change by themselves.
function textOf(root) {
  const rows = [...root.querySelectorAll("[data-rows] tbody tr")].map((row) => row.cloneNode(true));
  for (const row of rows) for (const time of row.querySelectorAll("time")) time.textContent = "";
  return rows.map((row) => row.textContent.replace(/\s+/g, " ")).join("\n");
}

// Between press and release nothing may move or be replaced: the click would be lost, or hit something else.
const isPressed = () => document.querySelector(":active");

function resting() {
  return document.hidden || dialogIsOpen() || menuIsOpen() || isPressed();
}

function typing(part) {
  const focus = document.activeElement;
  return part.contains(focus) && focus.matches("input:not([type=checkbox]), textarea, select");
}

// Read the parts with these names again now: what an action of this page has changed.
export function refresh(what = "") {
  const wanted = what.split(" ").filter(Boolean);
  forced = true;
  for (const part of parts()) {
    if (wanted.length && !wanted.some((name) => names(part).includes(name))) continue;
    hinted.delete(part.id);
    read(part);
  }
  setTimeout(() => { forced = false; }, 2000);
}

function read(part) {
  part.dataset.asked = String(performance.now());
  part.dispatchEvent(new CustomEvent("hg:refresh"));
}

function changed(kinds) {
  for (const kind of kinds) for (const name of PARTS[kind] ?? [kind]) stale.add(name);
  plan();
}

function plan() {
  if (timer || !stale.size) return;
  const wait = resting() ? LOOK_MS : Math.max(0, nextRound - performance.now());
  timer = setTimeout(() => { timer = 0; round(); }, wait);
}

function round() {
  if (document.hidden) return; // comes back with visibilitychange
  if (resting()) return plan();
  const due = parts().filter((part) => (stale.has("*") || names(part).some((name) => stale.has(name))) && !typing(part));
  stale.clear();
  nextRound = performance.now() + Math.max(GAP_MS, 500 * due.length);
  for (const part of due) {
    hinted.add(part.id);
    read(part);
  }
}

function offer(count) {
  held = count;
  const button = document.getElementById("live-new");
  if (!button) return;
  button.hidden = count === null;
  if (count !== null) button.textContent = count ? `${count.toLocaleString("en")} new · click to show` : "Changed · click to show";
}

// Whether what was read may be shown; else it is offered.
function mayShow(part, text) {
  if (forced) return true;
  const picked = selected();
  const table = part.querySelector("[data-rows] tbody");
  if (!picked && !table?.matches(":hover")) return true;
  const before = rowsOf(part);
  const read = new DOMParser().parseFromString(text, "text/html");
  const after = rowsOf(read);
  const same = before.join() === after.join();
  if (!picked && same) return true; // none of them moves
  // Rows that say what they said before are no news. The first answer has no tag to compare it with.
  if (!same || textOf(part) !== textOf(read)) offer(after.filter((row) => !before.includes(row)).length);
  return false;
}

// The page remembers what it shows, not the browser: no part is kept on disk (Cache-Control: no-store).
function askIfChanged(event) {
  const { elt, headers } = event.detail;
  const tag = elt.matches("[data-live][hx-get]") ? shownTags.get(elt.id) : null;
  if (tag) headers["If-None-Match"] = tag;
}

function beforeSwap(event) {
  const { target, xhr, serverResponse } = event.detail;
  const part = target.closest("[data-live]");
  if (!part || part !== target) return;
  const took = performance.now() - Number(part.dataset.asked || 0);
  nextRound = Math.max(nextRound, performance.now() + Math.min(GAP_MAX_MS, SLOWER * took));
  const tag = xhr.getResponseHeader("etag");
  const byHint = hinted.delete(part.id);
  if (byHint && isOff()) {
    event.detail.shouldSwap = false; // switched off while the answer was on its way
  } else if (tag && shownTags.get(part.id) === tag) {
    event.detail.shouldSwap = false;
  } else if (event.detail.shouldSwap && !forced && (resting() || typing(part))) {
    // A menu was opened while the answer was on its way, and would be closed by it: the part is read again later. The
    // same for a button that is pressed.
    event.detail.shouldSwap = false;
    for (const name of names(part)) stale.add(name);
    plan();
  } else if (event.detail.shouldSwap && !mayShow(part, serverResponse)) {
    event.detail.shouldSwap = false;
  } else {
    if (tag) shownTags.set(part.id, tag);
    offer(null);
  }
}

// Every part that is read says whether the database takes writes.
function showMode(event) {
  const banner = document.getElementById("read-only");
  const mode = event.detail.xhr.getResponseHeader("hg-read-only");
  if (banner && mode !== null) banner.hidden = mode !== "1";
}

async function keepMode(mode) {
  document.documentElement.dataset.live = mode;
  const body = new URLSearchParams({ live: mode, csrf: document.querySelector('meta[name="csrf"]').content });
  await fetch(`${document.documentElement.dataset.ui}/preferences`, { method: "POST", body, headers: { "HX-Request": "true" } });
}

function showState(state, text) {
  const place = document.getElementById("live-state");
  if (!place) return;
  place.dataset.state = state;
  if (place.textContent !== text) place.textContent = text;
  place.title = text;
}

export function startLive() {
  document.body.addEventListener("hg:changed", (event) => refresh(event.detail.what));
  document.body.addEventListener("htmx:configRequest", askIfChanged);
  document.body.addEventListener("htmx:beforeSwap", beforeSwap);
  document.body.addEventListener("htmx:afterRequest", showMode);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) plan(); });
  document.getElementById("live-new")?.addEventListener("click", () => { offer(null); refresh(); });
  const hints = followHints({ changed, showState, wanted: () => parts().length > 0 });
  const choice = document.getElementById("live-mode");
  choice?.addEventListener("change", () => {
    const wasOff = isOff();
    keepMode(choice.value);
    if (isOff()) {
      stale.clear();
      clearTimeout(timer);
      timer = 0;
    }
    hints.restart();
    if (wasOff) changed(["mode"]); // an answer may have been dropped
  });
}
