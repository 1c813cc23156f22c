// A strip for each worker: what it did in the last 30 seconds.

import { make, tell } from "./dom";
import { percent } from "./format";
import type { Frame } from "./messages";
import { ACTIVITIES, type Activity, type RunState, workerShares } from "./run_state";

const SECONDS = 30;
const HEIGHT = 22;
const WORDS: Record<Activity, string> = {
  environment: "environment",
  inference: "inference",
  writing: "writing",
  learning: "learning",
  "other nodes": "other nodes",
  transport: "transport",
  data: "waits for items",
  room: "waits for room",
  weights: "waits for weights",
  main: "waits for main",
  outside: "metrics, display",
  starting: "starting",
};

interface Strip {
  item: HTMLElement;
  canvas: HTMLCanvasElement;
  words: HTMLElement;
}

export class WorkersView {
  readonly element = make("section", { class: "workers" });
  private readonly strips = new Map<string, Strip>();
  private readonly list = make("ul", { class: "strips" });
  private readonly colors = new Map<string, string>();

  constructor(private readonly learners: ReadonlySet<string>) {
    const legend = make("ul", { class: "legend" }, ...ACTIVITIES.map((name) => make("li", { class: css(name) }, WORDS[name])));
    this.element.append(make("h3", {}, `Workers in the last ${SECONDS} s`), this.list, legend);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.colors.clear());
  }

  show(state: RunState): void {
    const last = state.last;
    if (!last) return;
    const names = Object.keys(last.workers);
    if (names.some((name) => !this.strips.has(name))) this.list.append(...names.map((name) => this.strip(name).item));
    for (const name of names) {
      const strip = this.strip(name);
      this.draw(strip.canvas, name, state.frames);
      this.tell(strip, name, last, state.before(5));
    }
  }

  private strip(name: string): Strip {
    let strip = this.strips.get(name);
    if (!strip) {
      const canvas = make("canvas", { height: String(HEIGHT), "aria-hidden": "true" });
      const words = make("span", { class: "doing" });
      strip = { item: make("li", {}, make("span", { class: "name" }, name), canvas, words), canvas, words };
      this.strips.set(name, strip);
    }
    return strip;
  }

  private draw(canvas: HTMLCanvasElement, name: string, frames: Frame[]): void {
    const width = canvas.clientWidth;
    const last = frames.at(-1);
    const context = canvas.getContext("2d");
    if (!context || !last || width === 0) return;
    const dense = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * dense)) {
      canvas.width = Math.round(width * dense);
      canvas.height = Math.round(HEIGHT * dense);
    }
    context.setTransform(dense, 0, 0, dense, 0, 0);
    context.clearRect(0, 0, width, HEIGHT);
    for (let index = 1; index < frames.length; index += 1) {
      const [before, now] = [frames[index - 1], frames[index]];
      const worker = now?.workers[name];
      if (!before || !now || !worker || now.wall_s < before.wall_s) continue;
      const from = width * (1 - (last.at_s - before.at_s) / SECONDS);
      const to = width * (1 - (last.at_s - now.at_s) / SECONDS);
      if (to <= 0) continue;
      const shares = workerShares(worker, before.workers[name], this.learners);
      let y = HEIGHT;
      for (const activity of ACTIVITIES) {
        const height = HEIGHT * shares[activity];
        y -= height;
        if (height < 0.2) continue;
        context.fillStyle = this.color(activity);
        context.fillRect(from, y, to - from + 0.5, height);
      }
    }
  }

  private tell(strip: Strip, name: string, last: Frame, before: Frame | undefined): void {
    const worker = last.workers[name];
    if (!worker) return;
    const shares = workerShares(worker, before?.workers[name], this.learners);
    const most = [...ACTIVITIES].sort((a, b) => shares[b] - shares[a]).filter((activity) => shares[activity] >= 0.05).slice(0, 2);
    tell(strip.words, most.map((activity) => `${WORDS[activity]} ${percent(shares[activity])}`).join(", "));
  }

  private color(activity: Activity): string {
    let color = this.colors.get(activity);
    if (color === undefined) {
      color = getComputedStyle(document.documentElement).getPropertyValue(`--${css(activity)}`).trim();
      this.colors.set(activity, color);
    }
    return color;
  }
}

function css(activity: Activity): string {
  return activity.replace(" ", "-");
}
