/** What a person can do: give memory back, and shut kernels down. */

import { Notification } from '@jupyterlab/apputils';
import type { ServiceManager } from '@jupyterlab/services';
import { ServerConnection } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { Store } from './model/store';
import { request } from './requests';

/** Does it, and says in a passing notification how it went. */
export class Actions {
  constructor(store: Store, services: ServiceManager.IManager, trans: TranslationBundle) {
    this._store = store;
    this._services = services;
    this._trans = trans;
  }

  /** Whether the page may do anything; the visitors of somebody's server only look. */
  get allowed(): boolean {
    return this._store.state.may_act && !this._store.stale;
  }

  /** Whether there is a session of this kernel to act on. */
  canAct(kernel: string | undefined): kernel is string {
    return this.allowed && this._store.kernel(kernel) !== undefined;
  }

  /** Whether this server runs the kernel, rather than another one of the same person. */
  runsHere(kernel: string): boolean {
    return this._running.includes(kernel);
  }

  /** Move what is not the model to the host. */
  release(kernel: string): Promise<void> {
    return this._post('release', kernel);
  }

  /** Move the model as well. */
  evict(kernel: string): Promise<void> {
    return this._post('evict', kernel);
  }

  async shutDown(kernel: string): Promise<void> {
    const { kernels, sessions } = this._services;
    const session = [...sessions.running()].find(each => each.kernel?.id === kernel);
    try {
      await (session ? sessions.shutdown(session.id) : kernels.shutdown(kernel));
    } catch (error) {
      this._failed(error);
    }
  }

  private get _running(): string[] {
    return [...this._services.kernels.running()].map(each => each.id);
  }

  private async _post(action: string, kernel: string): Promise<void> {
    const init = { method: 'POST', body: JSON.stringify({ kernel }) };
    try {
      const answer = await request(this._services.serverSettings, action, init);
      Notification.success(answer.text, { autoClose: 4000 });
    } catch (error) {
      this._failed(error);
    }
  }

  private _failed(error: unknown): void {
    const said = error instanceof ServerConnection.ResponseError ? error.message : '';
    Notification.error(said || this._trans.__('The notebook server does not answer.'), {
      autoClose: 8000
    });
  }

  private _store: Store;
  private _services: ServiceManager.IManager;
  private _trans: TranslationBundle;
}
