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

// Times by the clock, in the zone of the reader: <time data-clock> below a <th data-reader-zone>, which names it.
function clockText(at, zone, seconds) {
  const digits = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  const format = new Intl.DateTimeFormat("en-GB", { timeZone: zone, weekday: "short", ...digits, ...(seconds ? { second: "2-digit" } : {}) });
  const part = Object.fromEntries(format.formatToParts(at).map((one) => [one.type, one.value]));
  const day = `${part.weekday} ${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}`;
  return seconds ? `${day}:${part.second}` : day;
}

function updateClocks(root) {
  const utc = document.documentElement.dataset.times === "utc";
  const zone = (!utc && Intl.DateTimeFormat().resolvedOptions().timeZone) || "UTC";
  for (const head of root.querySelectorAll("th[data-reader-zone]")) {
    const table = head.closest("table");
    head.textContent = zone;
    head.hidden = table.querySelector("th[data-zone]").textContent === zone; // it has its column
    for (const time of table.querySelectorAll("time[data-clock]")) {
      time.textContent = clockText(Date.parse(time.dateTime), zone, time.dataset.clock === "seconds");
      time.parentElement.dataset.label = zone;
      time.parentElement.hidden = head.hidden;
    }
  }
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
  updateClocks(document);
  setInterval(() => { if (!document.hidden) updateTimes(); }, 1000);
  document.body.addEventListener("htmx:afterSettle", (event) => {
    updateTimes(event.target);
    updateClocks(document); // the head of a table may be outside of what was read
  });
}
