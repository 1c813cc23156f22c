// Everything about one run.

import { ChannelsView } from "./channels_view";
import { make, Rows, table, tell } from "./dom";
import { FlowView } from "./flow_view";
import { bytes, clock, count, number, percent, rate } from "./format";
import type { Frame, Opened, Status } from "./messages";
import { RunState } from "./run_state";
import { WorkersView } from "./workers_view";

const FACTS = ["return", "env steps", "updates", "episodes", "time", "restarts", "memory"] as const;
/** Seconds without news after which a running run is said to be silent. */
const SILENT_S = 10;

export class RunView {
  readonly element: HTMLElement;
  readonly state: RunState;
  private readonly status = make("span", { class: "status" });
  private readonly sentence = make("p", { class: "sentence", role: "status" });
  private readonly facts = new Map<string, HTMLElement>();
  readonly flow: FlowView;
  private readonly channels = new ChannelsView();
  private readonly workers: WorkersView;
  private readonly events = make("ol", { class: "events" });
  private readonly ledger: Rows;
  private readonly error = make("pre", { class: "error", hidden: "", tabindex: "0" });
  private shown = "";

  constructor(opened: Opened, index: number) {
    this.state = new RunState(opened);
    const { algorithm, env, seed, deployment } = opened.identity;
    this.flow = new FlowView(opened.svg);
    this.workers = new WorkersView(this.flow.learners);
    const [ledger, rows] = table("Ledger: what became of the items", ["channel", "produced", "consumed", "dropped", "lost", "in flight"]);
    this.ledger = rows;
    const list = make("dl", { class: "facts" });
    for (const name of FACTS) {
      const value = make("dd", { "data-fact": name });
      this.facts.set(name, value);
      list.append(make("div", {}, make("dt", {}, name), value));
    }
    const title = make("h2", {}, make("i", { class: `swatch curve-${index % 6}` }), `${algorithm} on ${env}, seed ${seed}, ${deployment} `, this.status);
    this.element = make(
      "article", { class: "run" },
      title, make("p", { class: "where" }, opened.name), this.sentence, list, this.error, this.flow.element, this.channels.element,
      this.workers.element, details("Events", true, this.events), details("Ledger", true, ledger),
      details("Configuration", false, ...configuration(opened)),
    );
  }

  show(): void {
    this.showStatus(this.state.status?.status ?? "running");
    const frame = this.state.last;
    if (!frame) return;
    tell(this.sentence, sentence(frame));
    this.showFacts(frame);
    this.flow.show(this.state);
    this.channels.show(this.state);
    this.workers.show(this.state);
    this.showEvents(frame);
    for (const [name, part] of [...Object.entries(frame.channels), ...Object.entries(frame.replays)]) {
      const { produced, consumed, dropped, lost, in_flight } = part.ledger;
      const [, ...cells] = this.ledger.cells(name);
      [produced, consumed, dropped, lost, in_flight].forEach((value, index) => {
        const cell = cells[index];
        if (cell) tell(cell, count(value));
      });
    }
  }

  private showStatus(status: Status): void {
    const last = this.state.last;
    const isSilent = status === "running" && last !== undefined && Date.now() / 1000 - last.at_s > SILENT_S;
    const why = this.state.status?.stopped_by;
    tell(this.status, isSilent ? `running, silent for ${clock(Date.now() / 1000 - last.at_s)}` : why ? `${status}: ${why}` : status);
    this.status.className = `status ${status.replace(" ", "-")}`;
    const error = this.state.status?.error ?? null;
    this.error.hidden = error === null;
    tell(this.error, error ?? "");
  }

  private showFacts(frame: Frame): void {
    const means = Object.entries(frame.return_means_100).map(([name, mean]) => `${name} ${number(mean)}`);
    const values: Record<(typeof FACTS)[number], string> = {
      return: means.length ? means.join(", ") : number(frame.return_mean_100),
      "env steps": `${count(frame.env_steps)} (${rate(frame.steps_per_s)}/s)`,
      updates: `${count(frame.updates)} (${rate(frame.updates_per_s)}/s)`,
      episodes: count(frame.episodes),
      time: clock(frame.elapsed_s),
      restarts: count(frame.restarts),
      memory: `${bytes(frame.nbytes)}, ${percent(frame.free_nbytes / Math.max(1, frame.total_nbytes))} of the machine free`,
    };
    for (const [name, value] of Object.entries(values)) {
      const place = this.facts.get(name);
      if (place) tell(place, value);
    }
    this.facts.get("restarts")?.classList.toggle("some", frame.restarts > 0);
  }

  private showEvents(frame: Frame): void {
    const shown = JSON.stringify(frame.events);
    if (shown === this.shown) return;
    this.shown = shown;
    const lines = [...frame.events].reverse().map(([at, text]) => make("li", {}, make("time", {}, clock(at)), ` ${text}`));
    this.events.replaceChildren(...lines);
  }
}

function sentence(frame: Frame): string {
  if (frame.bottleneck === null) return frame.updates ? "What limits the speed is not known yet." : "No update yet.";
  const advice = frame.advice ? ` Faster: ${frame.advice.words}, expected ${frame.advice.speedup.toFixed(1)} times the speed.` : "";
  return `${frame.bottleneck.charAt(0).toUpperCase()}${frame.bottleneck.slice(1)}.${advice}`;
}

function details(title: string, isOpen: boolean, ...content: HTMLElement[]): HTMLElement {
  return make("details", isOpen ? { open: "" } : {}, make("summary", {}, title), ...content);
}

function configuration(opened: Opened): HTMLElement[] {
  const [settings, rows] = table("Settings", ["setting", "value", "from"]);
  for (const [name, setting] of Object.entries(opened.settings)) {
    const [, value, origin] = rows.cells(name);
    if (value) tell(value, typeof setting.value === "string" ? setting.value : JSON.stringify(setting.value));
    if (origin) tell(origin, setting.from);
  }
  return [settings, pairs("Versions", opened.versions), pairs("Machine", opened.identity.machine), pairs("Flow", { sha256: opened.identity.flow_hash })];
}

function pairs(caption: string, values: Record<string, string | null>): HTMLElement {
  const [whole, rows] = table(caption, ["name", "value"]);
  for (const [name, text] of Object.entries(values)) {
    const [, value] = rows.cells(name);
    if (value) tell(value, text ?? "not installed");
  }
  return whole;
}
