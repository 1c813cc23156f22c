// What the server sends, and what a report contains; see levada.watch.messages and levada.run.frames.frame.

export interface Ledger {
  produced: number;
  consumed: number;
  dropped: number;
  lost: number;
  in_flight: number;
  dropped_by_reason: Record<string, number>;
}

export interface NodeFrame {
  firings: number;
  busy_s: number;
  idle_s: number;
  room_s: number;
  weights_s: number;
  blocked_by: string | null;
}

export interface LagFrame {
  max: number;
  mean: number | null;
  bound: number | null;
  /** Updates while the item was made, updates while it waited, number of such items. */
  counts: [number, number, number][];
}

export interface ChannelFrame {
  fill: number;
  capacity: number;
  ledger: Ledger;
  lag: Record<string, LagFrame>;
}

export interface ReplayFrame {
  fill: number;
  capacity: number;
  inserted: number;
  sampled: number;
  reuse: number;
  asked: number | null;
  ledger: Ledger;
}

export interface WorkerFrame {
  times_s: Record<string, Record<string, number>>;
  waits_for: Record<string, number>;
}

export interface Advice {
  setting: string;
  value: number | string;
  words: string;
  speedup: number;
}

export interface Frame {
  at_s: number;
  elapsed_s: number;
  wall_s: number;
  env_steps: number;
  updates: number;
  episodes: number;
  steps_per_s: number;
  updates_per_s: number;
  return_mean_100: number | null;
  return_means_100: Record<string, number | null>;
  nodes: Record<string, NodeFrame>;
  channels: Record<string, ChannelFrame>;
  replays: Record<string, ReplayFrame>;
  workers: Record<string, WorkerFrame>;
  versions: Record<string, number>;
  bottleneck: string | null;
  advice: Advice | null;
  restarts: number;
  events: [number, string][];
  nbytes: number;
  free_nbytes: number;
  total_nbytes: number;
}

export interface Identity {
  algorithm: string;
  env: string;
  seed: number;
  deployment: string;
  threads: number;
  precision: string;
  device: string;
  machine: Record<string, string>;
  flow_hash: string;
}

export interface Setting {
  value: unknown;
  from: string;
}

export type Status = "running" | "finished" | "failed" | "cut off";

export interface Opened {
  kind: "opened";
  run: number;
  name: string;
  identity: Identity;
  settings: Record<string, Setting>;
  versions: Record<string, string | null>;
  svg: string | null;
}

export interface Unreadable {
  kind: "unreadable";
  run: number;
  name: string;
  why: string;
}

export interface Rows {
  kind: "rows";
  run: number;
  columns: Record<string, (number | null)[]>;
  is_first: boolean;
}

export interface Frames {
  kind: "frames";
  run: number;
  frames: Frame[];
}

export interface Changed {
  kind: "status";
  run: number;
  status: Status;
  stopped_by: string | null;
  error: string | null;
}

export type Message = Opened | Unreadable | Rows | Frames | Changed;
