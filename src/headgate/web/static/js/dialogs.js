// Dialogs: one that asks before an action (forms with data-question), and those that a button opens (data-open).
import { delay } from "./delayed.js";

let open = 0;

// Whether a dialog is open: live updates wait for it.
export const dialogIsOpen = () => open > 0;

function show(dialog) {
  open += 1;
  dialog.addEventListener("close", () => { open -= 1; }, { once: true });
  dialog.showModal();
}

// Resolves to what was typed ("1" where nothing has to be), or null if the answer is no.
export function ask({ question, button, typed }) {
  const dialog = document.getElementById("confirm");
  const box = dialog.querySelector("[data-typed]");
  const input = box.querySelector("input");
  const confirm = dialog.querySelector("[data-confirm-button]");
  dialog.querySelector("[data-question]").textContent = question;
  dialog.querySelector("[data-expected]").textContent = typed || "";
  box.hidden = !typed;
  input.value = "";
  input.required = Boolean(typed);
  confirm.textContent = button || "Confirm";
  confirm.disabled = Boolean(typed);
  input.oninput = () => { confirm.disabled = Boolean(typed) && input.value.trim() !== typed; };
  dialog.returnValue = "";
  show(dialog);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "confirm" ? typed || "1" : null);
    }, { once: true });
  });
}

function confirmed(form, value) {
  let field = form.querySelector('input[name="confirmed"]');
  if (!field) {
    field = document.createElement("input");
    field.type = "hidden";
    field.name = "confirmed";
    form.append(field);
  }
  field.value = value;
}

async function askFor(form, proceed) {
  const { question, button, typed } = form.dataset;
  const answer = await ask({ question, button, typed });
  if (answer === null) return;
  confirmed(form, answer);
  if (form.dataset.delayed) delay(form);
  else proceed();
}

export function startDialogs() {
  document.body.addEventListener("htmx:confirm", (event) => {
    const form = event.target.closest("form[data-question]");
    if (!form) return;
    event.preventDefault();
    askFor(form, () => event.detail.issueRequest(true));
  });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.dataset.question || form.hasAttribute("hx-post") || form.dataset.asked) return;
    event.preventDefault();
    askFor(form, () => { form.dataset.asked = "1"; form.requestSubmit(event.submitter); });
  });
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-open]");
    const dialog = opener && document.getElementById(opener.dataset.open);
    if (dialog) show(dialog);
  });
  // A click beside a dialog closes it.
  document.addEventListener("click", (event) => {
    if (event.target.nodeName === "DIALOG") event.target.close();
  });
}
