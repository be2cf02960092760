// A job beside the list of jobs. Space, or the button in a row, shows it; moving to another row shows that one; Esc closes it.
// The list stays where it is, and stays live. Without this module a row is opened by its link.
import { currentRow, shortcut } from "./keyboard.js";

const WAIT_MS = 150; // j and k that are held down read no jobs in between
const drawer = () => document.getElementById("preview");
const body = () => drawer().querySelector("[data-preview-body]");
const isOpen = () => drawer() && !drawer().hidden;
let shown = ""; // the address of the preview
let opener = null; // what gets the focus back
let timer = 0;

function mark() {
  for (const button of document.querySelectorAll("[data-preview]")) {
    const isShown = isOpen() && button.dataset.preview === shown;
    button.setAttribute("aria-expanded", String(isShown));
    button.closest("tr").classList.toggle("is-previewed", isShown);
  }
}

async function show(button) {
  shown = button.dataset.preview;
  drawer().hidden = false;
  mark();
  const asked = shown;
  const place = document.createElement("div");
  place.append(document.createElement("div"));
  place.hidden = true; // what is shown stays until the other is there, and its buttons work
  body().append(place);
  await window.htmx.ajax("GET", asked, { target: place.firstElementChild, swap: "outerHTML" });
  if (asked !== shown) return place.remove();
  place.hidden = false;
  body().replaceChildren(place);
  const title = drawer().querySelector("h2")?.textContent ?? "";
  const state = drawer().querySelector(".state")?.textContent ?? "";
  document.getElementById("preview-status").textContent = `Preview: ${title}, ${state}`;
  return undefined;
}

function close() {
  if (!isOpen()) return;
  drawer().hidden = true;
  shown = "";
  document.getElementById("preview-status").textContent = "";
  body().replaceChildren();
  mark();
  if (opener?.isConnected) opener.focus({ preventScroll: true });
}

function toggle(button, from) {
  if (isOpen() && shown === button.dataset.preview) return close();
  opener = from;
  return show(button);
}

export function startPreview() {
  if (!drawer()) return;
  document.addEventListener("click", async (event) => {
    if (event.target.closest("[data-preview-close]")) return close();
    const button = event.target.closest("[data-preview]");
    if (!button) return undefined;
    await toggle(button, button);
    if (isOpen()) drawer().focus({ preventScroll: true });
    return undefined;
  });
  shortcut(" ", () => {
    const row = currentRow();
    const button = row?.querySelector("[data-preview]");
    if (!button) return false;
    toggle(button, row.querySelector("a.row-link"));
    return true;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented && !document.querySelector("dialog[open]")) close();
  });
  document.body.addEventListener("hg:row", (event) => {
    const button = event.target.querySelector("[data-preview]");
    if (!isOpen() || !button) return;
    clearTimeout(timer);
    timer = setTimeout(() => { opener = button.closest("tr").querySelector("a.row-link"); show(button); }, WAIT_MS);
  });
  document.body.addEventListener("htmx:afterSettle", mark);
}
