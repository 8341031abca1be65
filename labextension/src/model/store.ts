/** The state of the moment, and how old it is. */

import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import { Lanes } from './lanes';
import { merge } from './patch';
import type { IKernelState, IState } from './state';
import { NOTHING } from './state';

/** What the server sends: the whole state at first, then what has changed of it. */
export type Message = { state: IState } | { patch: object };
/** Why the notebook server says nothing: it does not answer, or it lets the page in no more. */
export type Silence = 'away' | 'refused';

/** Holds what the server said last; parts of the page redraw themselves when it changes. */
export class Store {
  /** `now`: seconds since the epoch by the page's clock. */
  constructor(now: () => number = () => Date.now() / 1000) {
    this._now = now;
  }

  get state(): IState {
    return this._state;
  }

  /** Whether the figures are those of earlier: the server is silent, or the broker is for it. */
  get stale(): boolean {
    return this._silence !== null || this._state.problem !== '';
  }

  /** Why nothing newer comes of the notebook server itself; null while it speaks. */
  get silence(): Silence | null {
    return this._silence;
  }

  /** Whether there is something to show at all. */
  get known(): boolean {
    return this._state.known || this._state.problem !== '';
  }

  get lanes(): Lanes {
    return this._lanes;
  }

  /** Emitted after each change. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The server's clock now, which may differ from this machine's. */
  get serverNow(): number {
    return this._now() + this._ahead;
  }

  kernel(id: string | undefined): IKernelState | undefined {
    return id !== undefined && Object.prototype.hasOwnProperty.call(this._state.kernels, id)
      ? this._state.kernels[id]
      : undefined;
  }

  /** Take in what the server sent. */
  receive(message: Message): void {
    const made = 'state' in message ? message.state : merge(this._state, message.patch);
    this._state = { ...NOTHING, ...(made as IState) };
    this._ahead = this._state.at - this._now();
    this._silence = null;
    if (!this._state.problem) {
      this._lanes.see(this._state.device, this._state.at);
    }
    this._changed.emit();
  }

  /** The server says nothing; what it said last stays. */
  fallSilent(why: Silence): void {
    if (this._silence !== why && this._state.at) {
      this._silence = why;
      this._changed.emit();
    }
  }

  /** No kernel is open: what was told of any is over. */
  forget(): void {
    if (this._state !== NOTHING) {
      this._state = NOTHING;
      this._silence = null;
      this._lanes = new Lanes();
      this._changed.emit();
    }
  }

  /** What belongs to the state, but is not told with it, has changed: names of notebooks. */
  redraw(): void {
    this._changed.emit();
  }

  private _now: () => number;
  private _state: IState = NOTHING;
  private _ahead = 0;
  private _silence: Silence | null = null;
  private _lanes = new Lanes();
  private _changed = new Signal<this, void>(this);
}
