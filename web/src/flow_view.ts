// The drawing of the flow, with the state of each node and channel in it.

import { make, Rows, shape, table, tell } from "./dom";
import { percent } from "./format";
import type { Frame } from "./messages";
import { nodeShares, type RunState, type Share } from "./run_state";

const SHARES: Share[] = ["busy", "items", "room", "weights"];
const WORDS: Record<Share, string> = {
  busy: "busy",
  items: "waits for items",
  room: "waits for room",
  weights: "waits for weights",
};
/** Share of its time from which a node counts as limiting, or as held back. */
const MUCH = 0.5;

interface NodeMarks {
  group: SVGGElement;
  bars: Record<Share, SVGElement>;
  left: number;
  width: number;
}

interface ChannelMarks {
  fill: SVGElement;
  width: number;
}

export class FlowView {
  readonly element = make("section", { class: "flow" });
  readonly learners = new Set<string>();
  private readonly nodes = new Map<string, NodeMarks>();
  private readonly channels = new Map<string, ChannelMarks>();
  private readonly rows: Rows;

  constructor(svg: string | null) {
    const [shares, rows] = table("Nodes: share of the last seconds", ["node", ...SHARES.map((share) => WORDS[share])]);
    this.rows = rows;
    const legend = make("ul", { class: "legend" }, ...SHARES.map((share) => make("li", { class: share }, WORDS[share])));
    const drawing = svg === null ? null : parse(svg);
    if (drawing) {
      this.element.append(make("div", { class: "drawing scroll", tabindex: "0", role: "region", "aria-label": "Flow" }, drawing));
      this.mark(drawing);
    }
    this.element.append(legend, shares);
  }

  show(state: RunState): void {
    const last = state.last;
    if (!last) return;
    const before = state.before(5);
    for (const [name, node] of Object.entries(last.nodes)) {
      const shares = nodeShares(node, before?.nodes[name]);
      const [, ...cells] = this.rows.cells(name);
      SHARES.forEach((share, index) => {
        const cell = cells[index];
        if (cell) tell(cell, percent(shares[share]));
      });
      const marks = this.nodes.get(name);
      if (!marks) continue;
      let x = marks.left;
      for (const share of SHARES) {
        const width = marks.width * shares[share];
        marks.bars[share].setAttribute("x", x.toFixed(1));
        marks.bars[share].setAttribute("width", width.toFixed(1));
        x += width;
      }
      marks.group.classList.toggle("is-limiting", shares.busy >= MUCH);
      marks.group.classList.toggle("is-held-back", shares.room + shares.weights >= MUCH);
    }
    this.showChannels(last);
  }

  private showChannels(frame: Frame): void {
    for (const [name, channel] of Object.entries(frame.channels)) {
      const marks = this.channels.get(name);
      const share = Math.min(1, channel.fill / Math.max(1, channel.capacity));
      marks?.fill.setAttribute("width", (marks.width * share).toFixed(1));
    }
  }

  private mark(drawing: SVGSVGElement): void {
    for (const group of drawing.querySelectorAll<SVGGElement>("g[data-node]")) {
      const card = [...group.querySelectorAll("rect")].at(-1);
      if (!card) continue;
      const [x, y, width, height] = box(card);
      const left = x + 6;
      const bars = Object.fromEntries(
        SHARES.map((share) => [share, shape("rect", { class: `bar ${share}`, x: left, y: y + height - 8, width: 0, height: 4 })]),
      ) as Record<Share, SVGElement>;
      group.append(...SHARES.map((share) => bars[share]));
      this.nodes.set(group.dataset["node"] ?? "", { group, bars, left, width: width - 12 });
      if (card.classList.contains("lv-learn")) this.learners.add(group.dataset["node"] ?? "");
    }
    for (const group of drawing.querySelectorAll<SVGGElement>("g[data-channel]")) {
      const pill = group.querySelector("rect");
      if (!pill) continue;
      const [x, y, width, height] = box(pill);
      const fill = shape("rect", { class: "fill", x, y, width: 0, height, rx: height / 2 });
      pill.after(fill);
      this.channels.set(group.dataset["channel"] ?? "", { fill, width });
    }
  }
}

function box(rect: Element): [number, number, number, number] {
  const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => Number(rect.getAttribute(name)));
  return [x ?? 0, y ?? 0, width ?? 0, height ?? 0];
}

function parse(svg: string): SVGSVGElement | null {
  const root = new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
  return root instanceof SVGSVGElement ? document.importNode(root, true) : null;
}
