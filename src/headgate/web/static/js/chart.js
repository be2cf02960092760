// <hg-chart data='{"times": [...], "lines": [...]}'>: a chart of series over time (uPlot), in a shadow tree, so that a part
// of the page that is read again leaves it in place and only its data changes. Colours are variables of headgate.css.
// Without this module the table below the chart has the same values.
import { colour } from "./theme.js";

// Pixels of a page whose letters have the usual size; they are larger on a very large screen.
const scaled = (pixels) => Math.round((pixels * parseFloat(getComputedStyle(document.documentElement).fontSize)) / 16);
const height = () => scaled(176);
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]]; // lines differ in more than their colour
const UNITS = {
  count: (value) => (value === null ? "–" : Math.abs(value) >= 10000 ? `${+(value / 1000).toFixed(1)}k` : value.toLocaleString("en")),
  seconds: (value) => {
    if (value === null) return "–";
    if (value === 0) return "0";
    if (value < 1) return `${+(value * 1000).toPrecision(2)} ms`;
    return value < 90 ? `${+value.toPrecision(2)} s` : `${+(value / 60).toPrecision(2)} m`;
  },
};

// Values between two gaps: a line would not show them.
function alone(plot, series) {
  const values = plot.data[series];
  if (values.length < 20) return null; // all of them
  const found = [];
  values.forEach((value, at) => {
    if (value !== null && (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null) found.push(at);
  });
  return found;
}

// What the legend shows while no point is chosen.
function lastOf(values) {
  return values.findLast((value) => value !== null) ?? null;
}

function clock(at, step) {
  const zone = document.documentElement.dataset.times === "utc" ? "UTC" : undefined;
  const parts = step >= 86400 ? { month: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  return new Date(at * 1000).toLocaleString("en-GB", { ...parts, timeZone: zone });
}

class Chart extends HTMLElement {
  static observedAttributes = ["data", "label"];

  connectedCallback() {
    if (!this.shadowRoot) {
      this.attachShadow({ mode: "open" });
      for (const href of [this.getAttribute("uplot-css"), this.getAttribute("css")]) {
        const link = document.createElement("link");
        link.rel = "stylesheet";
        link.href = href;
        this.shadowRoot.append(link);
      }
      this.place = document.createElement("div");
      this.place.role = "img"; // not this element: it also has a link and a button
      this.zoomed = document.createElement("p");
      this.zoomed.className = "zoomed";
      this.zoomed.hidden = true;
      this.shadowRoot.append(this.place, this.zoomed);
    }
    this.place.ariaLabel = this.getAttribute("label");
    this.sizes = new ResizeObserver(() => this.plot?.setSize({ width: this.width(), height: height() }));
    this.sizes.observe(this);
    this.redraw = () => this.draw();
    document.body.addEventListener("hg:theme", this.redraw);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.scheme.addEventListener("change", this.redraw);
    this.draw();
  }

  disconnectedCallback() {
    this.sizes.disconnect();
    document.body.removeEventListener("hg:theme", this.redraw);
    this.scheme.removeEventListener("change", this.redraw);
    this.plot?.destroy();
    this.plot = null;
  }

  attributeChangedCallback(name) {
    if (!this.plot) return;
    if (name === "label") {
      this.place.ariaLabel = this.getAttribute("label");
      return;
    }
    const { times, lines } = this.read();
    if (this.plot.series.length !== lines.length + 1) return this.draw();
    this.plot.setData([times, ...lines.map((line) => line.values)], !this.isZoomed);
  }

  read() {
    return JSON.parse(this.getAttribute("data"));
  }

  width() {
    return Math.max(160, Math.floor(this.getBoundingClientRect().width));
  }

  draw() {
    const { times, lines, unit, jobs } = this.read();
    const format = UNITS[unit];
    const grid = { stroke: colour("--chart-grid"), width: 1 };
    const axis = { stroke: colour("--muted"), grid, ticks: grid, font: `${scaled(12)}px system-ui, sans-serif` };
    this.plot?.destroy();
    this.isZoomed = false;
    this.zoomed.hidden = true;
    this.plot = new uPlot({
      width: this.width(),
      height: height(),
      tzDate: document.documentElement.dataset.times === "utc" ? (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC") : undefined,
      legend: { live: true },
      cursor: { drag: { x: true, y: false }, points: { size: 7 } },
      scales: { y: { range: (_plot, _low, high) => [0, Math.max(high ?? 0, unit === "count" ? 4 : 0.001) * 1.08] } },
      axes: [{ ...axis, size: scaled(30), gap: 4, values: (_plot, ticks, _axis, _space, step) => ticks.map((at) => clock(at, step)) }, { ...axis, size: scaled(64), gap: 4, values: (_plot, ticks) => ticks.map(format) }],
      series: [
        { value: (plot, at, _series, index) => clock(index === null ? lastOf(plot.data?.[0] ?? times) : at, 60) },
        ...lines.map((line, index) => ({
          label: line.name,
          stroke: colour(line.colour),
          fill: line.fill ? `color-mix(in srgb, ${colour(line.colour)} 12%, transparent)` : undefined,
          width: 2,
          dash: DASHES[index % DASHES.length],
          spanGaps: false,
          points: { show: true, size: 6, fill: colour(line.colour), filter: alone },
          value: (plot, value, series, index) => format(index === null ? lastOf(plot.data?.[series] ?? line.values) : value),
        })),
      ],
      hooks: { setScale: [(plot, scale) => { if (scale === "x") this.zoom(plot, plot.data?.[0] ?? times, jobs); }] },
    }, [times, ...lines.map((line) => line.values)], this.place);
  }

  // What was chosen by dragging: a link to the jobs of that time. A double click shows all again.
  zoom(plot, times, jobs) {
    const { min, max } = plot.scales.x;
    this.isZoomed = times.length > 1 && (min > times[0] || max < times[times.length - 1]);
    this.zoomed.hidden = !this.isZoomed || !jobs;
    if (this.zoomed.hidden) return;
    const iso = (at) => new Date(at * 1000).toISOString().replace(/\.\d+Z$/, "Z");
    const link = document.createElement("a");
    const filter = `${jobs.filter} created:>=${iso(Math.floor(min))} created:<${iso(Math.ceil(max))}`.trim();
    link.href = `${jobs.path}?filter=${encodeURIComponent(filter)}`;
    link.textContent = "Jobs submitted in this time";
    const back = document.createElement("button");
    back.type = "button";
    back.textContent = "Show all";
    back.addEventListener("click", () => this.draw());
    this.zoomed.replaceChildren(link, " ", back);
  }
}

customElements.define("hg-chart", Chart);
