// Deletes of one thing are done after ten seconds, and can be undone until then: forms with data-delayed. What waits is kept
// for the tab, so that it waits on other pages as well; a tab that is closed before deletes nothing.
// Without this module the form is sent at once.
import { toast } from "./toasts.js";

const KEY = "headgate-delayed";
const WAIT_MS = 10000;

const read = () => JSON.parse(sessionStorage.getItem(KEY) || "[]");
const keep = (waiting) => sessionStorage.setItem(KEY, JSON.stringify(waiting));
const take = (id) => {
  const waiting = read();
  keep(waiting.filter((one) => one.id !== id));
  return waiting.find((one) => one.id === id);
};

function follow(one) {
  const left = Math.max(0, one.at - Date.now());
  const message = toast(one.text, "info", () => { if (take(one.id)) toast("Nothing was deleted.", "ok"); }, left);
  setTimeout(() => {
    if (!take(one.id)) return;
    message?.remove();
    // As if from the page where the answer leads: the reader stays on this one, and gets a message.
    const headers = { "HX-Current-URL": new URL(one.leads, window.location.href).href };
    window.htmx.ajax("POST", one.action, { source: document.body, swap: "none", values: one.values, headers });
  }, left);
}

// Holds the form back. `leads`: the page to go on with, as that of the thing is about to vanish.
export function delay(form) {
  const { delayed, leads } = form.dataset;
  const values = Object.fromEntries(new FormData(form));
  delete values.csrf; // that of the page which sends it
  const one = { id: String(Math.random()), at: Date.now() + WAIT_MS, text: delayed, leads, action: form.getAttribute("action"), values };
  keep([...read(), one]);
  window.location.assign(leads);
}

export function startDelayed() {
  for (const one of read()) follow(one);
}
