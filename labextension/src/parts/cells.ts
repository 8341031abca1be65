/** Cells that wait for the GPU say so in their place; those that are done, what they took of it. */

import type { CodeCell } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { IDisposable } from '@lumino/disposable';

import { doneText, waitText } from '../model/celltext';
import type { ISharedGpu } from '../tokens';
import { Executions } from './executions';

/** Marks the cells of one notebook. */
export class CellMarks implements IDisposable {
  /** `showsSeconds`: whether done cells say what they took. */
  constructor(panel: NotebookPanel, gpu: ISharedGpu, showsSeconds: () => boolean) {
    this._panel = panel;
    this._gpu = gpu;
    this._showsSeconds = showsSeconds;
    this._executions = new Executions(panel);
    this._executions.over.connect((_, cell) => mark(cell, '', ''));
    this._executions.changed.connect(this.update, this);
    gpu.store.changed.connect(this.update, this);
    panel.disposed.connect(this.dispose, this);
    // The state may have come before the notebook had its cells and its kernel.
    void Promise.all([panel.context.ready, panel.sessionContext.ready]).then(() => this.update());
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._gpu.store.changed.disconnect(this.update, this);
    }
  }

  /** Say on the cells what is so now. */
  update(): void {
    if (this._isDisposed || !this._panel.content.model) {
      return;
    }
    const { store, trans } = this._gpu;
    const executions = this._executions;
    const kernel = store.kernel(executions.kernel);
    executions.recall(kernel?.cell);
    if (executions.current) {
      const waits = kernel && !store.stale ? waitText(kernel, trans) : '';
      mark(executions.current.cell, 'waiting', waits);
    }
    for (const done of executions.done) {
      const seconds = this._showsSeconds() ? kernel?.cells?.[`${done.count}`] : undefined;
      if (seconds !== undefined || !this._showsSeconds()) {
        mark(done.cell, 'done', doneText(seconds, done.wall ?? 0, trans));
      }
    }
  }

  private _panel: NotebookPanel;
  private _gpu: ISharedGpu;
  private _showsSeconds: () => boolean;
  private _executions: Executions;
  private _isDisposed = false;
}

/** Have a cell say a text, which the style sheet draws below it; nothing for an empty one. */
function mark(cell: CodeCell, state: string, text: string): void {
  if (cell.isDisposed) {
    return;
  }
  const { dataset } = cell.node;
  if (text) {
    dataset.jgpu = state;
    dataset.jgpuText = text;
  } else {
    delete dataset.jgpu;
    delete dataset.jgpuText;
  }
}
