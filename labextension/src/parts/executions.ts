/** The cell that a notebook's kernel is at, and those it has done, by the kernel's own messages. */

import type { CodeCell } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel, KernelMessage } from '@jupyterlab/services';
import type { ISignal } from '@lumino/signaling';
import { Signal } from '@lumino/signaling';

import { recall, remember } from './memory';

/** So many done cells are followed; the server tells of as many. */
const MOST_DONE = 16;

/** A cell that the kernel is at, or was at. */
export interface IExecution {
  cell: CodeCell;
  count: number | null;
  /** the message that asked for it; null where the page was loaded meanwhile */
  message: string | null;
  begun: number;
  /** seconds by the clock; null while it is under way */
  wall: number | null;
}

/** Follows one notebook's kernel. */
export class Executions {
  constructor(panel: NotebookPanel) {
    this._panel = panel;
    panel.sessionContext.iopubMessage.connect(this._onMessage, this);
    panel.sessionContext.kernelChanged.connect(this._forget, this);
    panel.sessionContext.statusChanged.connect(this._onStatus, this);
  }

  /** The kernel's id. */
  get kernel(): string | undefined {
    return this._panel.sessionContext.session?.kernel?.id;
  }

  /** The one under way. */
  get current(): IExecution | null {
    return this._current;
  }

  /** Those done last, oldest first. */
  get done(): readonly IExecution[] {
    return this._done;
  }

  /** Emitted with a cell of which nothing holds any more: it begins, is done, or was given up. */
  get over(): ISignal<this, CodeCell> {
    return this._over;
  }

  /** Emitted when another one is under way, or one is done. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Find the cell that was under way when the page was loaded anew; `count`: what runs now. */
  recall(count: string | undefined): void {
    if (this._current) {
      return;
    }
    const known = this.kernel && count ? recall(this.kernel) : null;
    const cell = this._panel.content.widgets.find(each => each.model.id === known?.cell);
    if (known && count === `${known.count}` && cell?.model.type === 'code') {
      this._current = {
        cell: cell as CodeCell,
        count: known.count,
        message: null,
        begun: known.at,
        wall: null
      };
    }
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
    this._over.emit(cell);
    this._current = { cell, count, message, begun: Date.now(), wall: null };
    if (this.kernel && count !== null) {
      remember(this.kernel, cell.model.id, count);
    }
    this._changed.emit();
  }

  private _end(): void {
    const current = this._current;
    if (current) {
      this._current = null;
      this._over.emit(current.cell);
      current.wall = (Date.now() - current.begun) / 1000;
      this._done = [...this._done, current].filter(({ cell }) => !cell.isDisposed);
      this._done = this._done.slice(-MOST_DONE);
      this._changed.emit();
    }
  }

  /** Another kernel, or the same anew: what was told of its cells is over. */
  private _forget(): void {
    if (this._current) {
      this._over.emit(this._current.cell);
    }
    this._current = null;
    this._done = [];
  }

  private _onStatus(_: unknown, status: Kernel.Status): void {
    if (['dead', 'restarting', 'autorestarting', 'terminating'].includes(status)) {
      this._forget();
    }
  }

  private _panel: NotebookPanel;
  private _current: IExecution | null = null;
  private _done: IExecution[] = [];
  private _over = new Signal<this, CodeCell>(this);
  private _changed = new Signal<this, void>(this);
}
