// <hg-chart data='{"times": [...], "lines": [...]}'>: a chart of series over time (uPlot), in a shadow tree, so that a part
// of the page that is read again leaves it in place and only its data changes. Colours are variables of headgate.css.
// Without this module the table below the chart has the same values.
import { background, filling } from "./patterns.js";
import { colour } from "./theme.js";

// Pixels of a page whose letters have the usual size; they are larger on a very large screen.
const scaled = (pixels) => Math.round((pixels * parseFloat(getComputedStyle(document.documentElement).fontSize)) / 16);
const height = () => scaled(176);
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]]; // lines differ in more than their colour
// Steps of the axis: round ones for people, not 100 seconds.
const SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000];
const UNITS = {
  count: (value) => (value === null ? "–" : Math.abs(value) >= 10000 ? `${+(value / 1000).toFixed(1)}k` : value.toLocaleString("en")),
  seconds: (value) => {
    if (value === null) return "–";
    if (value === 0) return "0";
    if (value < 1) return `${+(value * 1000).toPrecision(2)} ms`;
    const [size, unit] = value < 90 ? [1, "s"] : value < 5400 ? [60, "m"] : value < 172800 ? [3600, "h"] : [86400, "d"];
    return `${+(value / size).toPrecision(2)} ${unit}`;
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

// The values to draw: each stacked line on top of the shown ones before it.
function stacked(lines, isShown) {
  let below = null;
  return lines.map((line) => {
    if (!line.stacked || !isShown(line)) return line.values;
    const under = below;
    below = line.values.map((value, at) => (value === null ? null : value + (under?.[at] ?? 0)));
    return below;
  });
}

// As they are drawn: of a stack the top first, since each column covers the one behind it. Lines are drawn over columns.
function drawnOrder(lines) {
  return [...lines.filter((line) => line.stacked).reverse(), ...lines.filter((line) => !line.stacked)];
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
    this.lines = lines;
    this.plot.setData(this.values(times), !this.isZoomed);
    if (!this.isZoomed) return;
    // uPlot draws new data only if it may choose the scales as well.
    this.plot.redraw();
    this.plot.setLegend({});
  }

  // The data of the plot; a line that was switched off in the legend is not part of its stack.
  values(times) {
    const order = drawnOrder(this.lines);
    const heights = stacked(this.lines, (line) => this.plot?.series[order.indexOf(line) + 1].show ?? true);
    return [times, ...order.map((line) => heights[this.lines.indexOf(line)])];
  }

  // The value of a line itself, not that of the stack up to it.
  own(series, index) {
    const values = drawnOrder(this.lines)[series - 1].values;
    return index === null ? lastOf(values) : values[index];
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
    const columns = lines.some((line) => line.stacked);
    this.plot?.destroy();
    this.plot = null;
    this.lines = lines;
    this.isZoomed = false;
    this.zoomed.hidden = true;
    const order = drawnOrder(lines);
    this.plot = new uPlot({
      width: this.width(),
      height: height(),
      tzDate: document.documentElement.dataset.times === "utc" ? (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC") : undefined,
      legend: { live: true, markers: { width: 2, fill: (_plot, series) => (order[series - 1].stacked ? background(lines.indexOf(order[series - 1]), colour(order[series - 1].colour)) : null) } },
      // A column reaches from its time to the next one: the one under the pointer is chosen, not the nearest time.
      cursor: { drag: { x: true, y: false }, points: { size: 7, show: !columns }, dataIdx: columns ? (plot, _series, nearest, at) => (nearest > 0 && plot.data[0][nearest] > at ? nearest - 1 : nearest) : undefined },
      scales: {
        x: { range: (plot, low, high) => (columns && high === plot.data?.[0].at(-1) ? [low, high + plot.data[0][1] - plot.data[0][0]] : [low, high]) },
        y: { range: (_plot, _low, high) => [0, Math.max(high ?? 0, unit === "count" ? 4 : 0.001) * 1.08] },
      },
      axes: [{ ...axis, size: scaled(30), gap: 4, values: (_plot, ticks, _axis, _space, step) => ticks.map((at) => clock(at, step)) }, { ...axis, size: scaled(64), gap: 4, values: (_plot, ticks) => ticks.map(format), ...(unit === "seconds" ? { incrs: SECONDS } : {}) }],
      series: [
        { value: (plot, at, _series, index) => clock(index === null ? lastOf(plot.data?.[0] ?? times) : at, 60) },
        ...order.map((line) => ({
          label: line.name,
          stroke: colour(line.colour),
          spanGaps: false,
          value: (_plot, _value, series, index) => format(this.own(series, index)),
          ...(line.stacked ? this.column(lines.indexOf(line), line) : this.line(lines.indexOf(line), line, columns)),
        })),
      ],
      hooks: {
        setScale: [(plot, scale) => { if (scale === "x") this.zoom(plot, plot.data?.[0] ?? times, jobs); }],
        setSeries: [(plot, series, change) => { if (series !== null && "show" in change && columns) plot.setData(this.values(plot.data[0]), false); }],
      },
    }, this.values(times), this.place);
  }

  column(index, line) {
    return { width: 1, fill: (plot) => filling(plot.ctx, index, colour(line.colour), colour("--panel")), paths: uPlot.paths.bars({ size: [0.92, 64], align: 1 }), points: { show: false } };
  }

  line(index, line, steps) {
    return {
      width: 2,
      dash: DASHES[index % DASHES.length],
      fill: line.fill ? `color-mix(in srgb, ${colour(line.colour)} 12%, transparent)` : undefined,
      paths: steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: true, size: 6, fill: colour(line.colour), filter: alone },
    };
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
