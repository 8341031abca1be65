/** Cells that wait for the GPU say so in their place; those that are done, what they took of it. */

import type { CodeCell } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel, KernelMessage } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';

import { doneText, waitText } from '../model/celltext';
import type { IKernelState } from '../model/state';
import type { ISharedGpu } from '../tokens';
import { recall, remember } from './memory';

/** So many done cells are followed; the server tells of as many. */
const MOST_DONE = 16;

/** A cell that the kernel is at, or was at. */
interface IExecution {
  cell: CodeCell;
  count: number | null;
  /** the message that asked for it; null where the page was loaded meanwhile */
  message: string | null;
  begun: number;
  /** seconds by the clock; null while it is under way */
  wall: number | null;
}

/** Marks the cells of one notebook. */
export class CellMarks implements IDisposable {
  /** `showsSeconds`: whether done cells say what they took. */
  constructor(panel: NotebookPanel, gpu: ISharedGpu, showsSeconds: () => boolean) {
    this._panel = panel;
    this._gpu = gpu;
    this._showsSeconds = showsSeconds;
    panel.sessionContext.iopubMessage.connect(this._onMessage, this);
    panel.sessionContext.kernelChanged.connect(this._forget, this);
    panel.sessionContext.statusChanged.connect(this._onStatus, this);
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
    const kernel = this._gpu.store.kernel(this._kernel);
    this._current ??= this._recalled(kernel);
    if (this._current) {
      const waits = kernel && !this._gpu.store.stale ? waitText(kernel, this._gpu.trans) : '';
      mark(this._current.cell, 'waiting', waits);
    }
    for (const done of this._done) {
      const seconds = this._showsSeconds() ? kernel?.cells?.[`${done.count}`] : undefined;
      if (seconds !== undefined || !this._showsSeconds()) {
        mark(done.cell, 'done', doneText(seconds, done.wall ?? 0, this._gpu.trans));
      }
    }
  }

  private get _kernel(): string | undefined {
    return this._panel.sessionContext.session?.kernel?.id;
  }

  private _onMessage(_: unknown, message: KernelMessage.IMessage): void {
    const parent = message.parent_header as KernelMessage.IHeader;
    if (parent.msg_type !== 'execute_request') {
      return;
    }
    if (message.header.msg_type === 'execute_input') {
      this._begin(parent.msg_id, (message as KernelMessage.IExecuteInputMsg).content);
    } else if (
      message.header.msg_type === 'status' &&
      (message as KernelMessage.IStatusMsg).content.execution_state === 'idle' &&
      (this._current?.message ?? parent.msg_id) === parent.msg_id
    ) {
      this._end();
    }
  }

  private _begin(message: string, content: KernelMessage.IExecuteInputMsg['content']): void {
    const count = content.execution_count;
    const cell = this._panel.content.widgets.find(
      each => (each as CodeCell).outputArea?.future?.msg.header.msg_id === message
    ) as CodeCell | undefined;
    this._end();
    if (!cell) {
      return; // asked for by somebody else
    }
    this._done = this._done.filter(done => done.cell !== cell);
    mark(cell, '', '');
    this._current = { cell, count, message, begun: Date.now(), wall: null };
    if (this._kernel && count !== null) {
      remember(this._kernel, cell.model.id, count);
    }
    this.update();
  }

  private _end(): void {
    const current = this._current;
    if (current) {
      this._current = null;
      mark(current.cell, '', '');
      current.wall = (Date.now() - current.begun) / 1000;
      this._done = [...this._done, current].filter(({ cell }) => !cell.isDisposed);
      this._done = this._done.slice(-MOST_DONE);
      this.update();
    }
  }

  /** Another kernel, or the same anew: what was told of its cells is over. */
  private _forget(): void {
    if (this._current) {
      mark(this._current.cell, '', '');
    }
    this._current = null;
    this._done = [];
  }

  private _onStatus(_: unknown, status: Kernel.Status): void {
    if (['dead', 'restarting', 'autorestarting', 'terminating'].includes(status)) {
      this._forget();
    }
  }

  /** The cell that was under way when the page was loaded anew. */
  private _recalled(kernel: IKernelState | undefined): IExecution | null {
    const known = this._kernel && kernel?.cell ? recall(this._kernel) : null;
    if (!known || kernel?.cell !== `${known.count}`) {
      return null;
    }
    const { count, at: begun } = known;
    const cell = this._panel.content.widgets.find(each => each.model.id === known.cell);
    return cell?.model.type === 'code'
      ? { cell: cell as CodeCell, count, message: null, begun, wall: null }
      : null;
  }

  private _panel: NotebookPanel;
  private _gpu: ISharedGpu;
  private _showsSeconds: () => boolean;
  private _current: IExecution | null = null;
  private _done: IExecution[] = [];
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
