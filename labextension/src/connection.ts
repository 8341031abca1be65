/** How the page hears of the GPU: one WebSocket, or, where that is blocked, a question each 5 s. */

import type { ServerConnection } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';

import type { Store } from './model/store';
import { isRefusal, request } from './requests';
import type { End } from './watch';
import { Watch } from './watch';

/** So many WebSockets that fail in a row, and the page asks instead. */
const MOST_FAILURES = 3;
const POLL_MS = 5000;
/**
 * So long at most until a server that was away is asked again: whoever has started it anew looks at
 * the page at once, and a question costs it less than JupyterLab's own.
 */
const AWAY_MS = 15000;
/** So long it has for an answer; what holds one back for longer is as good as away. */
const ANSWER_MS = 10000;

/**
 * Keeps the store up to date while somebody looks and a kernel is open, and sends nothing
 * otherwise.
 *
 * It says nothing in the browser's console and opens no dialog: the store knows when it is stale.
 */
export class Connection implements IDisposable {
  /** `wanted`: whether there is anything to be told of. */
  constructor(store: Store, settings: ServerConnection.ISettings, wanted: () => boolean) {
    this._store = store;
    this._settings = settings;
    this._wanted = wanted;
    this._poll = new Poll({
      name: '@jgpu/lab:connection',
      auto: false,
      factory: () => this._renew(),
      frequency: { interval: POLL_MS, backoff: true, max: AWAY_MS },
      standby: () => !this._active
    });
    document.addEventListener('visibilitychange', this._onVisibility);
    this.update();
  }

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  /** Begin or end as it is wanted now. */
  update(): void {
    const wanted = this._wanted();
    if (!wanted) {
      this._store.forget(); // nobody will tell that the last kernel has gone
    }
    const active = !this.isDisposed && !document.hidden && wanted;
    if (active === this._active) {
      return;
    }
    this._active = active;
    if (active) {
      this._failures = 0;
      void this._poll.refresh();
    } else {
      this._close();
      void this._poll.stop();
    }
  }

  dispose(): void {
    if (!this.isDisposed) {
      document.removeEventListener('visibilitychange', this._onVisibility);
      this._close();
      this._poll.dispose();
    }
  }

  /** Open a WebSocket where none is open, or ask. */
  private async _renew(): Promise<void> {
    if (this._watch) {
      return;
    }
    if (this._failures < MOST_FAILURES) {
      this._open();
      return;
    }
    try {
      const state = await request(this._settings, 'state', {
        signal: AbortSignal.timeout(ANSWER_MS)
      });
      if (this._active) {
        this._store.receive({ state });
      }
    } catch (error) {
      this._store.fallSilent(isRefusal(error) ? 'refused' : 'away');
      this._unanswered = true;
      throw error; // the next question comes later
    }
    if (this._unanswered) {
      // The server was away, so it is not known that WebSockets are blocked.
      this._unanswered = false;
      this._failures = 0;
    }
  }

  private _open(): void {
    this._watch = new Watch(
      this._settings,
      message => {
        this._failures = 0;
        this._store.receive(message);
      },
      this._onEnd
    );
  }

  private _onEnd = (how: End): void => {
    this._watch = null;
    // Who holds back one holds back all.
    this._failures = how === 'closed' ? this._failures + 1 : MOST_FAILURES;
    if (this._failures > 1) {
      // One alone may be a proxy that closes what is quiet.
      this._store.fallSilent('away');
    }
    const interval = this._failures < MOST_FAILURES ? 500 * this._failures : 0;
    void this._poll.schedule({ interval, phase: 'constructed' });
  };

  private _close(): void {
    this._watch?.dispose();
    this._watch = null;
  }

  private _onVisibility = (): void => this.update();

  private _store: Store;
  private _settings: ServerConnection.ISettings;
  private _wanted: () => boolean;
  private _poll: Poll;
  private _watch: Watch | null = null;
  private _active = false;
  private _failures = 0;
  private _unanswered = false;
}
