// Menus (details elements in the bar) close on Esc, and when something else is clicked.
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
}
