// What is known of a run: its last frames, its metrics, and what happened between two frames.

import type { Changed, ChannelFrame, Frame, Message, NodeFrame, Opened, WorkerFrame } from "./messages";

/** Seconds of frames that are kept. */
const KEPT_S = 35;
/** Number of rows from which every second one is left out. */
const MOST_ROWS = 4000;

export type Share = "busy" | "items" | "room" | "weights";
export type Shares = Record<Share, number>;

export class RunState {
  frames: Frame[] = [];
  columns: Record<string, (number | null)[]> = {};
  numRows = 0;
  status: Changed | null = null;
  /** Changes with the rows, so that curves are drawn again only then. */
  rowsVersion = 0;

  constructor(readonly opened: Opened) {}

  take(message: Message): void {
    switch (message.kind) {
      case "frames":
        for (const frame of message.frames) {
          const last = this.frames.at(-1);
          if (last && frame.elapsed_s < last.elapsed_s) this.frames = []; // the run was resumed at an earlier state
          this.frames.push(frame);
        }
        this.forget();
        break;
      case "rows":
        if (message.is_first) [this.columns, this.numRows] = [{}, 0];
        this.append(message.columns);
        this.rowsVersion += 1;
        break;
      case "status":
        this.status = message;
        break;
    }
  }

  get last(): Frame | undefined {
    return this.frames.at(-1);
  }

  /** The frame about so many seconds before the last one, if it belongs to the same process. */
  before(seconds: number): Frame | undefined {
    const last = this.last;
    if (!last) return undefined;
    let found: Frame | undefined;
    for (let index = this.frames.length - 2; index >= 0; index -= 1) {
      const frame = this.frames[index];
      if (!frame || frame.wall_s > last.wall_s) break;
      found = frame;
      if (frame.at_s <= last.at_s - seconds) break;
    }
    return found;
  }

  private forget(): void {
    const last = this.last;
    if (!last) return;
    const first = this.frames.findIndex((frame) => frame.at_s >= last.at_s - KEPT_S);
    if (first > 0) this.frames.splice(0, first);
  }

  private append(columns: Record<string, (number | null)[]>): void {
    const num = Math.max(0, ...Object.values(columns).map((column) => column.length));
    for (const name of Object.keys(columns)) this.columns[name] ??= Array<null>(this.numRows).fill(null);
    for (let row = 0; row < num; row += 1) {
      this.rewind(columns["step"]?.[row] ?? Infinity);
      for (const [name, column] of Object.entries(this.columns)) column.push(columns[name]?.[row] ?? null);
      this.numRows += 1;
    }
    if (this.numRows > MOST_ROWS) {
      for (const [name, column] of Object.entries(this.columns)) {
        this.columns[name] = column.filter((_, index) => index % 2 === 0 || index === this.numRows - 1);
      }
      this.numRows = Object.values(this.columns)[0]?.length ?? 0;
    }
  }

  /** Forget rows beyond a step: the run was resumed there. `levada compare` reads metrics likewise. */
  private rewind(step: number): void {
    const steps = this.columns["step"] ?? [];
    while ((steps.at(-1) ?? 0) > step) {
      for (const column of Object.values(this.columns)) column.pop();
      this.numRows -= 1;
    }
  }
}

/** Shares of the time of a node since an earlier frame, or since the start. */
export function nodeShares(now: NodeFrame, before: NodeFrame | undefined): Shares {
  const seconds = {
    busy: now.busy_s - (before?.busy_s ?? 0),
    items: now.idle_s - (before?.idle_s ?? 0),
    room: now.room_s - (before?.room_s ?? 0),
    weights: now.weights_s - (before?.weights_s ?? 0),
  };
  return normalized(seconds);
}

export function normalized<T extends Record<string, number>>(seconds: T): T {
  const parts = Object.entries(seconds).map(([name, value]) => [name, Math.max(0, value)] as const);
  const all = parts.reduce((sum, [, value]) => sum + value, 0);
  return Object.fromEntries(parts.map(([name, value]) => [name, all > 0 ? value / all : 0])) as T;
}

/** What workers do, in the order in which it is drawn. */
export const ACTIVITIES = ["environment", "inference", "writing", "learning", "other nodes", "transport", "data", "room", "weights", "main", "outside", "starting"] as const;
export type Activity = (typeof ACTIVITIES)[number];

export function workerShares(now: WorkerFrame, before: WorkerFrame | undefined, learners: ReadonlySet<string>): Record<Activity, number> {
  const seconds = Object.fromEntries(ACTIVITIES.map((name) => [name, 0])) as Record<Activity, number>;
  const then = totals(before, learners);
  for (const [name, value] of Object.entries(totals(now, learners))) seconds[name as Activity] = value - (then[name as Activity] ?? 0);
  return normalized(seconds);
}

function totals(worker: WorkerFrame | undefined, learners: ReadonlySet<string>): Partial<Record<Activity, number>> {
  const found: Partial<Record<Activity, number>> = {};
  const add = (name: Activity, value: number): void => {
    found[name] = (found[name] ?? 0) + value;
  };
  for (const [node, own] of Object.entries(worker?.times_s ?? {})) {
    for (const [what, value] of Object.entries(own)) {
      if (node !== "") {
        const isKnown = what === "environment" || what === "inference" || what === "writing";
        add(isKnown ? what : learners.has(node) ? "learning" : "other nodes", value);
      } else if (what === "waiting") {
        for (const [reason, share] of Object.entries(worker?.waits_for ?? {})) {
          if (reason === "data" || reason === "room" || reason === "weights" || reason === "main") add(reason, value * share);
        }
      } else if (what === "transport" || what === "outside" || what === "starting") add(what, value);
    }
  }
  return found;
}

/** Items per second that a channel passed on since an earlier frame. */
export function channelRate(now: ChannelFrame, before: ChannelFrame | undefined, seconds: number): number {
  return seconds > 0 ? (now.ledger.consumed - (before?.ledger.consumed ?? 0)) / seconds : 0;
}
