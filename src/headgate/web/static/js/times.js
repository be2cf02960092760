// Keeps the text of <time> elements current: relative, local or UTC, as chosen in the preferences.
const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

export function durationText(seconds) {
  if (seconds < 10) return `${Math.round(seconds * 10) / 10} s`;
  let rest = Math.floor(seconds);
  const parts = [];
  for (const [unit, size] of UNITS) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count || parts.length) parts.push(count ? `${count} ${unit}` : "");
    if (parts.length === 2) break;
  }
  return parts.filter(Boolean).join(" ");
}

export function relativeText(at, now = Date.now()) {
  const gap = (at - now) / 1000;
  if (Math.abs(gap) < 1) return "now";
  return gap > 0 ? `in ${durationText(Math.floor(gap))}` : `${durationText(Math.floor(-gap))} ago`;
}

function localText(at) {
  return new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "medium" }).format(at);
}

export function updateTimes(root = document) {
  const form = document.documentElement.dataset.times;
  for (const element of root.querySelectorAll("time[datetime]:not([data-fixed])")) {
    const at = Date.parse(element.dateTime);
    if (Number.isNaN(at)) continue;
    const text = form === "utc" ? element.title.replace(/\.\d+ UTC$/, " UTC") : form === "local" ? localText(at) : relativeText(at);
    if (element.textContent !== text) element.textContent = text;
  }
}

export function startTimes() {
  updateTimes();
  setInterval(() => { if (!document.hidden) updateTimes(); }, 1000);
  document.body.addEventListener("htmx:afterSettle", (event) => updateTimes(event.target));
}
