/** The notebook in front, and the kernel that it has. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

/** Follows which notebook a person looks at. */
export class Front {
  constructor(tracker: INotebookTracker, shell: JupyterFrontEnd.IShell) {
    this._tracker = tracker;
    this._shell = shell;
    tracker.currentChanged.connect(this._onCurrent, this);
    shell.currentChanged?.connect(this._emit, this);
    this._onCurrent();
  }

  /** The notebook that was in front last. */
  get panel(): NotebookPanel | null {
    return this._tracker.currentWidget;
  }

  /** Whether it is in front now, and not a file or a terminal. */
  get isActive(): boolean {
    const panel = this._tracker.currentWidget;
    return panel !== null && this._shell.currentWidget === panel;
  }

  get kernel(): string | undefined {
    return this.panel?.sessionContext.session?.kernel?.id;
  }

  /** Emitted where another notebook, or another kernel, is in front. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  private _onCurrent(): void {
    this._panel?.sessionContext.kernelChanged.disconnect(this._emit, this);
    this._panel = this._tracker.currentWidget;
    this._panel?.sessionContext.kernelChanged.connect(this._emit, this);
    this._emit();
  }

  private _emit(): void {
    this._changed.emit();
  }

  private _tracker: INotebookTracker;
  private _shell: JupyterFrontEnd.IShell;
  private _panel: NotebookPanel | null = null;
  private _changed = new Signal<this, void>(this);
}
