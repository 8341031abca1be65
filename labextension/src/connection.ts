/** How the page hears of the GPU: one WebSocket, or, where that is blocked, a question each 5 s. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';

import type { Message, Store } from './model/store';

/** So many WebSockets that fail in a row, and the page asks instead. */
const MOST_FAILURES = 3;
const POLL_MS = 5000;

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
      frequency: { interval: POLL_MS, backoff: true, max: 12 * POLL_MS },
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
    if (this._socket) {
      return;
    }
    if (this._failures < MOST_FAILURES) {
      this._open();
      return;
    }
    try {
      const state = await this._ask();
      if (this._active) {
        this._store.receive({ state });
      }
    } catch (error) {
      this._store.fallSilent();
      this._unanswered = true;
      throw error; // the next question comes later
    }
    if (this._unanswered) {
      // The server was away, so it is not known that WebSockets are blocked.
      this._unanswered = false;
      this._failures = 0;
    }
  }

  private async _ask() {
    const url = URLExt.join(this._settings.baseUrl, 'jgpu/api/state');
    const response = await ServerConnection.makeRequest(url, {}, this._settings);
    if (!response.ok) {
      throw new ServerConnection.ResponseError(response);
    }
    return response.json();
  }

  private _open(): void {
    const { appendToken, token, wsUrl, WebSocket } = this._settings;
    const url = URLExt.join(wsUrl, 'jgpu/api/watch');
    const socket = new WebSocket(
      appendToken && token ? `${url}?token=${encodeURIComponent(token)}` : url
    );
    this._socket = socket;
    socket.onmessage = event => {
      this._failures = 0;
      this._store.receive(JSON.parse(event.data) as Message);
    };
    socket.onclose = () => {
      if (this._socket === socket) {
        this._socket = null;
        this._failures += 1;
        if (this._failures > 1) {
          // One alone may be a proxy that closes what is quiet.
          this._store.fallSilent();
        }
        const interval = this._failures < MOST_FAILURES ? 500 * this._failures : 0;
        void this._poll.schedule({ interval, phase: 'constructed' });
      }
    };
  }

  private _close(): void {
    const socket = this._socket;
    this._socket = null;
    socket?.close();
  }

  private _onVisibility = (): void => this.update();

  private _store: Store;
  private _settings: ServerConnection.ISettings;
  private _wanted: () => boolean;
  private _poll: Poll;
  private _socket: WebSocket | null = null;
  private _active = false;
  private _failures = 0;
  private _unanswered = false;
}
