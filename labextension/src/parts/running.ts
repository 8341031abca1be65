/** The person's sessions on the device, in JupyterLab's list of what runs. */

import type { IRunningSessions } from '@jupyterlab/running';
import { closeIcon } from '@jupyterlab/ui-components';
import type { ISignal } from '@lumino/signaling';

import { gpuIcon } from '../icon';
import { size } from '../model/figures';
import { stateWords } from '../model/words';
import type { ISharedGpu } from '../tokens';

/** What a row says of its kernel, for the menu that opens on it. */
export const CONTEXT = 'jgpu-kernel:';

/** Lists them; the servers' own lists say nothing of the GPU. */
export class RunningOnGpu implements IRunningSessions.IManager {
  /** `open`: has a command bring a notebook or a console to the front. */
  constructor(gpu: ISharedGpu, open: (command: string, path: string) => void) {
    this._gpu = gpu;
    this._open = open;
    this.name = gpu.trans.__('Shared GPU');
    this.shutdownLabel = gpu.trans.__('Shut Down Kernel');
    this.shutdownAllLabel = gpu.trans.__('Shut Down All');
    this.shutdownAllConfirmationText = gpu.trans.__(
      'Shut down all kernels of this server that use the shared GPU?'
    );
  }

  readonly name: string;
  readonly shutdownLabel: string;
  readonly shutdownAllLabel: string;
  readonly shutdownAllConfirmationText: string;
  readonly shutdownItemIcon = closeIcon;

  get runningChanged(): ISignal<unknown, void> {
    return this._gpu.store.changed;
  }

  running(): IRunningSessions.IRunningItem[] {
    const { store } = this._gpu;
    return Object.keys(store.state.kernels).map(id => this._item(id));
  }

  refreshRunning(): void {
    // The server tells by itself.
  }

  shutdownAll(): void {
    const { actions, store } = this._gpu;
    for (const id of Object.keys(store.state.kernels)) {
      if (actions.allowed && actions.runsHere(id)) {
        void actions.shutDown(id);
      }
    }
  }

  private _item(id: string): IRunningSessions.IRunningItem {
    const { actions, owners, store, trans } = this._gpu;
    const kernel = store.kernel(id);
    const path = kernel?.path ?? '';
    const held = size(kernel?.held ?? 0);
    const opens = owners.opens(id);
    const mine = actions.allowed && actions.runsHere(id);
    return {
      className: 'jgpu-Running',
      context: CONTEXT + id,
      icon: () => gpuIcon,
      label: () => owners.name(id, path),
      labelTitle: () => owners.path(id, path),
      detail: () => `${stateWords(kernel, trans)} · ${held}`,
      ...(opens ? { open: () => this._open(opens.command, opens.path) } : {}),
      ...(mine ? { shutdown: () => void actions.shutDown(id) } : {})
    };
  }

  private _gpu: ISharedGpu;
  private _open: (command: string, path: string) => void;
}
