// Marks the field that the server refused, next to its label.

function unmark(field) {
  field.classList.remove("invalid");
  field.querySelector(".field-error")?.remove();
  field.querySelector("[aria-invalid]")?.removeAttribute("aria-invalid");
}

function mark(field, text) {
  unmark(field);
  const input = field.querySelector("input, select, textarea");
  const message = document.createElement("p");
  message.className = "field-error";
  message.id = `${input?.id || field.dataset.field}-error`;
  message.textContent = text;
  field.classList.add("invalid");
  field.append(message);
  if (input) {
    input.setAttribute("aria-invalid", "true");
    input.focus();
  }
}

export function startForms() {
  document.body.addEventListener("hg:invalid", (event) => {
    const name = event.detail.field;
    const form = event.target.closest("form") || document;
    const field = [...form.querySelectorAll("[data-field]")].find((one) => one.dataset.field === name);
    if (field) mark(field, event.detail.text);
  });
  document.addEventListener("input", (event) => {
    const field = event.target.closest(".field.invalid");
    if (field) unmark(field);
  });
  // A form is sent once: a second click while the answer is on its way does nothing.
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || event.target.hasAttribute("hx-post") || event.target.method === "dialog") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "1";
    setTimeout(() => { delete event.target.dataset.sent; }, 3000);
  });
}
