// Learning curves of all runs: one metric over env steps or over time.

import uPlot from "uplot";
import { make } from "./dom";
import { compact, number } from "./format";
import type { RunState } from "./run_state";

const HEIGHT = 240;
/** Metrics that are offered first, by the end of their names. */
const FIRST = ["charts/episodic_return", "eval/return"];
const AXES = { step: "env steps", "charts/wall_s": "seconds" };
/** Seconds between two drawings while a run goes on. */
const EVERY_S = 0.5;

/** Last part of a run's name, or all of it if another run has the same last part. */
export function shortName(state: RunState, states: RunState[]): string {
  const last = (name: string): string => name.split("/").at(-1) ?? name;
  const isShared = states.some((other) => other !== state && last(other.opened.name) === last(state.opened.name));
  return isShared ? state.opened.name : last(state.opened.name);
}

export class CurvesView {
  readonly element = make("section", { class: "curves" });
  private readonly metric = make("select", { id: "metric" });
  private readonly axis = make("select", { id: "axis" });
  private readonly place = make("div", { class: "plot", role: "img", "aria-label": "Learning curves" });
  private readonly names = new Set<string>();
  private plot: uPlot | null = null;
  private drawn = "";
  private drawnAt = 0;

  /** `redraw` is called when the user chooses another curve, or the browser other colors. */
  constructor(redraw: () => void) {
    const again = (): void => {
      this.drawn = "";
      redraw();
    };
    for (const [name, words] of Object.entries(AXES)) this.axis.append(make("option", { value: name }, words));
    const labels = [make("label", { for: "metric" }, "Curve "), make("label", { for: "axis" }, " over ")] as const;
    labels[0].append(this.metric);
    labels[1].append(this.axis);
    this.element.append(make("div", { class: "choices" }, ...labels), this.place);
    for (const choice of [this.metric, this.axis]) choice.addEventListener("change", again);
    new ResizeObserver(() => this.plot?.setSize({ width: this.place.clientWidth, height: HEIGHT })).observe(this.place);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  }

  show(states: RunState[]): void {
    const key = `${this.metric.value} ${this.axis.value} ${states.map((state) => state.rowsVersion).join(" ")}`;
    const now = performance.now();
    if (key === this.drawn || (this.drawn !== "" && now - this.drawnAt < 1000 * EVERY_S)) return;
    this.offer(states);
    if (!this.metric.value) return;
    this.drawn = `${this.metric.value} ${this.axis.value} ${states.map((state) => state.rowsVersion).join(" ")}`;
    this.drawnAt = now;
    const [data, labels] = this.data(states);
    const made = JSON.stringify([labels, this.metric.value, this.axis.value]);
    if (this.plot && this.place.dataset["made"] === made) {
      this.plot.setData(data);
      return;
    }
    this.plot?.destroy();
    this.place.dataset["made"] = made;
    this.plot = new uPlot(this.options(labels), data, this.place);
  }

  private offer(states: RunState[]): void {
    const found = new Set(states.flatMap((state) => Object.keys(state.columns)));
    const isSame = found.size === this.names.size && [...found].every((name) => this.names.has(name));
    if (isSame) return;
    const chosen = this.metric.value || FIRST.find((name) => found.has(name)) || [...found].find((name) => !(name in AXES));
    found.forEach((name) => this.names.add(name));
    const offered = [...this.names].filter((name) => !(name in AXES)).sort();
    this.metric.replaceChildren(...offered.map((name) => make("option", { value: name }, name)));
    if (chosen !== undefined) this.metric.value = chosen;
  }

  private data(states: RunState[]): [uPlot.AlignedData, string[]] {
    const tables: uPlot.AlignedData[] = [];
    const labels: string[] = [];
    states.forEach((state) => {
      const [x, y] = [state.columns[this.axis.value], state.columns[this.metric.value]];
      const points = (x ?? []).flatMap((at, index) => {
        const value = y?.[index];
        return at === null || value === null || value === undefined ? [] : [[at, value] as const];
      });
      const increasing = points.filter(([at], index) => index === points.length - 1 || at < (points[index + 1]?.[0] ?? Infinity));
      tables.push([increasing.map(([at]) => at), increasing.map(([, value]) => value)]);
      labels.push(shortName(state, states));
    });
    return [tables.length === 1 && tables[0] ? tables[0] : uPlot.join(tables), labels];
  }

  private options(labels: string[]): uPlot.Options {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--quiet").trim();
    const grid = { stroke: style.getPropertyValue("--line").trim(), width: 1 };
    const axis = { stroke: ink, grid, ticks: grid, values: (_: uPlot, values: number[]) => values.map(compact) };
    return {
      width: this.place.clientWidth,
      height: HEIGHT,
      scales: { x: { time: false } },
      axes: [{ ...axis, label: AXES[this.axis.value as keyof typeof AXES], labelSize: 20 }, { ...axis, size: 64 }],
      series: [
        { label: AXES[this.axis.value as keyof typeof AXES], value: (_, value) => number(value) },
        ...labels.map((label, index) => ({
          label,
          stroke: style.getPropertyValue(`--curve-${index % 6}`).trim(),
          width: 2,
          spanGaps: true,
          points: { show: false },
          value: (_: uPlot, value: number | null) => number(value),
        })),
      ],
    };
  }
}
