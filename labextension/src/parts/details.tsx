/** What opens from the status: why it is so, what is left, and what can be done. */

import { ReactWidget } from '@jupyterlab/ui-components';
import * as React from 'react';

import { duration, size, sizeOf } from '../model/figures';
import { budgetWords, reason, staleWords, stateWords } from '../model/words';
import type { ISharedGpu } from '../tokens';
import { Figure, MemoryButtons, Meter, Stale } from './elements';
import { freeAt } from './share';

/** Redraws itself while it is open. */
export class Details extends ReactWidget {
  constructor(gpu: ISharedGpu, kernel: () => string | undefined) {
    super();
    this._gpu = gpu;
    this._kernel = kernel;
    this.addClass('jgpu-Details');
    this.node.setAttribute('role', 'dialog');
    this.node.setAttribute('aria-label', gpu.trans.__('Shared GPU'));
    gpu.store.changed.connect(this.update, this);
  }

  protected render(): JSX.Element {
    const { store, trans } = this._gpu;
    const id = this._kernel();
    const kernel = store.kernel(id);
    const { state } = store;
    const { share } = state;
    return (
      <div className={store.stale ? 'jgpu-mod-stale' : undefined}>
        <h3>{trans.__('GPU: %1', stateWords(kernel, trans))}</h3>
        <p>{state.drain_text || reason(kernel, trans, share?.user)}</p>
        <Stale text={staleWords(state, store.silence, trans)} />
        {kernel && <Figure label={trans.__('This notebook holds')} text={size(kernel.held ?? 0)} />}
        {kernel?.waits_since && kernel.state === 'waiting' ? (
          <Figure
            label={trans.__('It waits for')}
            text={duration(Math.max(0, store.serverNow - kernel.waits_since))}
          />
        ) : null}
        {share && (
          <>
            <Meter
              label={trans.__('Your memory')}
              text={sizeOf(share.used, share.memory)}
              part={share.used}
              whole={share.memory}
            />
            <Meter
              label={trans.__('Your GPU time')}
              text={budgetWords(share, trans)}
              part={share.spent}
              whole={share.budget}
            />
            {freeAt(share, trans)}
          </>
        )}
        <div className="jgpu-Buttons">
          <MemoryButtons gpu={this._gpu} kernel={id} />
        </div>
      </div>
    );
  }

  private _gpu: ISharedGpu;
  private _kernel: () => string | undefined;
}
