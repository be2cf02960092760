// Menus (details elements) close on Esc, and when something else is clicked. What one opens stays inside the window.
const EDGE = 8;

// Where a menu stands depends on how the buttons beside it wrap, so its side cannot be chosen beforehand.
function fit(menu) {
  const popover = menu.querySelector(".popover");
  if (!popover) return;
  popover.style.translate = "";
  if (!menu.open) return;
  const box = popover.getBoundingClientRect();
  const most = document.documentElement.clientWidth - EDGE;
  const by = box.right > most ? Math.max(most - box.right, EDGE - box.left) : Math.max(0, EDGE - box.left);
  if (by) popover.style.translate = `${by}px 0`;
}

export function startMenus() {
  const menus = () => document.querySelectorAll("details.account[open], details.menu-toggle[open], details.menu[open]");
  document.addEventListener("click", (event) => {
    for (const menu of menus()) if (!menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of menus()) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
  // It does not bubble.
  document.addEventListener("toggle", (event) => { if (event.target.matches?.("details.account, details.menu")) fit(event.target); }, true);
}
