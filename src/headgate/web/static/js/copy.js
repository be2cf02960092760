// Buttons that copy the code beside them, or the text in data-copy.
import { toast } from "./toasts.js";

export function startCopying() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = button.dataset.copy || button.parentElement.querySelector("code, output")?.textContent || "";
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied.", "info");
    } catch {
      toast("The browser does not permit copying here: select the text instead.", "error");
    }
  });
}
