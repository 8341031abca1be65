/** The panel at the right: this notebook, my kernels, my share, the device. */

import type { ITranslator } from '@jupyterlab/translation';
import { ReactWidget, SidePanel } from '@jupyterlab/ui-components';
import { Poll } from '@lumino/polling';
import type { AccordionPanel, Widget } from '@lumino/widgets';
import * as React from 'react';

import { gpuIcon } from '../icon';
import { staleWords } from '../model/words';
import type { ISharedGpu } from '../tokens';
import { Device } from './device';
import { Stale } from './elements';
import { Kernels } from './kernels';
import { ThisNotebook } from './notebook';
import { Share } from './share';

const TICK_MS = 1000;
/** What the sections need of the height, one beside the other. */
const SIZES = [10.5, 6.5, 8, 11];

/** Part of the panel: a component that is drawn anew where the state has changed. */
class Section extends ReactWidget {
  constructor(gpu: ISharedGpu, label: string, draw: (gpu: ISharedGpu) => JSX.Element) {
    super();
    this._gpu = gpu;
    this._draw = draw;
    this.addClass('jgpu-Section');
    this.title.label = label;
    gpu.store.changed.connect(this._onChange, this);
    gpu.front.changed.connect(this._onChange, this);
  }

  protected override onAfterShow(): void {
    this.update();
  }

  protected render(): JSX.Element {
    const { stale } = this._gpu.store;
    return <div className={stale ? 'jgpu-mod-stale' : undefined}>{this._draw(this._gpu)}</div>;
  }

  private _onChange(): void {
    if (this.isVisible) {
      this.update();
    }
  }

  private _gpu: ISharedGpu;
  private _draw: (gpu: ISharedGpu) => JSX.Element;
}

/** The sentence above them while the figures are those of earlier. */
class Head extends ReactWidget {
  constructor(gpu: ISharedGpu) {
    super();
    this._gpu = gpu;
    gpu.store.changed.connect(this.update, this);
  }

  protected render(): JSX.Element {
    const { store, trans } = this._gpu;
    return <Stale text={staleWords(store.state, store.silence, trans)} />;
  }

  private _gpu: ISharedGpu;
}

export class GpuPanel extends SidePanel {
  constructor(gpu: ISharedGpu, translator: ITranslator) {
    super({ translator });
    const { trans } = gpu;
    this.id = 'jgpu-panel';
    this.addClass('jgpu-Panel');
    this.title.icon = gpuIcon;
    this.title.caption = trans.__('Shared GPU');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Shared GPU'));
    this.header.addWidget(new Head(gpu));
    this.addWidget(new Section(gpu, trans.__('This notebook'), of => <ThisNotebook gpu={of} />));
    this.addWidget(new Section(gpu, trans.__('My kernels'), of => <Kernels gpu={of} />));
    this.addWidget(new Section(gpu, trans.__('My share'), of => <Share gpu={of} />));
    this.addWidget(new Section(gpu, trans.__('The device'), of => <Device gpu={of} />));
    (this.content as AccordionPanel).setRelativeSizes(SIZES);
    // The strip moves on also while nothing changes.
    this._clock = new Poll({
      name: '@jgpu/lab:panel',
      factory: async () => this._last.update(),
      frequency: { interval: TICK_MS, backoff: false },
      standby: () => document.hidden || !this._last.isVisible
    });
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this._clock.dispose();
      super.dispose();
    }
  }

  private get _last(): Widget {
    return this.widgets[this.widgets.length - 1];
  }

  private _clock: Poll;
}
