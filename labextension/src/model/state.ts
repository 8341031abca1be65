/**
 * What the notebook server says of the shared GPU.
 *
 * Times are seconds, sizes bytes, moments seconds since the epoch by the server's clock. What is
 * not known is not there.
 */

export interface IKernelState {
  session: number;
  path: string;
  /** running, waiting, idle, starting, spilled, paused or lost */
  state: string;
  since?: number | null;
  /** turn, memory, copy, drain or budget; empty if it does not wait */
  waits_on?: string;
  waits_since?: number | null;
  /** sessions that come before its turn; only of what waits for it */
  ahead?: number;
  /** users it waits for; an empty name is one that may not be seen */
  behind?: string[];
  lane?: number | null;
  /** the execution count of the cell that runs; empty between cells */
  cell?: string;
  /** on the device: all of it, the model, and what else is kept; each rounded by itself */
  held?: number;
  model?: number;
  kept?: number;
  /** of both, what is on the host */
  spilled?: number;
  device_seconds?: number;
  iterations?: number;
  /** the median of one iteration */
  iteration_seconds?: number;
  /** device time of its last cells that used the device, by execution count; may still grow */
  cells?: { [count: string]: number };
}

export interface IShareState {
  user: string;
  weight: number;
  sessions: number;
  most_sessions: number;
  used: number;
  /** limits; 0 where there is none */
  memory: number;
  resident: number;
  most_resident: number;
  budget: number;
  period: number;
  spent: number;
  /** within, warned, throttled or denied */
  state: string;
  free_at?: number | null;
  text?: string;
}

export interface ILaneState {
  session?: number | null;
  since?: number;
  members?: number;
}

export interface IDeviceSession {
  /** empty for one that may not be seen */
  user: string;
  own: boolean;
  lane?: number | null;
  state: string;
  device_seconds?: number;
}

export interface IDeviceState {
  name: string;
  kind: string;
  state: string;
  note?: string;
  policy?: string;
  capacity: number;
  used: number;
  lanes: { [lane: string]: ILaneState };
  sessions: { [session: string]: IDeviceSession };
}

export interface IState {
  /** the server's clock when this was made */
  at: number;
  /** a sentence while the broker does not answer */
  problem: string;
  /** whether the broker has answered once */
  known: boolean;
  /** whether the page may release memory, or only look */
  may_act: boolean;
  /** whether kernels of this server are led to a broker at all */
  shares: boolean;
  drain: string;
  drain_text?: string;
  kernels: { [kernel: string]: IKernelState };
  share?: IShareState | null;
  device?: IDeviceState | null;
}

/** Before the server has said anything. */
export const NOTHING: IState = {
  at: 0,
  problem: '',
  known: false,
  may_act: false,
  shares: false,
  drain: '',
  kernels: {}
};
