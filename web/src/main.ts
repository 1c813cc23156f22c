// The live page: takes messages from the server, or from a report that contains them, and draws once per frame of the browser.

import "uplot/dist/uPlot.min.css";
import "./page.css";
import { CurvesView, shortName } from "./curves_view";
import { make, tell } from "./dom";
import type { Message } from "./messages";
import { RunView } from "./run_view";

/** Milliseconds of drawing per second that are allowed; beyond, some states are not drawn. */
const MOST_MS = 300;

class Page {
  private readonly runs = new Map<number, RunView>();
  private readonly problems = new Map<number, HTMLElement>();
  private readonly curves = new CurvesView(() => this.tick());
  private readonly unread = make("div", { class: "unread" });
  private readonly places = make("div", { class: "runs" });
  private readonly notice = make("p", { class: "notice", role: "status", hidden: "" });
  private isDue = false;
  private isChanged = false;
  private nextAt = 0;
  private isOver = false;

  constructor(private readonly root: HTMLElement) {}

  take(message: Message): void {
    if (message.kind === "unreadable") this.unreadable(message.run, `${message.name}: ${message.why}`);
    else if (message.kind === "opened") this.open(new RunView(message, message.run), message.run);
    else this.runs.get(message.run)?.state.take(message);
    this.isChanged = true;
    this.plan();
  }

  say(text: string): void {
    this.notice.hidden = text === "";
    tell(this.notice, text);
  }

  /** Say whether the server answers; without it, nothing else is worth saying. */
  over(text: string): void {
    this.isOver = text !== "";
    this.say(text);
  }

  /** Draw again although nothing has come: the time since the last news has changed. */
  tick(): void {
    this.isChanged = true;
    this.plan();
  }

  private open(view: RunView, number: number): void {
    this.problems.get(number)?.remove();
    const known = this.runs.get(number);
    if (known) known.element.replaceWith(view.element);
    else this.places.append(view.element);
    this.runs.set(number, view);
    if (!this.root.contains(this.places)) {
      this.root.replaceChildren(make("h1", {}, "levada"), this.notice, this.unread, this.places);
    }
    if (this.runs.size === 1) view.flow.element.after(this.curves.element);
    else this.places.before(this.curves.element);
    const states = [...this.runs.values()].map((run) => run.state);
    document.title = `${states.map((state) => shortName(state, states)).join(", ")} – levada`;
  }

  private unreadable(number: number, text: string): void {
    if (this.runs.has(number) || this.problems.has(number)) return;
    const place = make("p", { class: "notice", role: "status" }, text);
    this.problems.set(number, place);
    document.getElementById("waiting")?.remove();
    this.unread.append(place);
    if (!this.root.contains(this.unread)) this.root.append(this.unread);
  }

  private plan(): void {
    if (this.isDue || !this.isChanged) return;
    this.isDue = true;
    window.setTimeout(() => requestAnimationFrame(() => this.draw()), Math.max(0, this.nextAt - performance.now()));
  }

  private draw(): void {
    const began = performance.now();
    this.isDue = this.isChanged = false;
    for (const run of this.runs.values()) run.show();
    this.curves.show([...this.runs.values()].map((run) => run.state));
    const spent = performance.now() - began;
    const pause = (1000 * spent) / MOST_MS;
    this.nextAt = began + pause;
    this.root.dataset["drawn"] = String(Number(this.root.dataset["drawn"] ?? 0) + 1);
    this.root.dataset["ms"] = spent.toFixed(1);
    if (pause > 300 && !this.isOver) this.say(`Large flow: the page is drawn every ${(pause / 1000).toFixed(1)} s.`);
  }
}

function start(): void {
  const root = document.getElementById("page");
  if (!root) return;
  const page = new Page(root);
  const data = document.getElementById("data");
  if (data) {
    for (const message of JSON.parse(data.textContent ?? "[]") as Message[]) page.take(message);
    return;
  }
  const source = new EventSource("events");
  source.addEventListener("message", (event) => page.take(JSON.parse(String(event.data)) as Message));
  source.addEventListener("open", () => page.over(""));
  source.addEventListener("error", () => page.over("The server of this page has ended, or cannot be reached. This is its last news."));
  window.setInterval(() => page.tick(), 1000);
}

start();
