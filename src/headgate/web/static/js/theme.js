// The theme changes at once; the cookie that keeps it is set by the server, so the next page does not flash.
export function startTheme() {
  const button = document.querySelector("[data-theme-button]");
  button?.form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const root = document.documentElement;
    const body = new URLSearchParams(new FormData(button.form));
    body.set("theme", button.value);
    root.dataset.theme = button.value;
    document.body.dispatchEvent(new CustomEvent("hg:theme", { detail: { theme: button.value } }));
    const answer = await fetch(button.form.action, { method: "POST", body, headers: { "HX-Request": "true" } });
    if (!answer.ok) return;
    const order = ["system", "light", "dark"];
    const next = order[(order.indexOf(button.value) + 1) % order.length];
    button.title = `Theme: ${button.value}. Switch to ${next}`;
    button.setAttribute("aria-label", button.title);
    button.value = next;
  });
}

// A colour variable of headgate.css as the browser shows it now, for charts: colour("--chart-1").
export function colour(name) {
  const probe = document.createElement("span");
  probe.hidden = true;
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
