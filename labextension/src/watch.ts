/** The WebSocket by which the notebook server tells its state, and what changes of it. */

import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';

import type { Message } from './model/store';

/**
 * The server says the state when it opens; through a proxy that holds things back it does not. That
 * is counted in ticks, for a page that is busy loading hears nothing and counts nothing.
 */
const TICK_MS = 1000;
const FIRST_TICKS = 8;

/** How it ended: it was closed, or never said a word. */
export type End = 'closed' | 'held back';

/** One such WebSocket, from its opening to its end, which is told unless it was asked for. */
export class Watch implements IDisposable {
  constructor(
    settings: ServerConnection.ISettings,
    onMessage: (message: Message) => void,
    onEnd: (end: End) => void
  ) {
    const { appendToken, token, wsUrl, WebSocket } = settings;
    const url = URLExt.join(wsUrl, 'jgpu/api/watch');
    const end = (how: End): void => {
      if (!this._isDisposed) {
        this.dispose();
        onEnd(how);
      }
    };
    this._socket = new WebSocket(
      appendToken && token ? `${url}?token=${encodeURIComponent(token)}` : url
    );
    let left = FIRST_TICKS;
    this._first = setInterval(() => {
      left -= 1;
      if (left === 0) {
        end('held back');
      }
    }, TICK_MS);
    this._socket.onmessage = event => {
      clearInterval(this._first);
      if (!this._isDisposed) {
        onMessage(JSON.parse(event.data) as Message);
      }
    };
    this._socket.onclose = () => end('closed');
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    clearInterval(this._first);
    this._socket.close();
  }

  private _socket: WebSocket;
  private _first: ReturnType<typeof setInterval>;
  private _isDisposed = false;
}
