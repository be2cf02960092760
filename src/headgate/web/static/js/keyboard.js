// Shortcuts. They are off inside fields, with a modifier key, and when the preferences say so.
const FIELDS = "input, textarea, select, [contenteditable]";
const GO_MS = 1500;

const rows = () => [...document.querySelectorAll("table[data-rows] tbody tr")].filter((row) => row.offsetParent !== null);

// The row that j and k have reached, or that got the focus. When its part was read again, it is found by its link.
let reached = null; // {row, address}
const addressOf = (row) => row.querySelector("a.row-link, a")?.getAttribute("href") ?? "";
const isReached = (row) => reached !== null && (reached.address ? addressOf(row) === reached.address : row === reached.row);

export const currentRow = () => rows().find(isReached);

function reach(row) {
  reached = { row, address: addressOf(row) };
}

function mark() {
  for (const row of rows()) row.classList.toggle("is-current", isReached(row));
}

// New rows above have taken the place of the current one, and its focus: the focus goes with the row.
function keepFocus() {
  const row = currentRow();
  const focused = document.activeElement?.closest?.("table[data-rows] tbody tr");
  if (!reached) return;
  mark();
  if (row && focused && focused !== row) row.querySelector("a.row-link, a, button")?.focus({ preventScroll: true });
}

function move(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(currentRow());
  const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step))];
  reach(next);
  mark();
  next.scrollIntoView({ block: "nearest" });
  // Focus follows, so that screen readers say the row and Enter opens it.
  next.querySelector("a.row-link, a, button")?.focus({ preventScroll: true });
  next.dispatchEvent(new CustomEvent("hg:row", { bubbles: true }));
}

// A button with data-shortcut: that of the row, of the preview, or of the page.
function press(key) {
  const row = currentRow();
  const places = [row, document.querySelector("#preview:not([hidden]) [data-preview-body] > :not([hidden])"), document];
  const button = places.map((place) => place?.querySelector(`[data-shortcut="${key}"]`)).find(Boolean);
  if (!button) return;
  // Buttons for selected rows: the row alone, if none is selected.
  if (button.form?.getAttribute("id") === "selection" && !document.querySelector('input[form="selection"][name="id"]:checked')) {
    const box = row?.querySelector('input[name="id"]');
    if (!box) return;
    box.click();
  }
  button.click();
  button.closest("details[open]")?.querySelector("input:not([type=hidden])")?.focus();
}

const KEYS = {
  "/": () => {
    const field = document.querySelector("[data-search]") || document.getElementById("search");
    field?.focus();
    field?.select();
  },
  "?": () => document.querySelector("[data-open='help']")?.click(),
  j: () => move(1),
  k: () => move(-1),
  x: () => currentRow()?.querySelector("input[type=checkbox]")?.click(),
  Enter: () => currentRow()?.querySelector("a.row-link, a")?.click(),
  r: () => press("r"),
  c: () => press("c"),
  p: () => press("p"),
  "[": () => document.querySelector("[data-page='prev']")?.click(),
  "]": () => document.querySelector("[data-page='next']")?.click(),
};

// Further keys of a page: `shortcut(" ", () => …)`. An action that returns false leaves the key to the browser.
export function shortcut(key, action) {
  KEYS[key] = action;
}

export function startKeyboard() {
  let goUntil = 0;
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target.matches?.(FIELDS)) {
      event.target.blur();
      return;
    }
    if (document.documentElement.dataset.keys === "off") return;
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.(FIELDS)) return;
    if (document.querySelector("dialog[open]")) return;
    if (goUntil > Date.now()) {
      goUntil = 0;
      const link = document.querySelector(`nav.side a[data-key="${CSS.escape(event.key)}"]`);
      if (link) {
        event.preventDefault();
        window.location.assign(link.href);
      }
      return;
    }
    if (event.key === "g") {
      goUntil = Date.now() + GO_MS;
      return;
    }
    // Enter on a link or a button activates it.
    if (event.key === "Enter" && event.target.matches?.("a, button, summary")) return;
    const action = KEYS[event.key];
    if (!action) return;
    if (event.key === " " && event.target.matches?.("button, summary")) return;
    if (action() !== false) event.preventDefault();
  });
  document.addEventListener("focusin", (event) => {
    const row = event.target.closest?.("table[data-rows] tbody tr");
    if (row) reach(row);
  });
  document.body.addEventListener("htmx:afterSettle", keepFocus);
}
