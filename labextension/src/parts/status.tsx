/** The state of the notebook in front, in the status bar, or in a toolbar where there is none. */

import { GroupItem, ProgressBar, showPopup, TextItem } from '@jupyterlab/statusbar';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { Widget } from '@lumino/widgets';
import * as React from 'react';

import { percentage } from '../model/figures';
import { reason, shareWords, stateWords } from '../model/words';
import type { ISharedGpu } from '../tokens';
import { Below } from './below';
import { Details } from './details';

/** One line, and, clicked, why it is so. */
export class Status extends ReactWidget {
  /** `kernel`: whose state it shows; `isActive`: whether there is one to be shown. */
  constructor(gpu: ISharedGpu, kernel: () => string | undefined, place: 'status bar' | 'toolbar') {
    super();
    this._gpu = gpu;
    this._kernel = kernel;
    this._place = place;
    this.addClass('jgpu-Status');
    this.addClass('jp-mod-highlighted');
    gpu.store.changed.connect(this.update, this);
    gpu.front.changed.connect(this.update, this);
  }

  protected render(): JSX.Element {
    const { store, trans } = this._gpu;
    const kernel = store.kernel(this._kernel());
    const { share } = store.state;
    const words = stateWords(kernel, trans);
    const text = [trans.__('GPU'), words, shareWords(share)].filter(part => part).join(' · ');
    return (
      <div
        className={store.stale ? 'jgpu-mod-stale' : undefined}
        data-jgpu-state={kernel?.state ?? 'none'}
      >
        <GroupItem
          spacing={6}
          role="button"
          tabIndex={0}
          aria-haspopup="dialog"
          title={reason(kernel, trans, share?.user)}
          onClick={this._open}
          onKeyDown={this._onKey}
        >
          <TextItem source={text} />
          {share && share.memory > 0 && (
            // It has no name of its own, and the text says the same.
            <span aria-hidden="true">
              <ProgressBar percentage={percentage(share.used, share.memory)} width={50} />
            </span>
          )}
        </GroupItem>
        <span className="jgpu-Spoken" aria-live="polite">
          {words}
        </span>
      </div>
    );
  }

  private _onKey = (event: React.KeyboardEvent): void => {
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      this._open();
    }
  };

  private _open = (): void => {
    this._popup?.dispose();
    const body = new Details(this._gpu, this._kernel);
    const popup =
      this._place === 'toolbar'
        ? new Below(body, this)
        : showPopup({ body, anchor: this, align: 'left', hasDynamicSize: true });
    this._popup = popup;
    // JupyterLab's own popup hears Escape only while something in it has the focus.
    const onKey = (event: KeyboardEvent) => {
      if (event.key === 'Escape') {
        popup.dispose();
        this.node.querySelector<HTMLElement>('[role="button"]')?.focus();
      }
    };
    document.addEventListener('keydown', onKey, true);
    popup.disposed.connect(() => document.removeEventListener('keydown', onKey, true));
  };

  private _gpu: ISharedGpu;
  private _kernel: () => string | undefined;
  private _place: 'status bar' | 'toolbar';
  private _popup: Widget | null = null;
}
