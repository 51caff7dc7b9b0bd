/** The three charts of the service: what is taken in, commits, and how long queries take. */

import { drawLines, legend, linesTable } from "./charts.js";
import { byId, countText, durationText, setText } from "./elements.js";

const CHARTS = {
  ingest: {
    title: "Records taken in and committed, per second",
    names: ["offsets per second"],
    format: (value) => countText(value < 10 ? Number(value.toFixed(1)) : Math.round(value)),
  },
  commits: {
    title: "Commits: time between them, and age of the newest",
    names: ["between commits", "age of the newest"],
    format: durationText,
  },
  latency: { title: "Time to answer queries, last twelve seconds", names: ["half are faster (p50)", "99 % are faster (p99)"], format: durationText },
};

export class HistoryCharts {
  constructor() {
    this.points = {};
    for (const [name, { names }] of Object.entries(CHARTS)) {
      byId(`${name}-legend`).replaceChildren(legend(names));
      // Filled when it is opened, and not while it is read.
      byId(`${name}-data`).addEventListener("toggle", () => this.fillTable(name));
    }
  }

  show(live) {
    this.points = live.points;
    for (const [name, chart] of Object.entries(CHARTS)) drawLines(byId(`${name}-chart`), { ...chart, points: live.points[name] });
    setText(byId("charts-note"), live.queriesAreHidden ? "How long queries take is told to a token for all stores." : "");
  }

  fillTable(name) {
    if (!byId(`${name}-data`).open) return;
    byId(`${name}-table`).replaceChildren(linesTable({ ...CHARTS[name], points: this.points[name] ?? [] }));
  }
}
