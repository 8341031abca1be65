/** Who had each lane over the last minute, from what the page saw. */

import type { IDeviceState, ILaneState } from './state';

/** How far back the strip goes, in seconds. */
export const SPAN = 60;
/** The most stretches that are kept of a lane; the oldest go first. */
export const MOST = 600;

/** A stretch of time in which one session, or nobody, had a lane. */
export interface IStretch {
  begin: number;
  session: number | null;
}

/**
 * Invariant: of each lane the stretches follow one another, at most `MOST` of them, and only the
 * first began more than `SPAN` before the last moment seen.
 */
export class Lanes {
  /** Take in who has which lane at a moment of the server's clock. */
  see(device: IDeviceState | null | undefined, at: number): void {
    const lanes = device?.lanes ?? {};
    for (const lane of this._lanes.keys()) {
      if (!(lane in lanes)) {
        this._lanes.delete(lane);
      }
    }
    for (const [lane, now] of Object.entries(lanes)) {
      this._lanes.set(lane, this._next(this._lanes.get(lane) ?? [], now, at));
    }
  }

  /** By lane: the stretches, oldest first. */
  get stretches(): ReadonlyMap<string, readonly IStretch[]> {
    return this._lanes;
  }

  private _next(seen: readonly IStretch[], now: ILaneState, at: number): IStretch[] {
    const session = now.session ?? null;
    const last = seen[seen.length - 1];
    // A clock that was set back begins anew.
    let made = last && at < last.begin ? [] : [...seen];
    if (!made.length || made[made.length - 1].session !== session) {
      const earliest = made.length ? made[made.length - 1].begin : at - SPAN;
      const since = Math.min(at, Math.max(earliest, now.since || at));
      made.push({ begin: since, session });
    }
    while (made.length > 1 && (made[1].begin <= at - SPAN || made.length > MOST)) {
      made = made.slice(1);
    }
    return made;
  }

  private _lanes = new Map<string, IStretch[]>();
}
