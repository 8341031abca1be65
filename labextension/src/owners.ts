/** What each kernel of this server belongs to: a notebook or a console, as it is called now. */

import type { Session } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';

import { basename, short } from './model/figures';

/** What brings it to the front. */
const COMMANDS = new Map([
  ['notebook', 'docmanager:open'],
  ['console', 'console:open']
]);

/**
 * The server knows what a notebook is called now, and where it lies below the server's folder. A
 * kernel tells the broker once, when it starts, and by the whole path; that is all there is of one
 * that another server runs.
 */
export class Owners {
  constructor(sessions: Session.IManager, trans: TranslationBundle) {
    this._sessions = sessions;
    this._trans = trans;
  }

  /** What a person calls it; `told`: the path that the broker knows. */
  name(kernel: string, told: string): string {
    const session = this._find(kernel);
    const name =
      session && session.type !== 'notebook'
        ? session.name || basename(session.path)
        : basename(session?.path ?? told);
    return short(name) || this._trans.__('a script');
  }

  /** Where it lies. */
  path(kernel: string, told: string): string {
    return short(this._find(kernel)?.path ?? told, 200);
  }

  /** The command that opens it, and the path for that; null where there is none. */
  opens(kernel: string): { command: string; path: string } | null {
    const session = this._find(kernel);
    const command = COMMANDS.get(session?.type ?? '');
    return session && command ? { command, path: session.path } : null;
  }

  private _find(kernel: string): Session.IModel | undefined {
    return [...this._sessions.running()].find(each => each.kernel?.id === kernel);
  }

  private _sessions: Session.IManager;
  private _trans: TranslationBundle;
}
