// The pages about jobs: suggestions in fields, the selection of rows, previews, and details that stay open.
import { startComboboxes } from "./combobox.js";
import { startPreview } from "./preview.js";
import { startSelection } from "./selection.js";

// What a reader has opened or closed stays so when a part of the page is read again.
function keepDetails() {
  const callbacks = window.Idiomorph?.defaults.callbacks;
  if (callbacks) callbacks.beforeAttributeUpdated = (name, node) => !(name === "open" && node.nodeName === "DETAILS");
}

startComboboxes();
startSelection();
startPreview();
keepDetails();
