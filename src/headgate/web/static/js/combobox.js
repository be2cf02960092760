// Suggestions below a text field, by the ARIA pattern "editable combobox with list autocomplete".
// Without this module the field is a plain input.
//
//   <div data-combobox="/ui/jobs/suggest" data-mode="filter"><input …></div>
//
// The server answers {start, note, words: [{text, note}]}: a word replaces the text from `start` to the caret.
// data-mode="filter": the caret decides what is suggested. data-mode="value": the whole text is one value.
const WAIT_MS = 120;
let made = 0;

class Combobox {
  constructor(box) {
    this.box = box;
    this.input = box.querySelector("input");
    this.list = document.createElement("ul");
    this.note = document.createElement("p");
    this.popup = document.createElement("div");
    this.id = `suggestions-${made += 1}`;
    this.words = [];
    this.start = 0;
    this.at = -1;
    this.asked = 0;
    this.list.id = this.id;
    this.list.setAttribute("role", "listbox");
    this.list.setAttribute("aria-label", "Suggestions");
    this.note.className = "suggestion-note";
    this.popup.className = "suggestions";
    this.popup.hidden = true;
    this.popup.append(this.list, this.note);
    box.append(this.popup);
    for (const [name, value] of Object.entries({
      role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": this.id,
    })) this.input.setAttribute(name, value);
    this.input.addEventListener("input", () => this.later());
    this.input.addEventListener("click", () => this.later());
    this.input.addEventListener("focus", () => { if (!this.input.value) this.later(); });
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.addEventListener("blur", () => this.close());
    // Before the field loses the focus.
    this.list.addEventListener("pointerdown", (event) => {
      const option = event.target.closest("[role=option]");
      event.preventDefault();
      if (option) this.take(Number(option.dataset.index));
    });
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), WAIT_MS);
  }

  async ask() {
    const turn = this.asked += 1;
    const isFilter = this.box.dataset.mode === "filter";
    const query = isFilter
      ? new URLSearchParams({ filter: this.input.value, caret: String(this.input.selectionStart ?? this.input.value.length) })
      : new URLSearchParams({ text: this.input.value });
    let found;
    try {
      const answer = await fetch(`${this.box.dataset.combobox}?${query}`, { headers: { accept: "application/json" } });
      if (!answer.ok) return this.close();
      found = await answer.json();
    } catch {
      return this.close(); // the field works without suggestions
    }
    if (turn !== this.asked || document.activeElement !== this.input) return undefined;
    this.start = isFilter ? found.start : 0;
    this.words = found.words;
    const typed = this.input.value.slice(this.start, this.caret());
    if (this.words.length === 1 && this.words[0].text === typed) this.words = [];
    this.show(found.note);
    return undefined;
  }

  caret() {
    return this.box.dataset.mode === "filter" ? this.input.selectionStart ?? this.input.value.length : this.input.value.length;
  }

  show(note) {
    this.at = -1;
    this.list.replaceChildren(...this.words.map((word, index) => {
      const option = document.createElement("li");
      option.id = `${this.id}-${index}`;
      option.dataset.index = String(index);
      option.setAttribute("role", "option");
      option.setAttribute("aria-selected", "false");
      const text = document.createElement("span");
      text.className = "suggestion-text";
      text.textContent = word.text;
      const about = document.createElement("span");
      about.className = "suggestion-about";
      about.textContent = word.note;
      option.append(text, about);
      return option;
    }));
    this.note.textContent = note || "";
    this.note.hidden = !note;
    const open = this.words.length > 0;
    this.popup.hidden = !open;
    this.input.setAttribute("aria-expanded", String(open));
    this.mark();
  }

  close() {
    clearTimeout(this.timer);
    this.asked += 1;
    this.popup.hidden = true;
    this.at = -1;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  mark() {
    [...this.list.children].forEach((option, index) => {
      option.setAttribute("aria-selected", String(index === this.at));
      if (index === this.at) option.scrollIntoView({ block: "nearest" });
    });
    if (this.at < 0) this.input.removeAttribute("aria-activedescendant");
    else this.input.setAttribute("aria-activedescendant", `${this.id}-${this.at}`);
  }

  key(event) {
    if (event.isComposing || event.ctrlKey || event.metaKey) return;
    const open = !this.popup.hidden;
    if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !open) {
      event.preventDefault();
      this.ask();
      return;
    }
    if (!open) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      // The list stays as it is from now on: an answer that is on its way would take the mark away.
      clearTimeout(this.timer);
      this.asked += 1;
    }
    const last = this.words.length - 1;
    switch (event.key) {
      case "ArrowDown": this.at = this.at >= last ? 0 : this.at + 1; break;
      case "ArrowUp": this.at = this.at <= 0 ? last : this.at - 1; break;
      case "Enter":
      case "Tab":
        if (this.at < 0) { this.close(); return; } // the form is sent, or the focus moves on
        event.preventDefault();
        this.take(this.at);
        return;
      case "Escape":
        event.preventDefault();
        event.stopPropagation();
        this.close();
        return;
      default: return;
    }
    event.preventDefault();
    this.mark();
  }

  take(index) {
    const word = this.words[index];
    if (!word) return;
    const isFilter = this.box.dataset.mode === "filter";
    const value = this.input.value;
    const caret = this.caret();
    // A name of a field is followed by its value, a value by the next term.
    const text = !isFilter || /[:.]$/.test(word.text) ? word.text : `${word.text} `;
    this.input.value = value.slice(0, this.start) + text + value.slice(caret).replace(/^\s+/, "");
    const end = this.start + text.length;
    this.input.focus();
    this.input.setSelectionRange(end, end);
    this.close();
    if (isFilter && /[:.]$/.test(word.text)) this.ask();
  }
}

export function startComboboxes(root = document) {
  const attach = (part) => {
    for (const box of part.querySelectorAll("[data-combobox]:not([data-attached])")) {
      box.dataset.attached = "1";
      new Combobox(box);
    }
  };
  attach(root);
  document.body.addEventListener("htmx:afterSettle", (event) => attach(event.target));
}
