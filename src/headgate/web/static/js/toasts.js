// Messages at the edge of the page. The element is a live region: screen readers say what is added to it.
const SHOWN_MS = 6000;
const UNDO_MS = 10000;
const MOST = 4;

function undoButton(undo, item) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button small";
  button.textContent = "Undo";
  button.addEventListener("click", () => {
    item.remove();
    if (typeof undo === "function") undo();
    else window.htmx.ajax("POST", undo.action, { source: document.body, swap: "none", values: undo.values });
  });
  return button;
}

// undo: {action, values} of a form that takes it back, or a function. Returns the element.
export function toast(text, level = "ok", undo = null, shownMs = undo ? UNDO_MS : SHOWN_MS) {
  const list = document.getElementById("toasts");
  if (!list || !text) return null;
  const item = document.createElement("div");
  item.className = `toast ${level}`;
  const words = document.createElement("span");
  words.textContent = text;
  const close = document.createElement("button");
  close.type = "button";
  close.className = "icon-button";
  close.setAttribute("aria-label", "Close this message");
  close.textContent = "×";
  close.addEventListener("click", () => item.remove());
  item.append(words, ...(undo ? [undoButton(undo, item)] : []), close);
  list.append(item);
  while (list.children.length > MOST) list.firstElementChild.remove();
  // An error stays until it is closed: its text has the next step.
  if (level !== "error") setTimeout(() => item.remove(), shownMs);
  return item;
}

export function startToasts() {
  document.body.addEventListener("hg:toast", (event) => toast(event.detail.text, event.detail.level, event.detail.undo));
  document.body.addEventListener("htmx:sendError", () => toast("The server cannot be reached.", "error"));
  document.body.addEventListener("htmx:responseError", (event) => {
    // An answer of ours brings its own message by HX-Trigger.
    if (!event.detail.xhr.getResponseHeader("HX-Trigger") && !event.detail.xhr.getResponseHeader("HX-Redirect")) {
      toast(`The server answered ${event.detail.xhr.status}.`, "error");
    }
  });
}
