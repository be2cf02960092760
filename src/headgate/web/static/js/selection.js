// Rows that are selected: how many, all of the page, a range with Shift, and questions that name the number.
// Without this module the boxes and the buttons of the form work as they are, and the server asks.
import { ask } from "./dialogs.js";

const TYPE_ABOVE = 100;
const boxes = () => [...document.querySelectorAll('input[name="id"][form="selection"]')];
const chosen = () => boxes().filter((box) => box.checked);

function show() {
  const bar = document.querySelector("[data-selection]");
  if (!bar) return;
  const count = chosen().length;
  const all = boxes();
  bar.dataset.selected = String(count);
  bar.querySelector("[data-selected-count]").textContent = count ? `${count.toLocaleString("en")} selected` : "Select rows";
  for (const button of bar.querySelectorAll("#selection button, #selection summary")) {
    if (button.tagName === "BUTTON") button.disabled = count === 0;
    else button.setAttribute("aria-disabled", String(count === 0));
  }
  for (const box of all) box.closest("tr").classList.toggle("is-selected", box.checked);
  const whole = document.querySelector("[data-select-all]");
  if (whole) {
    whole.checked = count > 0 && count === all.length;
    whole.indeterminate = count > 0 && count < all.length;
  }
  document.body.dispatchEvent(new CustomEvent("hg:selection", { detail: { count } }));
}

async function confirmed(event) {
  const button = event.submitter;
  // By its attribute: boxes named "id" belong to the form, and hide its property of that name.
  if (event.target.getAttribute("id") !== "selection" || !button?.dataset.ask || event.target.dataset.asked) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  const count = chosen().length;
  const jobs = count === 1 ? "this job" : `these ${count.toLocaleString("en")} jobs`;
  const question = button.value.replace("the selected jobs", jobs);
  const typed = count > TYPE_ABOVE ? String(count) : "";
  const answer = await ask({ question, button: `${button.dataset.ask} ${count.toLocaleString("en")}`, typed });
  if (answer === null) return;
  const form = event.target;
  for (const [name, value] of [["confirmed", answer], ["confirm_text", typed]]) {
    const field = document.createElement("input");
    field.type = "hidden";
    field.name = name;
    field.value = value;
    form.append(field);
  }
  form.dataset.asked = "1";
  form.requestSubmit(button);
}

export function startSelection() {
  let last = null;
  document.addEventListener("click", (event) => {
    const box = event.target.closest?.('input[name="id"][form="selection"]');
    if (!box) return;
    if (event.shiftKey && last && last !== box) {
      const all = boxes();
      const [from, to] = [all.indexOf(last), all.indexOf(box)].sort((a, b) => a - b);
      if (from >= 0) for (const one of all.slice(from, to + 1)) one.checked = box.checked;
    }
    last = box;
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-select-all]")) for (const box of boxes()) box.checked = event.target.checked;
    if (event.target.matches('[data-select-all], input[name="id"][form="selection"]')) show();
  });
  // Before the module for other forms: the button decides what is asked here.
  document.addEventListener("submit", confirmed, true);
  document.body.addEventListener("htmx:afterSettle", show);
  // A page that comes back from the browser's cache has its boxes ticked.
  window.addEventListener("pageshow", show);
  show();
}
