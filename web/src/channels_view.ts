// A card for each channel: fill, rate, drops, and a histogram of its lag beside its bound.

import { make, shape, tell } from "./dom";
import { count, number, rate } from "./format";
import type { ChannelFrame, LagFrame, ReplayFrame } from "./messages";
import { channelRate, type RunState } from "./run_state";

const WIDTH = 220;
const HEIGHT = 64;
const BASE = HEIGHT - 14;
const MOST_BARS = 16;

export class ChannelsView {
  readonly element = make("section", { class: "channels" });
  private readonly cards = new Map<string, Card>();

  show(state: RunState): void {
    const last = state.last;
    if (!last) return;
    const before = state.before(5);
    const seconds = before ? last.at_s - before.at_s : 0;
    for (const [name, channel] of Object.entries(last.channels)) {
      this.card(name).showChannel(channel, channelRate(channel, before?.channels[name], seconds));
    }
    for (const [name, replay] of Object.entries(last.replays)) this.card(name).showReplay(replay);
  }

  private card(name: string): Card {
    let card = this.cards.get(name);
    if (!card) {
      card = new Card(name);
      this.cards.set(name, card);
      this.element.append(card.element);
    }
    return card;
  }
}

class Card {
  readonly element = make("article", { class: "card" });
  private readonly meter = make("div", { class: "meter" }, make("span"));
  private readonly facts = make("p");
  private readonly drops = make("p", { class: "drops" });
  private readonly lags = new Map<string, Histogram>();

  constructor(name: string) {
    this.element.append(make("h3", {}, name), this.meter, this.facts, this.drops);
  }

  showChannel(channel: ChannelFrame, itemsPerS: number): void {
    this.fill(channel.fill / Math.max(1, channel.capacity));
    tell(this.facts, `${count(channel.fill)} of ${count(channel.capacity)} items, ${rate(itemsPerS)} items/s`);
    const reasons = Object.entries(channel.ledger.dropped_by_reason).map(([reason, num]) => `${count(num)} ${reason}`);
    if (channel.ledger.lost) reasons.push(`${count(channel.ledger.lost)} lost`);
    tell(this.drops, reasons.length ? `dropped: ${reasons.join(", ")}` : "nothing dropped");
    this.drops.classList.toggle("some", reasons.length > 0);
    for (const [policy, lag] of Object.entries(channel.lag)) {
      let histogram = this.lags.get(policy);
      if (!histogram) {
        histogram = new Histogram(policy);
        this.lags.set(policy, histogram);
        this.element.append(histogram.element);
      }
      histogram.show(lag);
    }
  }

  showReplay(replay: ReplayFrame): void {
    this.fill(replay.fill / Math.max(1, replay.capacity));
    const asked = replay.asked === null ? "" : ` of ${number(replay.asked)} asked for`;
    tell(this.facts, `${count(replay.fill)} of ${count(replay.capacity)} entries, ${number(replay.reuse)} samples per insert${asked}`);
    tell(this.drops, `${count(replay.inserted)} inserted, ${count(replay.sampled)} sampled`);
  }

  private fill(share: number): void {
    const bar = this.meter.firstElementChild;
    if (bar instanceof HTMLElement) bar.style.width = `${(100 * Math.min(1, share)).toFixed(1)}%`;
  }
}

/** Numbers of items by lag: updates while they were made below, updates while they waited above. */
class Histogram {
  readonly element = make("figure");
  private readonly svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
  private readonly words = make("figcaption");
  private drawn = "";

  constructor(private readonly policy: string) {
    this.element.append(this.svg, this.words);
  }

  show(lag: LagFrame): void {
    const drawn = JSON.stringify(lag);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const most = Math.min(MOST_BARS, Math.max(lag.max, lag.bound ?? 0, 3));
    const made = Array<number>(most + 1).fill(0);
    const waited = Array<number>(most + 1).fill(0);
    for (const [whileMade, whileWaiting, num] of lag.counts) {
      const all = whileMade + whileWaiting;
      const at = Math.min(most, all);
      const share = all > 0 ? whileMade / all : 1;
      made[at] = (made[at] ?? 0) + num * share;
      waited[at] = (waited[at] ?? 0) + num * (1 - share);
    }
    const highest = Math.max(1, ...made.map((num, at) => num + (waited[at] ?? 0)));
    const step = WIDTH / (most + 1);
    const parts: SVGElement[] = [];
    for (let at = 0; at <= most; at += 1) {
      let top = BASE;
      for (const [kind, num] of [["made", made[at] ?? 0], ["waited", waited[at] ?? 0]] as const) {
        const height = ((BASE - 4) * num) / highest;
        top -= height;
        if (height > 0) parts.push(shape("rect", { class: kind, x: at * step + 1, y: top, width: step - 2, height }));
      }
      const label = shape("text", { x: (at + 0.5) * step, y: HEIGHT - 3 });
      label.textContent = at === most && lag.max > most ? `${at}+` : String(at);
      if (most <= 8 || at % 4 === 0) parts.push(label);
    }
    if (lag.bound !== null && lag.bound <= most) {
      const x = (lag.bound + 1) * step;
      parts.push(shape("line", { class: "bound", x1: x, x2: x, y1: 0, y2: BASE }));
    }
    this.svg.replaceChildren(...parts);
    const bound = lag.bound === null ? "no bound" : `bound ${lag.bound}`;
    const words = `lag of ${this.policy}: mean ${number(lag.mean)}, max ${lag.max}, ${bound}`;
    tell(this.words, words);
    this.svg.setAttribute("aria-label", words);
  }
}
